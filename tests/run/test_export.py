"""Exported agents: loaded without the training code, they act as the agent that was exported."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from safetensors.numpy import load_file, save_file

from ace import cli
from ace.engine.program import Program
from ace.run import request
from ace.run.agent_file import load_agents
from ace.run.checkpoint import named_arrays
from tests.run.helpers import QUICK, small_run

# What a user would write: JAX, safetensors, JSON, and nothing of this project.
ALONE = """
import json, sys
import jax.numpy as jnp
import numpy as np
from jax import export
from safetensors.numpy import load_file, save_file

folder, inputs, out = sys.argv[1:]
given = load_file(inputs)
about = json.load(open(f"{folder}/agent.json"))
policy = export.deserialize(bytearray(open(f"{folder}/policy.stablehlo", "rb").read()))
agent = export.deserialize(bytearray(open(f"{folder}/agent.stablehlo", "rb").read()))
found = {"policy": np.asarray(policy.call(load_file(f"{folder}/policy.safetensors"), given["obs"]))}
arrays = load_file(f"{folder}/agent.safetensors")
memory = {n: np.zeros(s[1:], s[0]) for n, s in about["inputs"]["memory"].items()}
actions = []
for count, obs in enumerate(given["obs"]):
    first, seed = jnp.bool_(count == 0), jnp.uint32(7)
    action, memory = agent.call(arrays, memory, obs, first, seed, jnp.int32(count))
    actions.append(np.asarray(action))
found["agent"] = np.stack(actions)
assert not [m for m in sys.modules if m == "ace" or m.startswith("ace.")]
save_file(found, out)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run whose second lane is padded, in what it observes and in how it acts."""
    folder = tmp_path_factory.mktemp("export") / "run"
    flags = ("--action-repeat", "2", "--env-steps", "240", *QUICK)
    small_run(folder, "probe/long", "probe/constant", *flags)
    return folder


@pytest.mark.parametrize("lane", [0, 1])
def test_exported_agents_act_the_same_in_a_process_without_the_code(trained, tmp_path, lane):
    out = tmp_path / "out"
    cli.main(["export", str(trained), str(out), "--lane", str(lane)])
    _, agent, setups, _ = request.read_run(trained)
    sizes = setups[lane].sizes
    obs = np.random.default_rng(0).standard_normal((5, sizes[0])).astype(np.float32)
    save_file({"obs": obs}, tmp_path / "inputs")
    script = tmp_path / "alone.py"
    script.write_text(ALONE)
    command = [sys.executable, "-P", str(script), str(out)]
    subprocess.run(
        [*command, str(tmp_path / "inputs"), str(tmp_path / "found")], check=True, cwd=tmp_path
    )
    found = load_file(tmp_path / "found")
    assert found["policy"].shape == found["agent"].shape == (5, sizes[1])

    program = Program(agent, setups)
    acting, agent_step = load_agents(trained, program)
    mine = jax.tree.map(lambda x: jnp.asarray(x[lane]), acting)
    one = jax.device_put(program.fresh.lane(setups[lane])), mine
    wide = np.pad(obs, [(0, 0), (0, program.obs_size - sizes[0])])
    seed = jnp.uint32(7)

    @jax.jit
    def act(memory, obs, first, count):
        key = jax.random.fold_in(jax.random.key(seed), count)
        return program.agent.act(*one, memory, obs, first, jnp.int32(agent_step), key, False)

    # The same files in this process: equal to the bit.
    files = {
        n: (load_file(out / f"{n}.safetensors"), (out / f"{n}.stablehlo").read_bytes())
        for n in ("policy", "agent")
    }
    calls = {n: export.deserialize(bytearray(code)).call for n, (_, code) in files.items()}
    np.testing.assert_array_equal(found["policy"], calls["policy"](files["policy"][0], obs))
    memory = program.agent.memory(program.config, program.action_size)
    named = named_arrays(memory)
    with jax.default_matmul_precision("highest"):
        # The agent as it acts in a run, compiled with other neighbours: equal but for rounding.
        assert program.agent.act_policy
        policy = program.agent.act_policy(*one, jnp.asarray(wide))[:, : sizes[1]]
        np.testing.assert_allclose(found["policy"], policy, rtol=1e-5, atol=1e-6)
        for count in range(5):
            first, number = jnp.bool_(count == 0), jnp.int32(count)
            given = (files["agent"][0], named, obs[count], first, seed, number)
            action, named = calls["agent"](*given)
            np.testing.assert_array_equal(found["agent"][count], action)
            action, memory = act(memory, wide[count], first, number)
            expected = action[: sizes[1]]
            np.testing.assert_allclose(found["agent"][count], expected, rtol=1e-4, atol=1e-5)
    # Not one constant; two of them may both lie at the bound, which rounding decides.
    assert len(np.unique(found["agent"], axis=0)) >= 3


def test_what_an_export_says_of_itself(trained, tmp_path):
    cli.main(["export", str(trained), str(tmp_path / "deep" / "out")])
    folder = tmp_path / "deep" / "out"
    for name in ("policy", "agent"):
        about = json.loads((folder / f"{name}.json").read_text())
        assert about["task"] == "probe/long" and about["agent_step"] == 120
        assert about["action_low"] == [-1, -1] and about["action_high"] == [1, 1]
        for file, entry in about["files"].items():
            data = (folder / file).read_bytes()
            assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        arrays = load_file(folder / f"{name}.safetensors")
        assert {n: [str(x.dtype), *x.shape] for n, x in arrays.items()} == about["arrays"]
    assert {
        n.split(".")[1] for n in json.loads((folder / "policy.json").read_text())["arrays"]
    } == {"encoder", "obs", "policy"}
    assert sorted(p.name for p in folder.parent.iterdir()) == ["out"]


def test_bad_exports_are_refused_and_leave_nothing(trained, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    bad = (
        ([str(trained), str(tmp_path / "out"), "--lane", "2"], "lanes 0 to 1"),
        ([str(trained), str(tmp_path / "full")], "new folder"),
        ([str(tmp_path / "nothing"), str(tmp_path / "out")], "not a run folder"),
    )
    for argv, message in bad:
        with pytest.raises(SystemExit):
            cli.main(["export", *argv])
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "full" / "mine").read_text() == "mine"
