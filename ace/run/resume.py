"""Saving and resuming a run: what a checkpoint holds, and how the run is restored from it.

The state on the device is saved as it is. Simulators are not saved: an episode is a function of its
seed and its actions, so its actions are replayed. If that gives another observation than the saved
one, the environment is not deterministic, and the run continues with a new episode.
"""

import fcntl
import functools
import math
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ace import replay
from ace.engine.program import Program, RunState, Trees
from ace.envs import EpisodeNumbers, get_spec
from ace.run.checkpoint import CheckpointError, Checkpoints, Saved, named_arrays
from ace.run.collect import COUNTS, Collector
from ace.settings.config import ConfigError


class Progress(NamedTuple):
    """Where a run stands, apart from its device state and its simulators."""

    agent_step: int
    next_evaluation: int  # env step
    evaluating: int | None  # agent step of the evaluation in progress
    owed: np.ndarray  # [L] updates earned and not yet made, times learn.update_every
    ended: np.ndarray  # [L] lanes whose episode ended with the last step
    metrics: jax.Array | None  # [L, M] of the last update; none before the first


class Keeper:
    """Writes the checkpoints of a run in the background and loads them."""

    def __init__(self, program: Program, folder: Path, capacity: int):
        self.program, self.capacity = program, capacity
        self._names = program.agent.metrics
        self.files = Checkpoints(folder, program.agent.added)
        self.saved = np.zeros(len(program.setups), int)  # [L] rows of the replay on disk
        self.ends: dict[str, np.ndarray] = {}  # [L] row at which each replay file ends
        self.writer: threading.Thread | None = None
        self.failure: Exception | None = None

    def save(self, state: RunState, at: Progress, collector: Collector) -> None:
        """Copy the state off the device, then write it in the background.

        Nothing is compiled here: a signal may have come while XLA is busy with other functions.
        """
        self.wait()
        now = collector.rows(at.agent_step)
        pending = self.program.rows(state, now, now + 1)["obs"]
        rest = self._rest(state.replay, at.metrics, pending)
        arrays = named_arrays(self._state(*state.fetch(rest)))
        start = np.maximum(self.saved, now - self.capacity)
        rows = {}
        if (now > start).any():
            found = self.program.rows(state, start, now)
            rows = found | {"start": start, "count": now - start}
        name = f"{at.agent_step:010d}.safetensors"
        useless = [n for n, end in self.ends.items() if (end <= now - self.capacity).all()]
        host = {
            "next_evaluation": at.next_evaluation,
            "evaluating": at.evaluating,
            "owed": at.owed.tolist(),
            "ended": at.ended.tolist(),
            "learned": at.metrics is not None,
            **collector.state(),
        }

        def work() -> None:
            try:
                self.files.write(at.agent_step, arrays, rows, host, useless)
            except Exception as error:
                self.failure = error

        self.saved = now
        self.ends = {n: end for n, end in self.ends.items() if n not in useless} | {name: now}
        self.writer = threading.Thread(target=work)
        self.writer.start()

    def rewind(self, rows: np.ndarray) -> None:
        """The replay dropped all rows from `rows` [L] on: new ones must be saved there."""
        self.saved = np.minimum(self.saved, rows)

    def wait(self) -> None:
        """Wait for the last save."""
        if self.writer:
            self.writer.join()
            self.writer = None
        self.check()

    def check(self) -> None:
        """Raise the error of the last save, if it failed."""
        if self.failure:
            error, self.failure = self.failure, None
            raise OSError(
                f"the checkpoint could not be written ({error}); the one before it is intact"
            ) from error

    def _rest(self, store: replay.Replay, metrics: Any, pending: Any) -> dict[str, Any]:
        """What each checkpoint saves besides learner, memory and the new replay rows; `pending` are
        the observations [L, O] to act on next."""
        lanes = len(self.program.setups)
        return {
            "tree": store.tree,
            "cursor": store.cursor,
            "length": store.length,
            "stored": store.stored,
            "pending": pending,
            "metrics": np.zeros((lanes, len(self._names)), "f4") if metrics is None else metrics,
        }

    def _state(self, learner: Any, memory: Any, rest: dict[str, Any]) -> dict[str, Any]:
        """The state in every checkpoint, by the names it has there; without replay rows."""
        metrics = {name: rest["metrics"][:, i] for i, name in enumerate(self._names)}
        return rest | {"learner": learner, "memory": memory, "metrics": metrics}

    def load(self, collector: Collector) -> tuple[RunState, Progress, list[str]] | None:
        """The newest intact checkpoint and notes for the user; restores the simulators too."""
        if not self.files.steps():
            return None
        lanes = len(self.program.setups)
        like, rows = self._like
        row = {n: jax.ShapeDtypeStruct(x.shape[2:], x.dtype) for n, x in rows.items()}
        saved, notes = self.files.newest(
            like, row, lanes * self.capacity, self._check, self._extend
        )
        if saved is None:
            raise ConfigError(f"no checkpoint of this run is intact: {'; '.join(notes)}")
        store = {name: np.zeros(x.shape, x.dtype) for name, x in rows.items()}
        end = np.zeros(lanes, int)
        for name, found in zip(self.files.rows, saved.rows, strict=True):
            self.ends[name] = end = self._place(store, found, end)
        tree, host = saved.tree, saved.host
        collector.load(host)
        self.saved = collector.rows(saved.agent_step)
        store["obs"][np.arange(lanes), tree["cursor"]] = tree["pending"]
        counters = {name: np.array(tree[name]) for name in ("cursor", "length", "stored")}
        notes += self._rejoin(collector, store, counters, tree["pending"])
        parts: dict[str, Any] = store | counters | {"tree": tree["tree"]}
        ring = self.program.shapes(self.capacity).replay._replace(**parts)
        metrics = [tree["metrics"][name] for name in self._names]
        return (
            self.program.put_state(Trees(tree["learner"], tree["memory"], ring)),
            Progress(
                saved.agent_step,
                host["next_evaluation"],
                host["evaluating"],
                np.array(host["owed"], int),
                np.array(host["ended"], bool),
                jnp.asarray(np.stack(metrics, 1)) if host["learned"] and metrics else None,
            ),
            notes,
        )

    @functools.cached_property
    def _like(self) -> tuple[Any, dict[str, jax.ShapeDtypeStruct]]:
        """Shapes and types of `_state`, and of the replay arrays, whose rows are saved apart."""
        shapes = self.program.shapes(self.capacity)
        obs = shapes.replay.obs
        pending = jax.ShapeDtypeStruct((obs.shape[0], obs.shape[2]), obs.dtype)
        rest = jax.eval_shape(
            lambda *parts: self._rest(parts[0], None, parts[1]), shapes.replay, pending
        )
        tree = jax.eval_shape(self._state, shapes.learner, shapes.memory, rest)
        return tree, {name: getattr(shapes.replay, name) for name in replay.STEPS}

    def _extend(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The arrays of a larger replay, if the run was made longer after they were saved."""
        leaves, wanted = arrays.get("tree.sums.0"), self._like[0]["tree"].sums[0]
        if leaves is None or leaves.ndim != 2 or leaves.shape[0] != wanted.shape[0]:
            return arrays
        more = wanted.shape[1] - leaves.shape[1]
        # Slots keep their indices only if no lane has wrapped around its ring.
        if more <= 0 or (arrays.get("cursor", np.inf) >= leaves.shape[1]).any():
            return arrays
        wide = jnp.pad(jnp.asarray(leaves), ((0, 0), (0, more)))
        tree = jax.device_get(jax.vmap(replay.build_tree)(wide))
        kept = {name: x for name, x in arrays.items() if not name.startswith("tree.")}
        return kept | named_arrays({"tree": tree})

    def _check(self, saved: Saved) -> None:
        """Refuse counters that no run of this config could have written."""
        name = self.files.folder / str(saved.agent_step)
        try:
            whole = self._fits_together(saved)
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(f"{name} lacks counters ({error!r:.100})") from None
        if not whole:
            raise CheckpointError(f"{name} has counters that do not fit together")

    def _fits_together(self, saved: Saved) -> bool:
        config, tree, host = self.program.config, saved.tree, saved.host
        steps = config.agent_steps
        shape, integer = (len(self.program.setups),), np.dtype(int)

        def within(low: Any, x: Any, high: Any) -> bool:
            x = np.asarray(x)
            right = x.shape in (shape, ()) and np.issubdtype(x.dtype, np.integer)
            return right and bool(((low <= x) & (x <= high)).all())

        counts = {name: np.array(host[name]) for name in (*COUNTS, "owed")}
        if not within(0, saved.agent_step, steps) or type(host["next_evaluation"]) is not int:
            return False
        evaluating = host["evaluating"]
        if evaluating is not None and type(evaluating) is not int:
            return False
        if not within(0, evaluating or 0, saved.agent_step):
            return False
        if any(x.dtype != integer or x.shape != shape for x in counts.values()):
            return False
        if any(np.shape(host[name]) != shape for name in ("returns", "ended")):
            return False
        if type(host["learned"]) is not bool or not np.isfinite(np.array(host["returns"])).all():
            return False
        if not numbers_fit(self.program, host["numbers"], counts["lengths"]):
            return False
        now = saved.agent_step + counts["episodes"] - counts["void"]
        ends = [rows["start"] + rows["count"] for rows in saved.rows]
        return (
            within(0, counts["episodes"], saved.agent_step)
            and within(0, counts["faults"], counts["episodes"])
            and within(0, counts["lengths"], config.env_steps + config.action_repeat)
            and within(0, counts["owed"], steps * config.learn.updates_per_step)
            and within(0, now, 2 * steps)
            and within(0, tree["length"], now)
            and within(1, tree["stored"], self.capacity)
            and bool((tree["cursor"] == now % self.capacity).all())
            and all(within(0, end, 2 * steps) for end in ends)
            and (bool((ends[-1] >= now).all()) if ends else not now.any())
        )

    def _place(
        self, store: dict[str, np.ndarray], rows: dict[str, np.ndarray], end: np.ndarray
    ) -> np.ndarray:
        """Write the rows of one file into the replay; returns the row [L] at which they end.

        Rows from its start to the `end` of the file before were dropped later: they are cleared.
        """
        begin = 0
        for lane, (start, count) in enumerate(zip(rows["start"], rows["count"], strict=True)):
            dropped = np.arange(start, end[lane]) % self.capacity
            slots = (start + np.arange(count)) % self.capacity
            for name in replay.STEPS:
                store[name][lane, dropped] = 0
                store[name][lane, slots] = rows[name][begin : begin + count]
            begin += count
        return rows["start"] + rows["count"]

    def _rejoin(
        self, collector: Collector, store: dict, counters: dict, pending: np.ndarray
    ) -> list[str]:
        """Replay the running episodes; start a new one where the last observation differs."""
        actions = [
            store["action"][lane, (cursor - length + np.arange(length)) % self.capacity]
            for lane, (cursor, length) in enumerate(
                zip(counters["cursor"], counters["length"], strict=True)
            )
        ]
        obs = collector.envs.restore(collector.episodes, actions)
        lost = np.flatnonzero((obs != pending).any(1))
        if not lost.size:
            return []
        for lane in lost:  # keep its stored steps as a truncated episode
            store["final"][lane, counters["cursor"][lane]] = True
            counters["cursor"][lane] = (counters["cursor"][lane] + 1) % self.capacity
            counters["length"][lane] = 0
            counters["stored"][lane] = min(counters["stored"][lane] + 1, self.capacity)
            actions[lane] = actions[lane][:0]
            collector.begin_anew(int(lane))
        obs = collector.envs.restore(collector.episodes, actions)
        store["obs"][lost, counters["cursor"][lost]] = obs[lost]
        names = ", ".join(f"{i} ({self.program.setups[i].task})" for i in lost)
        return [f"lane {names}: the simulator did not reproduce its episode, so a new one begins"]


def numbers_fit(program: Program, numbers: Any, lengths: np.ndarray) -> bool:
    """Whether saved named numbers can be those of running episodes of such lengths."""
    if type(numbers) is not list:
        return False
    if numbers:  # none in a checkpoint of format 1
        EpisodeNumbers([get_spec(s.task) for s in program.setups]).load(numbers)
    return all(
        type(steps) is int
        and 0 <= steps <= length
        and (values is None or all(type(x) is float and math.isfinite(x) for x in values))
        for (steps, values), length in zip(numbers, lengths, strict=False)
    )


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Make a run folder; a failed write inside raises an OSError that says what to do."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot make {folder} ({error.strerror}); choose another --run") from error
    try:
        yield
    except OSError as error:
        saved = Checkpoints(folder).steps()
        safe = f"agent step {saved[-1]} is saved" if saved else "nothing is saved yet"
        again = f"`ace resume {folder}` goes on"
        if not (folder / "config.json").exists():
            again = "give the command again"
        raise OSError(f"{error}; {safe}; free space or repair {folder}, then {again}") from error


@contextmanager
def unmade(folder: Path) -> Iterator[None]:
    """Take a new run folder away again if the run inside cannot begin."""
    new = not (folder / "config.json").exists()
    try:
        yield
    except Exception:
        made = {"config.json", "lock"}
        with suppress(OSError):
            if new and {path.name for path in folder.iterdir()} <= made:
                for name in made:
                    (folder / name).unlink(missing_ok=True)
                folder.rmdir()
        raise


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Lock a run folder for this process, or raise a ConfigError that names the holder."""
    path = folder / "lock"
    # Do not follow a symlink: the folder may come from an untrusted source.
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            f.seek(0)
            raise ConfigError(
                f"{folder} is in use by {f.read().strip() or 'another process'}; "
                "wait for it, or stop it, or choose another --run"
            ) from None
        f.truncate(0)
        f.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        f.flush()
        yield
