"""Kernels and bytes of the compiled functions on a card that need not be there.

    python benchmarks/compiled.py --lanes 16 --function update

Needs JAX with its CUDA plugin, but no GPU: XLA compiles for the description of an H200 below,
without autotuning. Bytes count every operand and result of a kernel whole, so a gather counts all
it gathers from; the workspaces of matrix products are left out.
"""

import argparse
import collections
import os
import re
import time

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from ace.agents import AGENTS
from ace.engine import compile, fused, kernels
from ace.engine.lanes import LaneSetup
from ace.engine.program import Program
from ace.envs import get_spec
from ace.settings.config import replace
from ace.settings.presets import resolve

H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 150000000000 registers_per_core_limit: 65536 registers_per_block_limit: 65536
  cuda_compute_capability { major: 9 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H200"
"""
OPTIONS = compile.GPU_OPTIONS | {
    "xla_gpu_autotune_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
SIZES = {"f32": 4, "bf16": 2, "s32": 4, "u32": 4, "pred": 1, "s8": 1, "u8": 1, "u64": 8, "s64": 8}
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}
WORKSPACE = 33_554_432  # bytes of s8 that the library of products asks for


def nbytes(shapes: str) -> int:
    """Bytes of all arrays that a text names, less workspaces."""
    total = 0
    for kind, numbers in re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", shapes):
        size = SIZES.get(kind, 0) * int(np.prod([int(n) for n in numbers.split(",") if n]))
        total += 0 if kind == "s8" and size == WORKSPACE else size
    return total


def count(text: str) -> tuple[collections.Counter, collections.Counter]:
    """Kernels and bytes of a compiled program without loops, by kind."""
    entry = text[text.index("\nENTRY") :]
    shapes, number, size = {}, collections.Counter(), collections.Counter()
    for line in entry.splitlines():
        found = re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*)", line)
        if not found:
            continue
        name, shape, kind, rest = found.groups()
        shapes[name] = shape
        if kind in FREE:
            continue
        detail = re.search(r'kind=k(\w+)|custom_call_target="([^"]+)"', line)
        kind = next(filter(None, detail.groups())) if detail else kind
        operands = re.findall(r"%([\w.\-]+)", rest.split("), ")[0])
        number[kind] += 1
        size[kind] += nbytes(shape) + sum(nbytes(shapes.get(o, "")) for o in set(operands))
    return number, size


def main() -> None:
    """Read the command line and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="dmc/quadruped-run")
    parser.add_argument("--lanes", type=int, default=16)
    parser.add_argument("--function", choices=("update", "plan"), default="update")
    parser.add_argument("--capacity", type=int, default=125_502)
    args = parser.parse_args()
    kernels.broken = lambda: ""  # as if the kernels had passed their trial
    card = topologies.get_topology_desc(
        platform="cuda", topology_name="h200", target_config=H200, topology="1x1x1"
    )
    place = SingleDeviceSharding(card.devices[0])
    spec = get_spec(args.task)
    sizes = (spec.obs_size, spec.action_size)
    config = replace(
        resolve("default", args.task, spec, AGENTS["ace"].defaults_of(args.task)),
        {"precision": "bf16"},
    )
    setups = [LaneSetup(args.task, i, config, sizes) for i in range(args.lanes)]
    Program.table = property(lambda self: fused.TABLE)  # type: ignore[assignment]
    program = Program("ace", setups)
    obs = np.zeros((args.lanes, sizes[0]), np.float32)
    state = program.init_state(obs, args.capacity)
    program.send(0, obs)
    function, given = program.parts(state)[args.function]
    given = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), given)
    # A card that is not there has no memories, so results cannot be sent to them.
    lowered = jax.jit(function.traced, donate_argnums=function.donated).lower(*given)
    begun = time.perf_counter()
    number, size = count(lowered.compile(compiler_options=OPTIONS).as_text() or "")
    seconds = time.perf_counter() - begun
    for kind, n in number.most_common():
        print(f"{kind:28} {n:5} kernels {size[kind] / 1e9:7.2f} GB")
    print(f"{sum(number.values())} kernels, {sum(size.values()) / 1e9:.1f} GB, {seconds:.0f} s")


if __name__ == "__main__":
    main()
