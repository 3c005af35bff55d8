"""Trained agents on disk: named arrays in a safetensors file, which runs no code when loaded."""

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import load_file, save_file


class CheckpointError(RuntimeError):
    """A file that does not fit, with what was expected."""


def named_arrays(tree: Any) -> dict[str, np.ndarray]:
    """Leaves by their dotted path."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def save(path: Path, tree: Any, **metadata: str) -> None:
    """Write a tree of arrays: beside, synced, then renamed, so a reader never sees half a file."""
    arrays = {k: np.array(v, order="C") for k, v in named_arrays(jax.device_get(tree)).items()}
    beside = path.with_name(path.name + ".new")
    save_file(arrays, beside, metadata=metadata)
    with open(beside, "rb") as f:
        os.fsync(f.fileno())
    beside.replace(path)


def load(path: Path, like: Any) -> Any:
    """Read a tree whose names, shapes and types must be those of `like`."""
    if not path.exists():
        raise CheckpointError(f"{path} is missing; was the run trained to its first evaluation?")
    try:
        found = load_file(path)
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read ({error}); it is damaged") from error
    wanted = named_arrays(like)
    if set(found) != set(wanted):
        odd = sorted(set(found) ^ set(wanted))
        raise CheckpointError(f"{path} does not fit this config: {', '.join(odd[:4])} differ")
    for name, leaf in wanted.items():
        if found[name].shape != leaf.shape or found[name].dtype != leaf.dtype:
            raise CheckpointError(
                f"{path}: {name} is {found[name].dtype}{list(found[name].shape)}, "
                f"expected {leaf.dtype}{list(leaf.shape)}"
            )
    return jax.tree.unflatten(jax.tree.structure(like), [found[name] for name in wanted])
