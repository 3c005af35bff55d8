"""Mutated checkpoints: each is refused in one line or loads what was saved, and nothing else."""

import copy
import hashlib
import json
import os
import random
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ace.engine.program import Program
from ace.engine.resources import replay_capacity
from ace.run import request, resume
from ace.run.checkpoint import CheckpointError
from ace.run.collect import Collector
from ace.run.loop import Loop, train
from ace.run.pace import Pace
from ace.settings.config import ConfigError
from tests.run.helpers import PAIR, leaves

CASES = int(os.environ.get("ACE_FUZZ", 300))  # 10,000 in docs/reliability.md
SLOWEST = 5.0  # seconds of this process on a core: far above any load
HOSTILE = [
    *(0, -1, 1, 7, 2**31, 2**63, 10**30, -(10**30), 1.5, float("nan"), float("inf"), 1e308),
    *(None, True, False, "", "a", "../../outside/gift", "/etc/passwd", "0000000050.safetensors"),
    *([], {}, [[]], [0], [0, 0], [0, 0, 0], [-1, -1], [2**40, 2**40], ["a", "b"], [None, None]),
    {"bytes": 1, "sha256": "0"},
    {"../../outside/gift": {"bytes": 4, "sha256": "0"}},
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> tuple[Path, resume.Keeper, Collector]:
    """A run with two checkpoints, and what reads them."""
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    argv = [*PAIR, "--preset", "debug", "--quiet", "--run", str(folder)]
    run, step = request.plan_run(argv), Loop.step

    class Enough(Exception):
        pass

    def until(self: Loop) -> None:
        if self.agent_step in (30, 50):
            self.save()
        if self.agent_step == 55:
            self.keeper.wait()
            raise Enough
        step(self)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Enough):
        patch.setattr(Loop, "step", until)
        patch.setattr(Pace, "too_long", lambda *_: False)  # no checkpoint before the burst
        train(run)
    program = Program(run.agent, run.setups)
    keeper = resume.Keeper(program, folder, replay_capacity(run.setups))
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "gift").write_text("mine")
    return folder, keeper, Collector(program, 0)


def digest(folder: Path) -> dict[str, str]:
    """Checksum of every file, and where links lead."""
    return {
        str(p.relative_to(folder)): os.readlink(p)
        if p.is_symlink()
        else hashlib.sha256(p.read_bytes()).hexdigest()
        for p in folder.rglob("*")
        if p.is_symlink() or p.is_file()
    }


def seal(folder: Path, manifest: Any) -> None:
    """Write a manifest with the right checksum, as an attacker would."""
    body = json.dumps(manifest)
    sealed = {"sha256": hashlib.sha256(body.encode()).hexdigest(), "manifest": body}
    (folder / "manifest.json").write_text(json.dumps(sealed))


def manifest_of(folder: Path) -> Any:
    return json.loads(json.loads((folder / "manifest.json").read_text())["manifest"])


def random_file(root: Path, rng: random.Random) -> Path:
    return rng.choice(sorted(p for p in root.rglob("*") if p.is_file()))


def flip(root: Path, rng: random.Random) -> None:
    path = random_file(root, rng)
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 2, 8])):
        # Half of the damage in the first bytes, where the structure is.
        at = rng.randrange(min(len(data), 400)) if rng.random() < 0.5 else rng.randrange(len(data))
        data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def cut(root: Path, rng: random.Random) -> None:
    path = random_file(root, rng)
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])


def grow(root: Path, rng: random.Random) -> None:
    path = random_file(root, rng)
    with path.open("ab") as f:
        f.write(rng.randbytes(rng.choice([1, 8, 5000])))


def blank(root: Path, rng: random.Random) -> None:
    """A piece of zeros, as a lost block of a disk."""
    path = random_file(root, rng)
    data = bytearray(path.read_bytes())
    begin = rng.randrange(len(data))
    data[begin : begin + 512] = bytes(len(data[begin : begin + 512]))
    path.write_bytes(data)


def remove(root: Path, rng: random.Random) -> None:
    path = random_file(root, rng)
    path.unlink()
    how = rng.randrange(3)
    if how == 1:
        path.mkdir()
    elif how == 2:
        path.symlink_to(root.parent.parent / "outside" / "gift")


def places(tree: Any, path: tuple = ()) -> list[tuple]:
    """The path of every value in a JSON tree."""
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree)
    found = []
    for key, value in inside:
        found.append((*path, key))
        if isinstance(value, dict | list):
            found += places(value, (*path, key))
    return found


def rewrite_manifest(root: Path, rng: random.Random) -> None:
    """Hostile values under a right checksum."""
    folder = root / rng.choice(["30", "50"])
    manifest = manifest_of(folder)
    if rng.random() < 0.05:
        manifest = copy.deepcopy(rng.choice(HOSTILE))
    else:
        for _ in range(rng.choice([1, 1, 2, 3])):
            *above, last = rng.choice(places(manifest))
            node = manifest
            for key in above:
                node = node[key] if isinstance(node, dict | list) else {}
            if not isinstance(node, dict | list) or last not in (
                node if isinstance(node, dict) else range(len(node))
            ):
                continue
            if rng.random() < 0.2:
                del node[last]
            else:
                node[last] = copy.deepcopy(rng.choice(HOSTILE))
    seal(folder, manifest)


def rewrite_text(root: Path, rng: random.Random) -> None:
    """Things that JSON readers choke on."""
    texts = ["[" * 100_000, '{"a":' * 50_000, "1" * 10_000, "\ud800", "", "null", "{}", "[]", '""']
    texts += ['{"sha256": 1, "manifest": 2}', '{"sha256": "x", "manifest": "{}"}', "\x00", "NaN"]
    path = root / rng.choice(["30", "50"]) / "manifest.json"
    path.write_bytes(rng.choice(texts).encode("utf-8", "surrogatepass"))


def rewrite_arrays(root: Path, rng: random.Random) -> None:
    """Another header, or other counters, in an array file whose checksum is put right."""
    folder = root / rng.choice(["30", "50"])
    manifest = manifest_of(folder)
    files = [(folder / "state.safetensors", manifest["state"])]
    files += [(root / "replay" / n, manifest["replay"][n]) for n in manifest["replay"]]
    path, entry = rng.choice(files)
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + size]), bytearray(data[8 + size :])
    how = rng.randrange(5)
    if how == 0:  # a hostile header
        for _ in range(rng.choice([1, 2])):
            name = rng.choice(sorted(header))
            key = rng.choice(["dtype", "shape", "data_offsets"])
            odd = [*HOSTILE, "F64", "BF16", "F8_E4M3", "I64", "BOOL", [2**62, 4], [-1], [0, 2**62]]
            if isinstance(header[name], dict):
                header[name][key] = copy.deepcopy(rng.choice(odd))
    elif how == 1:  # a name too many or too few
        name = rng.choice(sorted(header))
        entry_of = header.pop(name)
        if rng.random() < 0.5:
            header[rng.choice(["../../outside/gift", "", "x" * 10_000, "start"])] = entry_of
    elif how == 2:  # other counters
        names = [n for n in ("start", "count", "cursor", "length", "stored") if n in header]
        begin, end = header[rng.choice(names)]["data_offsets"]
        wide = (end - begin) // 2 == 8
        value = rng.choice([-1, 0, 1, 5, 2**31 - 1, 2**62 if wide else 99, -(2**31)])
        width = 8 if wide else 4
        at = begin + width * rng.randrange((end - begin) // width)
        body[at : at + width] = value.to_bytes(width, "little", signed=True)
    elif how == 3:  # absurd sizes in front
        data = struct.pack("<Q", rng.choice([0, 1, 2**31, 2**63, 2**64 - 1])) + data[8:]
    else:  # numbers that are none
        at = 4 * rng.randrange(len(body) // 4)
        body[at : at + 4] = struct.pack("<f", rng.choice([float("nan"), float("inf"), -1e38]))
    if how != 3:
        text = json.dumps(header).encode()
        data = struct.pack("<Q", len(text)) + text + bytes(body)
    path.write_bytes(data)
    entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    seal(folder, manifest)


DAMAGE: tuple[Callable, ...] = (flip, cut, grow, blank, remove)
HOSTILITY: tuple[Callable, ...] = (rewrite_manifest, rewrite_text, rewrite_arrays)


def test_mutated_checkpoints_are_refused_or_load_what_was_saved(saved):
    folder, keeper, collector = saved
    root, spare = folder / "checkpoints", folder / "spare"
    shutil.copytree(root, spare)
    outside = digest(folder.parent / "outside")
    whole = leaves(load(keeper, collector)[0])
    shutil.rmtree(root / "50")
    before = leaves(load(keeper, collector)[0])
    rng = random.Random(0)
    outcomes = {"refused": 0, "newest": 0, "older": 0, "other": 0}
    for case in range(CASES):
        shutil.rmtree(root)
        shutil.copytree(spare, root)
        mutate = rng.choice(DAMAGE + HOSTILITY)
        mutate(root, rng)
        found = digest(root)
        begun = time.process_time()
        try:
            state, notes = load(keeper, collector)
        except (ConfigError, CheckpointError) as error:
            assert str(error) and "\n" not in str(error), (case, mutate, error)
            outcomes["refused"] += 1
        else:
            loaded = leaves(state)
            outcome = next(
                (n for n, x in (("newest", whole), ("older", before)) if same(loaded, x)), "other"
            )
            outcomes[outcome] += 1
            # Damage never changes what is loaded. A forged checksum can, but only its values.
            assert outcome != "other" or mutate in HOSTILITY, (case, mutate)
            assert outcome == "newest" or mutate in HOSTILITY or notes, (case, mutate)
            assert all("\n" not in note for note in notes)
            for name, x in whole.items():
                assert (loaded[name].shape, loaded[name].dtype) == (x.shape, x.dtype)
        assert time.process_time() - begun < SLOWEST, (case, mutate)
        assert digest(root) == found, (case, mutate)  # reading changes nothing
    assert digest(folder.parent / "outside") == outside
    assert min(outcomes.values()) > CASES // 250, outcomes
    print(outcomes)


def load(keeper: resume.Keeper, collector: Collector) -> tuple[Any, list[str]]:
    """The state that a continued run would start from."""
    found = resume.Keeper(keeper.program, keeper.files.folder.parent, keeper.capacity)
    found.__dict__["_like"] = keeper._like  # the same shapes: only computed once
    collector.envs._state = "idle"
    result = found.load(collector)
    if result is None:
        raise ConfigError("nothing there")
    return result[0], result[2]


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in other)
