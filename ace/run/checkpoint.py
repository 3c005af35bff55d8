"""Saved state on disk, written so that a kill at any moment leaves a whole checkpoint behind.

A run's `checkpoints` folder holds one folder per checkpoint, named by its agent step, and a folder
of replay rows. A checkpoint has arrays in safetensors files, the rest in `manifest.json`, which is
written last and holds the size and SHA-256 of every file it relies on. Replay rows are only ever
appended: a checkpoint writes those since the one before, so its cost does not grow with the run.
Every file is written under a temporary name, synced and renamed.

A folder may come from an untrusted source. Loading it runs no code; sizes are checked before a file
is read, names, types and shapes before they are used; symlinks are not followed.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from ace.settings.config import ConfigError

FORMAT = 3
KEEP = 2
HEADER = 2**20  # bytes that names and shapes may take in a file
# The types of arrays in a file, by their names there. (`safetensors.numpy.load` knows all of these
# but bfloat16.)
TYPES = {
    **{"BOOL": np.bool_, "I8": np.int8, "U8": np.uint8, "I16": np.int16, "U16": np.uint16},
    **{"I32": np.int32, "U32": np.uint32, "I64": np.int64, "U64": np.uint64},
    **{"F16": np.float16, "BF16": jnp.bfloat16, "F32": np.float32, "F64": np.float64},
}
ROW_FILE = re.compile(r"[0-9]{10,}\.safetensors")


class CheckpointError(RuntimeError):
    """A file that does not fit, with what was expected."""


class Saved(NamedTuple):
    """A loaded checkpoint."""

    agent_step: int
    tree: Any  # the tree that was saved
    rows: list[dict[str, np.ndarray]]  # replay rows, oldest file first
    host: dict[str, Any]  # numbers and lists


def named_arrays(tree: Any) -> dict[str, Any]:
    """Leaves by their dotted path, which must tell them apart."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    named: dict[str, Any] = {}
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if name in named:
            raise ConfigError(f"two arrays would be saved as {name!r}; rename one of them")
        named[name] = leaf
    return named


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Write named arrays atomically; returns the file's size and checksum."""
    data = save({name: np.array(x, order="C") for name, x in arrays.items()})
    return write_bytes(path, data)


def write_bytes(path: Path, data: bytes) -> dict[str, Any]:
    """Write a file atomically; returns its size and checksum."""
    beside = path.with_name(path.name + ".new")
    beside.unlink(missing_ok=True)
    with open(beside, "xb") as f:  # "x": never write through a symlink
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    beside.replace(path)
    sync_folder(path.parent)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_bytes(path: Path, limit: int) -> bytes:
    """The content of a plain file of at most `limit` bytes."""
    try:
        if path.is_symlink() or not path.is_file():
            what = "is not a plain file" if path.exists() or path.is_symlink() else "is missing"
            raise CheckpointError(f"{path} {what}")
        with open(path, "rb") as f:
            data = f.read(limit + 1)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror})") from None
    if len(data) > limit:
        raise CheckpointError(f"{path} is larger than {limit} bytes, too large for this run")
    return data


def read_arrays(
    path: Path, nbytes: int, expected: Mapping[str, Any] | None = None
) -> dict[str, np.ndarray]:
    """Read named arrays of at most `nbytes`; refuse a file without the `expected` checksum."""
    data = read_bytes(path, nbytes + HEADER)
    if expected is not None:
        if len(data) != expected["bytes"]:
            raise CheckpointError(f"{path} has {len(data)} bytes, not {expected['bytes']}")
        if hashlib.sha256(data).hexdigest() != expected["sha256"]:
            raise CheckpointError(f"{path} does not match its checksum; it is damaged")
    try:
        return {
            name: np.frombuffer(x["data"], TYPES[x["dtype"]]).reshape(x["shape"])
            for name, x in deserialize(data)
        }
    except (SafetensorError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); it is damaged") from error


def nbytes_of(tree: Any) -> int:
    """Bytes of all arrays in a tree."""
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def fit(arrays: Mapping[str, np.ndarray], like: Any, path: Path, names: Sequence[str] = ()) -> Any:
    """Arrays as a tree; refuse shapes and types other than those of `like`, and names other than
    `names`, by default the paths of its leaves."""
    wanted = named_arrays(like)
    if names:
        wanted = dict(zip(names, wanted.values(), strict=True))
    if set(arrays) != set(wanted):
        odd = [repr(name)[:60] for name in sorted(set(arrays) ^ set(wanted))]
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
    """The checkpoints of one run; `added` is its agent's (`Agent.added`)."""

    def __init__(self, folder: Path, added: str = ""):
        self.folder, self.added = folder / "checkpoints", added
        for path in (self.folder, self.folder / "replay"):
            if path.is_symlink():
                raise CheckpointError(f"{path} is a link; put the folder itself there")
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
        self.forget_old()

    def forget_old(self) -> None:
        """Remove all but the newest checkpoints, and replay files that none of them needs."""
        steps = self.steps()
        for step in steps[:-KEEP]:
            shutil.rmtree(self.folder / str(step), ignore_errors=True)
        for path in self.folder.glob("*.new"):  # what a kill left half-written
            shutil.rmtree(path, ignore_errors=True)
        needed = set(self.rows)
        for step in steps[-KEEP:]:
            try:
                needed |= set(self.manifest(step)["replay"])
            except CheckpointError:
                continue
        for path in (self.folder / "replay").glob("*"):
            if path.name not in needed:
                path.unlink(missing_ok=True)

    def manifest(self, step: int) -> dict[str, Any]:
        """The manifest of a checkpoint, checked; its files are not looked at."""
        path = self.folder / str(step) / "manifest.json"
        if path.parent.is_symlink():
            raise CheckpointError(f"{path.parent} is a link; put the folder itself there")
        data = read_bytes(path, 16 * HEADER)
        try:
            sealed = json.loads(data)
            body = sealed["manifest"]
            if hashlib.sha256(body.encode()).hexdigest() != sealed["sha256"]:
                raise CheckpointError(f"{path} does not match its checksum; it is damaged")
            manifest = json.loads(body)
            if manifest["format"] not in range(1, FORMAT + 1):
                raise CheckpointError(
                    f"{path} has format {manifest['format']!r:.40}, and this version reads up to "
                    f"{FORMAT}; update ace"
                )
            if manifest["agent_step"] != step:
                raise CheckpointError(f"{path} is not of agent step {step}")
            if not all(ROW_FILE.fullmatch(name) for name in manifest["replay"]):
                raise CheckpointError(f"{path} names a file that is not a replay file")
            entries = (manifest["state"], *manifest["replay"].values())
            if any(type(e["bytes"]) is not int or type(e["sha256"]) is not str for e in entries):
                raise CheckpointError(f"{path} has no sizes and checksums")
            return manifest | {"host": dict(manifest["host"])}
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{path} is not a manifest ({error!r:.200})") from error

    def read(
        self,
        step: int,
        like: Any,
        row: Mapping[str, Any],
        limit: int,
        convert: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] = lambda arrays: arrays,
    ) -> Saved:
        """Load one checkpoint, all of it checked.

        `like` has the names, shapes and types of the state, `row` those of one replay row, of which
        a file holds at most `limit`; `convert` may change the state's arrays before that check.
        """
        manifest = self.manifest(step)
        path = self.folder / str(step) / "state.safetensors"
        arrays = read_arrays(path, nbytes_of(like), manifest["state"])
        if manifest["format"] == 1:
            arrays, manifest["host"] = from_format_1(arrays, manifest["host"])
        if manifest["format"] < 3:
            arrays = with_added(arrays, named_arrays(like), self.added)
        tree = fit(convert(arrays), like, path)
        files = sorted(manifest["replay"].items())
        most = limit * (nbytes_of(row) + 16)  # each lane has a start and a count beside its rows
        rows = []
        for name, entry in files:
            path = self.folder / "replay" / name
            rows.append(read_arrays(path, most, entry))
            check_rows(rows[-1], row, limit, path)
        self.rows = dict(files)
        return Saved(step, tree, rows, manifest["host"])

    def newest(
        self, like: Any, row: Mapping[str, Any], limit: int, check: Callable, convert: Callable
    ) -> tuple[Saved | None, list[str]]:
        """The newest intact checkpoint, and the problems of those that were skipped."""
        problems: list[str] = []
        for step in reversed(self.steps()):
            try:
                saved = self.read(step, like, row, limit, convert)
                check(saved)
            except CheckpointError as error:
                problems.append(str(error))
            else:
                return saved, problems
        return None, problems


def from_format_1(
    arrays: Mapping[str, np.ndarray], host: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Convert format 1 to format 2: format 1 did not separate the planner's memory from the
    agent's, and had neither an evaluation in progress nor named numbers."""
    names = {f"memory.{name}": f"memory.plan.{name}" for name in ("mean", "elites")}
    renamed = {names.get(name, name): x for name, x in arrays.items()}
    return renamed, {"evaluating": None, "numbers": [], **host}


def with_added(
    arrays: Mapping[str, np.ndarray], wanted: Mapping[str, Any], added: str
) -> dict[str, np.ndarray]:
    """The arrays with those that an agent did not keep before format 3, by the pattern of their
    names. Zeros do, because the settings that read them were off."""
    new = {name: x for name, x in wanted.items() if added and re.search(added, name)}
    if any(name in arrays for name in new):
        return dict(arrays)
    return {**arrays, **{name: np.zeros(x.shape, x.dtype) for name, x in new.items()}}


def check_rows(
    found: Mapping[str, np.ndarray], row: Mapping[str, Any], limit: int, path: Path
) -> None:
    """Refuse replay rows that do not have the shapes and types of `row`."""
    start, count = found.get("start"), found.get("count")
    if start is None or count is None or found.keys() != {*row, "start", "count"}:
        raise CheckpointError(f"{path} does not have the arrays of replay rows")
    whole = all(x.dtype == np.int64 and x.ndim == 1 for x in (start, count))
    whole = whole and start.shape == count.shape and (start >= 0).all() and (count >= 0).all()
    if not whole or (start > 2**53).any() or (count > limit).any():
        raise CheckpointError(f"{path}: its start and count are not valid row numbers")
    for name, like in row.items():
        shape = (int(count.sum()), *like.shape)
        if found[name].shape != shape or found[name].dtype != like.dtype:
            raise CheckpointError(
                f"{path}: {name} is {found[name].dtype}{list(found[name].shape)}, "
                f"expected {like.dtype}{list(shape)}"
            )
        if np.issubdtype(like.dtype, np.floating) and not np.isfinite(found[name]).all():
            raise CheckpointError(f"{path}: {name} has numbers that are not finite")
