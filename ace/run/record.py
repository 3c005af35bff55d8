"""What a run records, and shows while it runs: CSV rows per lane, optional TensorBoard
scalars, a console display, and the versions that produced them. The training loop only calls
`Recorder`; nothing here feeds back into training."""

import csv
import importlib
import importlib.metadata
import io
import json
import os
import platform
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, SupportsFloat

from ace.run.display import Display, LaneInfo, text
from ace.settings.config import ConfigError

TRAIN_COLUMNS = ("lane", "seed", "task", "env_step", "return", "episode_length", "wall_time")
EVAL_COLUMNS = (*TRAIN_COLUMNS[:5], "policy_return", "train_return", "value_bias")
EVAL_COLUMNS += ("value_bias_std", "episode_length", "wall_time")
PACKAGES = {
    "ace": "ace-planner",
    "dm_control": "dm_control",
    "gymnasium": "gymnasium",
    "jax": "jax",
    "jaxlib": "jaxlib",
    "mujoco": "mujoco",
    "numpy": "numpy",
    "optax": "optax",
}  # module name -> distribution name


class CsvLog:
    """A CSV file that grows by whole, flushed lines and can be continued after a crash."""

    def __init__(self, path: Path, columns: Sequence[str], resume_at: int | None = None) -> None:
        self.columns = tuple(columns)
        self.wall_time = 0.0
        kept = _complete_lines(path)
        if kept:
            try:
                kept = self._with_columns(path, kept)
                kept = kept[:1] + [line for line in kept[1:] if self._keep(line, resume_at)]
            except ConfigError:
                raise
            except ValueError as error:
                raise ConfigError(
                    f"{path} has a line that is not a row of its columns ({error}); restore the "
                    "file, or remove the line"
                ) from None
        else:
            kept = [_csv_line(columns)]
        _write_atomically(path, "".join(kept))
        self._file = path.open("a", newline="")

    def _with_columns(self, path: Path, lines: list[str]) -> list[str]:
        """The lines with the columns of today; those that an older version did not write stay
        empty."""
        header, *rows = csv.reader(lines)
        if set(header) - set(self.columns) or len(set(header)) < len(header):
            raise ConfigError(
                f"{path} has other columns than this run writes; use a new run folder "
                f"(found '{lines[0].strip()}')"
            )
        if tuple(header) == self.columns:
            return lines
        named = [dict(zip(header, row, strict=True)) for row in rows]
        return [
            _csv_line(self.columns),
            *(_csv_line(row.get(name) for name in self.columns) for row in named),
        ]

    def _keep(self, line: str, resume_at: int | None) -> bool:
        row = dict(zip(self.columns, next(csv.reader([line])), strict=True))
        keep = resume_at is None or int(row["env_step"]) <= resume_at
        if keep:
            self.wall_time = max(self.wall_time, float(row.get("wall_time", 0)))
        return keep

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row; columns that `row` lacks stay empty."""
        # One write call per line, so that neither a reader nor a kill sees half a row.
        self._file.write(_csv_line(row.get(name) for name in self.columns))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Recorder:
    """Writes what a run measures into its folder and shows it on the console."""

    def __init__(
        self,
        folder: Path,
        lanes: Sequence[LaneInfo],
        total_env_steps: int,
        tensorboard: bool = False,
        quiet: bool = False,
        *,
        metric_names: Sequence[str] = (),
        numbers: Sequence[str] = (),
        resume_at: int | None = None,
        evaluations_until: int | None = None,
    ) -> None:
        """`numbers` are the tasks' named numbers. `resume_at` drops rows past that env step, which
        a resumed run will write again; `evaluations_until` is the same for evaluations alone."""
        taken = {*TRAIN_COLUMNS, *EVAL_COLUMNS, *metric_names} & {*numbers}
        if taken:
            raise ValueError(f"the task's numbers {sorted(taken)} are columns already; rename them")
        self._lanes = {info.lane: info for info in lanes}
        self._metric_names = frozenset(metric_names)
        self._numbers = frozenset(numbers)
        self._writers = _tensorboard_writers(folder, lanes) if tensorboard else {}
        columns = (*TRAIN_COLUMNS, *numbers, *metric_names)
        self._train = CsvLog(folder / "train.csv", columns, resume_at)
        until = resume_at if evaluations_until is None else evaluations_until
        self._eval = CsvLog(folder / "eval.csv", (*EVAL_COLUMNS, *numbers), until)
        # Returns of the training episodes so far, and the env step of the last evaluation.
        self._returns: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
        for row in read_csv(folder / "train.csv"):
            self._returns[row["lane"]].append((row["env_step"], row["return"]))
        rows = read_csv(folder / "eval.csv")
        self._evaluated = defaultdict(int, {row["lane"]: row["env_step"] for row in rows})
        # The wall time of a resumed run includes the time already spent.
        spent = max(self._train.wall_time, self._eval.wall_time)
        self._start = time.monotonic() - spent
        self._display = Display(lanes, total_env_steps, quiet)

    def __enter__(self) -> Self:
        self._display.start()
        return self

    def __exit__(self, *_: object) -> None:
        for log in (self._train, self._eval, *self._writers.values()):
            log.close()
        self._display.stop()

    def episode(
        self,
        lane: int,
        env_step: int,
        ret: SupportsFloat,
        length: int,
        metrics: Mapping[str, SupportsFloat],
        numbers: Mapping[str, SupportsFloat] = MappingProxyType({}),
    ) -> None:
        """Record one finished training episode, the task's numbers of it, and the training metrics
        at that time."""
        if unknown := metrics.keys() - self._metric_names:
            raise ValueError(f"metrics {sorted(unknown)} are not in metric_names; add them there")
        self._check_numbers(numbers)
        values = {"return": ret, "episode_length": length, **numbers, **metrics}
        self._train.write({**self._row(lane, env_step), **values})
        self._returns[lane].append((env_step, float(ret)))
        self._display.views[lane].recent.append(float(ret))
        self._scalars("train", lane, env_step, values)

    def evaluation(
        self,
        lane: int,
        env_step: int,
        ret: SupportsFloat,
        policy_ret: SupportsFloat | None,
        length: SupportsFloat,
        numbers: Mapping[str, SupportsFloat] = MappingProxyType({}),
        bias: tuple[float, float] | None = None,
    ) -> None:
        """Record one evaluation: mean return of the agent and of its policy alone, if that was
        played too, means of the task's numbers, and mean and deviation of the critics' bias."""
        self._check_numbers(numbers)
        values = {"return": ret, "policy_return": policy_ret, "episode_length": length, **numbers}
        values["train_return"] = self._train_return(lane, env_step)
        values |= dict(zip(("value_bias", "value_bias_std"), bias or (None, None), strict=True))
        self._eval.write({**self._row(lane, env_step), **values})
        view = self._display.views[lane]
        view.eval_return = float(ret)
        view.policy_return = None if policy_ret is None else float(policy_ret)
        self._display.evaluation(self._lanes[lane], env_step)
        self._scalars("eval", lane, env_step, values)

    def _train_return(self, lane: int, env_step: int) -> float | None:
        """Mean return of the training episodes that ended since the evaluation before."""
        begun, self._evaluated[lane] = self._evaluated[lane], env_step
        recent = [ret for step, ret in self._returns[lane] if begun < step <= env_step]
        return sum(recent) / len(recent) if recent else None

    def progress(self, env_step: int, **counters: Any) -> None:
        """Show how far the run is; cheap enough to call at every agent step."""
        # Counters may be device arrays: reading one waits for the device, so only a redraw does.
        self._display.progress(env_step, counters)

    def status(self, text: str) -> None:
        """Show what the run does while it takes no steps ("compiling"); '' ends it. This time does
        not count in the rate of steps."""
        self._display.status(text)

    def message(self, text: str) -> None:
        """Print a line for the user."""
        self._display.message(text)

    def _check_numbers(self, numbers: Mapping[str, SupportsFloat]) -> None:
        if unknown := numbers.keys() - self._numbers:
            raise ValueError(f"numbers {sorted(unknown)} were not announced; pass them to Recorder")

    def _row(self, lane: int, env_step: int) -> dict[str, Any]:
        info = self._lanes[lane]
        wall = f"{time.monotonic() - self._start:.2f}"
        identity = {"lane": lane, "seed": info.seed, "task": info.task}
        return {**identity, "env_step": env_step, "wall_time": wall}

    def _scalars(self, group: str, lane: int, env_step: int, values: Mapping[str, Any]) -> None:
        if writer := self._writers.get(lane):
            for name, value in values.items():
                if value is not None:
                    writer.add_scalar(f"{group}/{name}", float(value), env_step)


def write_json(path: Path, obj: Any) -> None:
    """Write `obj` as JSON so that a reader sees the old file or the new one, never a part."""
    _write_atomically(path, json.dumps(obj, indent=2, sort_keys=True) + "\n")


def read_csv(path: Path) -> list[dict[str, Any]]:
    """Rows of a CSV file; wholly numeric columns become int or float, their gaps NaN."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        rows: list[dict[str, Any]] = list(reader)
        names = reader.fieldnames or ()
    for name in names:
        for row, value in zip(rows, _numbers([row[name] for row in rows]), strict=True):
            row[name] = value
    return rows


def versions() -> dict[str, Any]:
    """The software and hardware that a result depends on."""
    import jax

    devices = jax.devices()
    commit, dirty = _git_state(Path(__file__).parent)
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": {module: _version(module, dist) for module, dist in PACKAGES.items()},
        "device": devices[0].device_kind,
        "device_count": len(devices),
        "commit": commit,
        "dirty": dirty,
    }


def _csv_line(values: Iterable[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow([text(value) for value in values])
    return line.getvalue()


def _complete_lines(path: Path) -> list[str]:
    """Lines of an earlier file, less a last one that a crash cut short."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [line for line in file if line.endswith("\n")]


def _write_atomically(path: Path, content: str) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", newline="") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _numbers(values: Sequence[str]) -> Sequence[Any]:
    for kind in (int, float):
        try:
            return [kind(value) if value else float("nan") for value in values]
        except ValueError:
            continue
    return values


def _tensorboard_writers(folder: Path, lanes: Sequence[LaneInfo]) -> dict[int, Any]:
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ConfigError("--tensorboard needs tensorboardX: pip install tensorboardX") from error
    return {
        info.lane: SummaryWriter(str(folder / "tb" / f"lane-{info.lane}"), flush_secs=10)
        for info in lanes
    }


def _version(module: str, distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        pass
    # A package that was put on the path without its metadata can still name its version.
    try:
        return getattr(importlib.import_module(module), "__version__", None)
    except Exception:  # a broken optional package must not stop a run that does not use it
        return None


def _git_state(folder: Path) -> tuple[str | None, bool | None]:
    """Commit of the source tree and whether it has changes, or (None, None)."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        # No time limit: on a busy machine it would turn a known commit into an unknown one.
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        # Fails for an installed copy that merely lies inside some other repository.
        git("ls-files", "--error-unmatch", "record.py")
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "-uno"))
    except (OSError, subprocess.SubprocessError):
        return None, None
