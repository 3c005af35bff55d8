"""Traced functions on disk.

JAX's own cache saves the compiler's work. But to know what to look for, it must trace and lower a
function first, in Python, which takes most of a start. Here lies what tracing gives.
"""

import functools
import hashlib
import os
import pickle
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax import export

ENABLED = False
KEPT = 30 * 24 * 3600  # seconds that a file stays after it was used last
# Settings of JAX that say where files and messages go, and not what is compiled.
SILENT = ("cache", "log", "dump", "traceback", "debug_nans", "profiler")
# What JAX does not promise to load in another version; the file's name has the version in it.
KERNELS = ("__gpu$xla.gpu.triton",)


class Traced(NamedTuple):
    """A function as it was traced: of flat arrays, and the structure of its result."""

    exported: export.Exported
    result: Any

    def function(self, name: str) -> Callable:
        """The function again."""

        def call(*args: Any) -> Any:
            return jax.tree.unflatten(self.result, self.exported.call(*jax.tree.leaves(args)))

        call.__name__ = name  # what profiles and compile logs show
        return call


def enable() -> None:
    """Keep traced functions in the folder of JAX's cache from now on."""
    global ENABLED
    ENABLED = True


def path(*what: Any) -> Path | None:
    """The file of a function that is described by `what`, or None if there is no cache.

    Its name also depends on all that a traced function can depend on besides: this package's
    code, the versions of others, the device, the settings of JAX and XLA.
    """
    folder = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if not (ENABLED and folder):
        return None
    values: dict[str, Any] = jax.config.values  # type: ignore[attr-defined]
    settings = {k: v for k, v in values.items() if not any(word in k for word in SILENT)}
    environment = {k: v for k, v in os.environ.items() if k.startswith(("XLA_", "LIBTPU_"))}
    described = repr([*what, _machine(), sorted(settings.items()), sorted(environment.items())])
    return Path(folder) / "programs" / hashlib.sha256(described.encode()).hexdigest()[:40]


@functools.cache
def _machine() -> tuple:
    """This package's code, the versions of others, and the device."""
    code = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        code.update(file.read_bytes())
    device = jax.devices()[0]
    packages = [(name, version(name)) for name in ("jax", "jaxlib", "numpy", "optax")]
    what = device.device_kind, device.client.platform_version
    return code.hexdigest(), packages, sys.version, *what


def trace(function: Callable, *args: Any) -> Traced:
    """A function of flat arrays that does what `function` does with arguments like these."""
    leaves, given = jax.tree.flatten(args)
    result = None

    def flat(*leaves: Any) -> list:
        nonlocal result
        found, result = jax.tree.flatten(function(*jax.tree.unflatten(given, leaves)))
        return found

    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in KERNELS]
    return Traced(export.export(jax.jit(flat), disabled_checks=checks)(*shapes), result)


def load(file: Path) -> Traced | None:
    """The function in a file, or None if there is none that can be used."""
    try:
        data, result = pickle.loads(file.read_bytes())
        found = Traced(export.deserialize(bytearray(data)), result)
        os.utime(file)
        return found
    except Exception:  # whatever it is, the function can be traced again
        return None


def save(file: Path, traced: Traced) -> None:
    """Keep a traced function, if that is possible."""
    part = file.with_name(f"{file.name}.{os.getpid()}.{time.monotonic_ns()}.part")
    with suppress(OSError):
        data = pickle.dumps((bytes(traced.exported.serialize()), traced.result))
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        part.replace(file)
        for old in file.parent.iterdir():
            if time.time() - old.stat().st_mtime > KEPT:
                old.unlink(missing_ok=True)
    with suppress(OSError):
        part.unlink(missing_ok=True)
