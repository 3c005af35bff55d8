"""Saved state on disk, written so that a kill at any moment leaves a whole checkpoint behind.

A run's `checkpoints` folder holds one folder per checkpoint, named by its agent step, and a folder
of replay rows. A checkpoint has arrays in safetensors files, the rest in `manifest.json`, which is
written last and holds the size and SHA-256 of every file it relies on. Replay rows are only ever
appended: a checkpoint writes those since the one before, so its cost does not grow with the run.
Everything is written beside, synced and renamed; nothing that is loaded can run code.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

FORMAT = 1
KEEP = 2


class CheckpointError(RuntimeError):
    """A file that does not fit, with what was expected."""


class Saved(NamedTuple):
    """What a checkpoint gives back."""

    agent_step: int
    tree: Any  # as the tree that was saved
    rows: list[dict[str, np.ndarray]]  # replay rows, oldest file first
    host: dict[str, Any]  # numbers and lists


def named_arrays(tree: Any) -> dict[str, Any]:
    """Leaves by their dotted path."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Write named arrays, beside first; give the file's size and checksum."""
    data = save({name: np.array(x, order="C") for name, x in arrays.items()})
    return write_bytes(path, data)


def write_bytes(path: Path, data: bytes) -> dict[str, Any]:
    """Write a file so that it is there whole or not at all; give its size and checksum."""
    beside = path.with_name(path.name + ".new")
    with open(beside, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    beside.replace(path)
    sync_folder(path.parent)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_arrays(path: Path, expected: Mapping[str, Any] | None = None) -> dict[str, np.ndarray]:
    """Read named arrays; with `expected` size and checksum, refuse a file that differs."""
    try:
        if expected is not None and path.stat().st_size != expected["bytes"]:
            raise CheckpointError(
                f"{path} has {path.stat().st_size} bytes, not {expected['bytes']}"
            )
        data = path.read_bytes()
        if expected is not None and hashlib.sha256(data).hexdigest() != expected["sha256"]:
            raise CheckpointError(f"{path} does not match its checksum; it is damaged")
        return load(data)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); it is damaged") from error


def fit(arrays: Mapping[str, np.ndarray], like: Any, path: Path) -> Any:
    """Arrays as a tree whose names, shapes and types must be those of `like`."""
    wanted = named_arrays(like)
    if set(arrays) != set(wanted):
        odd = sorted(set(arrays) ^ set(wanted))
        raise CheckpointError(f"{path} does not fit this config: {', '.join(odd[:4])} differ")
    for name, leaf in wanted.items():
        found = arrays[name]
        if found.shape != leaf.shape or found.dtype != leaf.dtype:
            raise CheckpointError(
                f"{path}: {name} is {found.dtype}{list(found.shape)}, "
                f"expected {leaf.dtype}{list(leaf.shape)}"
            )
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in wanted])


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path):
        self.folder = folder / "checkpoints"
        self.rows: dict[str, dict[str, Any]] = {}  # replay files of the newest checkpoint, in order

    def steps(self) -> list[int]:
        """Agent steps of the checkpoints on disk, oldest first."""
        return sorted(int(p.name) for p in self.folder.glob("[0-9]*") if p.name.isdigit())

    def write(
        self,
        agent_step: int,
        arrays: Mapping[str, Any],
        rows: Mapping[str, Any],
        host: Mapping[str, Any],
        useless: Sequence[str] = (),
    ) -> None:
        """Save a checkpoint; `useless` names replay files that it no longer needs."""
        replay = self.folder / "replay"
        replay.mkdir(parents=True, exist_ok=True)
        kept = {name: entry for name, entry in self.rows.items() if name not in useless}
        if rows:
            name = f"{agent_step:010d}.safetensors"
            kept[name] = write_arrays(replay / name, rows)
        beside = self.folder / f"{agent_step}.new"
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        manifest = {
            "format": FORMAT,
            "agent_step": agent_step,
            "state": write_arrays(beside / "state.safetensors", arrays),
            "replay": kept,
            "host": host,
        }
        body = json.dumps(manifest, sort_keys=True)
        sealed = {"sha256": hashlib.sha256(body.encode()).hexdigest(), "manifest": body}
        write_bytes(beside / "manifest.json", json.dumps(sealed).encode())
        final = self.folder / str(agent_step)
        shutil.rmtree(final, ignore_errors=True)
        beside.replace(final)
        sync_folder(self.folder)
        self.rows = kept
        self._forget_old()

    def _forget_old(self) -> None:
        """Remove all but the newest checkpoints, and replay files that none of them needs."""
        steps = self.steps()
        for step in steps[:-KEEP]:
            shutil.rmtree(self.folder / str(step), ignore_errors=True)
        needed = set(self.rows)
        for step in steps[-KEEP:]:
            try:
                needed |= set(self._manifest(step)["replay"])
            except CheckpointError:
                continue
        for path in (self.folder / "replay").glob("*"):
            if path.name not in needed:
                path.unlink(missing_ok=True)

    def _manifest(self, step: int) -> dict[str, Any]:
        path = self.folder / str(step) / "manifest.json"
        try:
            sealed = json.loads(path.read_bytes())
            body = sealed["manifest"]
            if hashlib.sha256(body.encode()).hexdigest() != sealed["sha256"]:
                raise CheckpointError(f"{path} does not match its checksum; it is damaged")
            manifest = json.loads(body)
            names = manifest["replay"]
            if manifest["format"] != FORMAT:
                raise CheckpointError(f"{path} has format {manifest['format']}, not {FORMAT}")
            if any(Path(name).name != name or not name[:1].isdigit() for name in names):
                raise CheckpointError(f"{path} names a file outside its folder")
            return manifest
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error.strerror})") from None
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{path} is not a manifest ({error!r})") from error

    def read(self, step: int, like: Any) -> Saved:
        """Load one checkpoint, all of it checked."""
        manifest = self._manifest(step)
        folder = self.folder / str(step)
        path = folder / "state.safetensors"
        tree = fit(read_arrays(path, manifest["state"]), like, path)
        rows = [
            read_arrays(self.folder / "replay" / name, entry)
            for name, entry in sorted(manifest["replay"].items())
        ]
        self.rows = dict(sorted(manifest["replay"].items()))
        return Saved(manifest["agent_step"], tree, rows, manifest["host"])

    def newest(self, like: Any) -> tuple[Saved | None, list[str]]:
        """The newest checkpoint that is whole, and what was wrong with those passed over."""
        problems: list[str] = []
        for step in reversed(self.steps()):
            try:
                return self.read(step, like), problems
            except CheckpointError as error:
                problems.append(str(error))
        return None, problems
