"""A job's folder on two machines. The node takes a snapshot while the program goes on; the driver
copies what it lacks and puts it in place in an order that leaves a run that can be continued,
wherever the copying is cut off."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ace.run.agent_file import AGENT_FILE
from ace.run.checkpoint import CheckpointError, Checkpoints

CHUNK = 8 * 2**20  # bytes of a file that travel at once
INCOMING = "incoming"  # folder of files that are not yet in place
# A resumed run drops rows past its checkpoint but cannot make up for missing ones: the node reads
# rows after the checkpoint, and the driver puts them in place before it. Evaluations are recorded
# before the next agents are saved, so eval.csv is read after the agents and placed before them.
ROWS = ("run/train.csv", "run/eval.csv")
AGENTS = f"run/{AGENT_FILE}"
CONFIG = "run/config.json"
ABOUT = (CONFIG, "run/versions.json", "done.json")
STEPS = "run/checkpoints"
# What a maze records comes before the rows of its evaluation, which say that it is there.
EXPLORED_ROWS, EXPLORED = "run/exploration.csv", "run/exploration"


class Entry(NamedTuple):
    """A file of a snapshot."""

    name: str  # relative to the job's folder
    size: int
    sha256: str = ""  # of replay files: those are never written twice, so they travel once


def newest(folder: Path) -> int:
    """Agent step of a job's newest checkpoint; -1 if there is none."""
    return max(Checkpoints(folder / "run").steps(), default=-1)


def take_snapshot(folder: Path, into: Path, checkpoint: bool) -> list[Entry]:
    """Put the files of a job as they are now into another folder of the same disk; what the driver
    must put in place first comes first."""
    shutil.rmtree(into, ignore_errors=True)
    replay, state = _link_checkpoint(folder, into) if checkpoint else ([], [])
    agents = [AGENTS] if _link(folder / AGENTS, into / AGENTS) else []
    copied = [name for name in (*ABOUT, *ROWS) if _copy(folder / name, into / name)]
    explored = [name for name in _explored(folder) if _link(folder / name, into / name)]
    explored += [EXPLORED_ROWS] if _copy(folder / EXPLORED_ROWS, into / EXPLORED_ROWS) else []
    sizes = {name: (into / name).stat().st_size for name in (*explored, *copied, *agents, *state)}
    return [*replay, *(Entry(name, size) for name, size in sizes.items())]


def _link_checkpoint(folder: Path, into: Path) -> tuple[list[Entry], list[str]]:
    """Hard links to the newest checkpoint: the program may delete the original files meanwhile."""
    files = Checkpoints(folder / "run")
    for step in reversed(files.steps()):
        try:
            rows = files.manifest(step)["replay"]
        except CheckpointError:
            continue
        replay = {f"{STEPS}/replay/{name}": about for name, about in rows.items()}
        state = [f"{STEPS}/{step}/{name}" for name in ("state.safetensors", "manifest.json")]
        if all(_link(folder / name, into / name) for name in (*replay, *state)):
            entries = [Entry(n, about["bytes"], about["sha256"]) for n, about in replay.items()]
            return entries, state
    return [], []


def _explored(folder: Path) -> list[str]:
    """The files that a maze's evaluations left; none is written twice."""
    return [f"{EXPLORED}/{path.name}" for path in (folder / EXPLORED).glob("*.safetensors")]


def _link(path: Path, into: Path) -> bool:
    into.parent.mkdir(parents=True, exist_ok=True)
    try:
        into.unlink(missing_ok=True)
        into.hardlink_to(path)
    except FileNotFoundError:
        return False
    return True


def _copy(path: Path, into: Path) -> bool:
    """Copy a file that grows by whole lines or is replaced as a whole."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return False
    into.parent.mkdir(parents=True, exist_ok=True)
    into.write_bytes(data)
    return True


def to_send(folder: Path) -> list[Entry]:
    """The files from which a run goes on elsewhere: its config too, since the node must be able to
    see whether the run was begun with the settings that it has there."""
    run = folder / "run"
    names = (CONFIG, *ROWS, AGENTS, EXPLORED_ROWS, *_explored(folder))
    paths = [folder / name for name in names] + sorted((run / "checkpoints").glob("*/*"))
    whole = [p for p in paths if p.is_file() and not (p.parent.suffix or p.suffix == ".new")]
    return [Entry(p.relative_to(folder).as_posix(), p.stat().st_size) for p in whole]


def write_part(path: Path, offset: int, data: bytes) -> None:
    """Write a part of a file; parts come in order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if offset else "wb") as file:
        file.seek(offset)
        file.write(data)


def read_part(path: Path, offset: int) -> bytes:
    """The next part of a file."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(CHUNK)


def lacking(folder: Path, entries: Iterable[Entry]) -> list[Entry]:
    """The files of a snapshot that the driver must copy."""
    files, known = Checkpoints(folder / "run"), {}
    for step in files.steps():
        try:
            rows = files.manifest(step)["replay"]
        except CheckpointError:
            continue
        known |= {f"{STEPS}/replay/{n}": about["sha256"] for n, about in rows.items()}

    def there(entry: Entry) -> bool:
        once = entry.name.startswith(f"{EXPLORED}/")
        same = entry.sha256 and known.get(entry.name) == entry.sha256
        return bool(once or same) and (folder / entry.name).is_file()

    return [entry for entry in entries if not there(entry)]


def put_in_place(folder: Path, entries: Iterable[Entry]) -> None:
    """Move a snapshot, all of whose files have arrived, from `incoming` into the job's folder."""
    incoming = folder / INCOMING
    for entry in entries:
        source, target = incoming / entry.name, folder / entry.name
        if entry.name.startswith(f"{STEPS}/") and not entry.sha256:
            source, target = source.parent, target.parent  # a checkpoint appears as a whole
            if not source.exists():
                continue
            shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        source.replace(target)
    shutil.rmtree(incoming, ignore_errors=True)
    if (folder / STEPS).exists():
        Checkpoints(folder / "run").forget_old()
