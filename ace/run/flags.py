"""The flags of every command, and argv normalised for tyro: flags and names in any order, `1e6` for
a whole number, `0-4` for seeds, and one-line errors."""

import contextlib
import dataclasses
import difflib
import io
import itertools
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import tyro

from ace.settings.config import Config, ConfigError

T = TypeVar("T")
MOST_SEEDS = 10_000  # in one range: more is a typing error and would exhaust the memory


@dataclass(frozen=True)
class TrainArgs:
    """Train agents, one lane for each task, seed and varied setting, all in one program."""

    tasks: tyro.conf.Positional[tuple[str, ...]]
    """What to learn, as `ace tasks` lists them, gym/Id, or package.module:function."""
    config: Annotated[Config, tyro.conf.arg(name="")]
    seeds: tuple[int, ...] = (0,)
    """One lane per seed: 0 1 2, or 0,1,2, or 0-2."""
    preset: str = "default"
    """Starting point of all settings: default, paper, released, cpu or debug."""
    run: Path | None = None
    """Folder for everything that is written; by default runs/TASK-PRESET and what was changed."""
    agent: str = "ace"
    """Which agent learns; `ace info` lists them."""
    imports: Annotated[tuple[str, ...], tyro.conf.arg(name="import")] = ()
    """Modules to import first: they may register agents, planners and tasks of your own."""
    vary: tuple[str, ...] = ()
    """Lanes that differ in a setting: learn.td-lambda=0,0.2,0.8 (several are crossed)."""
    tensorboard: bool = False
    """Write TensorBoard files too."""
    quiet: bool = False
    """Print nothing but errors."""
    save_minutes: float = 10.0
    """Minutes between checkpoints; 0 saves only at the end and on a signal."""


@dataclass(frozen=True)
class ResumeArgs:
    """Continue an interrupted run; the command that started it does the same."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    env_steps: int | None = None
    """Train on to so many environment steps per lane: more than the run was made for."""
    tensorboard: bool = False
    """Write TensorBoard files too."""
    quiet: bool = False
    """Print nothing but errors."""
    save_minutes: float = 10.0
    """Minutes between checkpoints; 0 saves only at the end and on a signal."""


@dataclass(frozen=True)
class EvalArgs:
    """Evaluate the agents that a run has saved."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    episodes: int = 10
    """Episodes per lane, for the agent and, if it has one, for its policy alone."""
    video: bool = False
    """Film one episode of the first lane into video.mp4."""


@dataclass(frozen=True)
class DiagnoseArgs:
    """Diagnose how a run learned: values against returns, planner against policy, saturated
    actions, capped losses, clipped gradients; problems are listed at the end."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    episodes: int = 10
    """Episodes per lane of a new evaluation; 0 reads the run's files alone."""


@dataclass(frozen=True)
class ExportArgs:
    """Write what a trained agent plays, with its planner and by its policy alone, as files that
    need no training code."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    out: tyro.conf.Positional[Path]
    """A new folder."""
    lane: int = 0
    """Which lane of the run."""


@dataclass(frozen=True)
class SpeedArgs:
    """Measure planning, updates, simulators and a whole run. Settings of `ace train` may follow."""

    lanes: tuple[int, ...] = (1, 5, 16, 48)
    """Numbers of lanes, each a program of its own."""
    preset: str = "default"
    """Settings: default, paper, released, cpu or debug."""
    task: str = "dmc/quadruped-run"
    """What the lanes learn."""
    json: Path | None = None
    """Write everything that was measured to this file."""
    steps: int = 200
    """Calls of each part that are timed, after a warm-up."""
    profile: bool = False
    """List the kernels that take the most time."""


@dataclass(frozen=True)
class BenchArgs:
    """Run a suite of tasks, agents and seeds; what its results already have is skipped, and what
    was interrupted goes on."""

    suite: tyro.conf.Positional[str]
    """A suite's name (`ace bench list` shows them), or a TOML file of your own."""
    agents: tuple[str, ...] = ()
    """Only these of the suite's agents."""
    tasks: tuple[str, ...] = ()
    """Only these of the suite's tasks."""
    seeds: tuple[int, ...] = ()
    """Other seeds than the suite's: 0 1 2, or 0-2."""
    lanes: int | None = None
    """Most lanes of one program, if not as the suite says. Results depend on it by rounding."""
    dry_run: bool = False
    """Show the plan, with expected time and memory, and do nothing."""
    limit: Annotated[str, tyro.conf.arg(name="for")] = ""
    """Start only what will be finished in this time: 25m, 2h or 90s."""
    shard: str = ""
    """Only part I of N of the suite's programs: 1/4, 2/4, ... on four machines."""
    ray: str = ""
    """Run on a Ray cluster: auto, or its address."""
    reuse: tuple[Path, ...] = ()
    """Suites such as results/dmc15-500k: take curves that they have with the same settings."""
    results: Path = Path("results")
    """Where results are; the suite has a folder of its own inside."""
    work: Path = Path("runs/bench")
    """Where unfinished programs keep their state."""
    save_minutes: float = 5.0
    """Minutes between the checkpoints of a program."""
    quiet: bool = False
    """Print nothing but errors and the summary."""


@dataclass(frozen=True)
class CheckEnvArgs:
    """Check a task by playing it with random actions: sizes and bounds, how
    episodes end, numbers that are not finite, seeds, actions without effect, speed."""

    task: tyro.conf.Positional[str]
    """As `ace train` takes it: a name of `ace tasks`, gym/Id, or package.module:function."""
    steps: int = 2_000
    """Environment steps to play."""
    seed: int = 0
    """Seed of the environment and of the actions."""
    imports: Annotated[tuple[str, ...], tyro.conf.arg(name="import")] = ()
    """Modules to import first: they may register tasks of your own."""


@dataclass(frozen=True)
class TheoryArgs:
    """Check the paper's bounds on small random MDPs and on those that hill climbing finds, and draw
    how they depend on horizon, model error and novelty bias."""

    mdps: int = 10_000
    """Random MDPs for each statement; hill climbing tries its own number on top."""
    seed: int = 0
    """Seed of everything that is drawn."""
    out: Path = Path("runs/theory")
    """Folder for theory.csv, dependence.csv and the figure."""


class Words(NamedTuple):
    """A command line, split."""

    names: list[str]  # positional arguments
    flags: dict[str, list[str]]  # values of each flag that the command has
    others: list[str]  # flags that it does not have, each with its values


def train_args(agent: str, own: type | None) -> type[TrainArgs]:
    """The arguments of `ace train` for an agent: its own section joins the flags."""
    kind: Any = tyro.conf.Suppress[None]
    if own:
        kind = Annotated[own, tyro.conf.arg(name=agent, help=own.__doc__)]
    config = dataclasses.make_dataclass(
        "Config",
        [("own", kind, field(default_factory=own or type(None)))],
        bases=(Config,),
        frozen=True,
    )
    whole: Any = Annotated[config, tyro.conf.arg(name="")]
    made = dataclasses.make_dataclass(
        "TrainArgs", [("config", whole)], bases=(TrainArgs,), frozen=True
    )
    config.__doc__, made.__doc__ = Config.__doc__, TrainArgs.__doc__
    return made


def parse_train(cls: type[TrainArgs], argv: Sequence[str], config: Config) -> TrainArgs:
    """Flags of `ace train` over the defaults of a config; `cls` is made by `train_args`."""
    section: Any = next(f.type for f in dataclasses.fields(cls) if f.name == "config")
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(Config)}
    asked = parse(cls, argv, "ace train", cls((), get_args(section)[0](**values)))
    found = {name: getattr(asked.config, name) for name in values}
    return dataclasses.replace(asked, config=Config(**found))


def parse(
    cls: type[T],
    argv: Sequence[str],
    prog: str,
    default: T | None = None,
    others: list[str] | None = None,
) -> T:
    """Parse a command's arguments; a mistake raises a ConfigError of one line. Flags that the
    command does not have are appended to `others`, or refused if it is None."""
    start: dict[str, Any] = {} if default is None else {"default": default}
    if asks_help(argv):
        return tyro.cli(cls, args=["--help"], prog=prog, **start)
    known = kinds(cls)
    words = split(argv, known)
    if others is not None:
        others += words.others
    elif words.others:
        raise ConfigError(
            f"no flag {words.others[0]}; {nearest_flag(words.others[0], known, prog)}"
        )
    _check_names(cls, words.names, prog)
    spelled = (_spelled(name, known[name], values) for name, values in words.flags.items())
    given = [*words.names, *itertools.chain.from_iterable(spelled)]
    shown = io.StringIO()
    try:
        with contextlib.redirect_stderr(shown):
            return tyro.cli(cls, args=given, prog=prog, **start)
    except SystemExit:  # a type that `_regular` does not know
        raise ConfigError(_one_line(shown.getvalue())) from None


def asks_help(argv: Sequence[str]) -> bool:
    """Whether a help text is asked for."""
    return not {"-h", "--help"}.isdisjoint(argv)


def kinds(cls: Any, prefix: str = "") -> dict[str, Any]:
    """The type of every flag of a class, by its name without dashes in front."""
    found: dict[str, Any] = {}
    for f in dataclasses.fields(cls):
        kind, *marks = get_args(f.type) if get_origin(f.type) is Annotated else (f.type,)
        if tyro.conf.Positional in marks or tyro.conf.Suppress in marks or kind is Any:
            continue
        named = [mark.name for mark in marks if getattr(mark, "name", None) is not None]
        name = prefix + (named or [f.name])[0].replace("_", "-")
        if dataclasses.is_dataclass(kind):
            found |= kinds(kind, f"{name}." if name else "")
        else:
            found[name] = kind
    return found


def split(argv: Sequence[str], known: Mapping[str, Any]) -> Words:
    """Split a command line, with each value normalised by the type of its flag."""
    words, left = Words([], {}, []), deque(argv)
    while left:
        word = left.popleft()
        if not _is_flag(word):
            words.names.append(word)
            continue
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("_", "-")
        name = "seeds" if name == "seed" and "seeds" in known else name
        section, _, last = name.rpartition(".")
        positive = f"{section}.{last[3:]}".lstrip(".") if last.startswith("no-") else name
        if not flag.startswith("--") or not {name, positive} & known.keys():
            words.others.append(word)
            while left and not equals and not _is_flag(left[0]):
                words.others.append(left.popleft())
        elif name not in known:
            words.flags[positive] = ["false"]
        else:
            texts = [value] if equals else _take(left, name, known[name])
            texts = _regular(name, known[name], texts)
            joins = get_origin(known[name]) is tuple
            words.flags[name] = (words.flags.get(name, []) if joins else []) + texts
    return words


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not re.fullmatch(r"-\.?\d.*", word)


def _take(left: deque[str], name: str, kind: Any) -> list[str]:
    """Take the values of a flag off argv: as many as its type has, but no task names, unless it
    asks for them or for paths."""
    if kind is bool:
        return [left.popleft()] if left and left[0].lower() in ("true", "false") else ["true"]
    if get_origin(kind) is not tuple:
        if not left or _is_flag(left[0]):
            raise ConfigError(f"--{name} needs a value, as in --{name} {_example(kind)}")
        return [left.popleft()]
    found = []
    slashes = name == "tasks" or get_args(kind)[0] is Path
    while left and not _is_flag(left[0]):
        if not slashes and "=" not in left[0] and re.search("[/:]", left[0]):
            break
        found.append(left.popleft())
    if not found:
        example = {"seeds": "0 1 2", "import": "my_package.my_planner", "lanes": "1 5 16"}
        example |= {"tasks": "dmc/walker-run", "agents": "ace", "reuse": "results/dmc15-500k"}
        raise ConfigError(f"--{name} needs a value, as in --{name} {example.get(name, 'VALUE')}")
    return found


def _regular(name: str, kind: Any, texts: list[str]) -> list[str]:
    """Values in the form that tyro reads; refuse a value that does not fit its type."""
    if get_origin(kind) is tuple and get_args(kind)[0] is int:
        return [str(number) for text in texts for number in _numbers(name, text)]
    options = [option for option in get_args(kind) if option is not type(None)]
    if get_origin(kind) is Literal and texts[0] not in map(str, options):
        choices = ", ".join(map(str, options))
        raise ConfigError(f"--{name} is {texts[0]!r}; choose one of {choices}")
    kind = options[0] if len(options) == 1 else kind
    if kind is int:
        return [str(_whole(name, texts[0]))]
    if kind is bool and texts[0].lower() not in ("true", "false"):
        raise ConfigError(f"--{name} is {texts[0]!r}; it must be true or false")
    if kind is Path:
        check_path(f"--{name}", texts[0])
    if kind is float:
        try:
            float(texts[0])
        except ValueError:
            raise ConfigError(f"--{name} is {texts[0]!r}; it must be a number") from None
    return texts


def check_path(name: str, path: str | Path) -> Path:
    """A path that the user names. An empty one is refused: it would be the current folder."""
    if not str(path).strip():
        raise ConfigError(f"{name} is empty; give it a name")
    return Path(path)


def _numbers(name: str, text: str) -> list[int]:
    """The numbers of `3`, `0,1,2` or `0-4`."""
    found: list[int] = []
    for part in text.split(","):
        if ends := re.fullmatch(r"(\d+)-(\d+)", part):
            first, last = int(ends[1]), int(ends[2])
            if not 0 <= last - first < MOST_SEEDS:
                raise ConfigError(
                    f"--{name} {part}: a range must ascend, as in 0-4, with at most "
                    f"{MOST_SEEDS:,} numbers"
                )
            found += range(first, last + 1)
        else:
            found.append(_whole(name, part))
    return found


def read_seeds(text: str, name: str = "seeds") -> list[int]:
    """The seeds of `0 1 2`, `0,1,2` or `0-2`."""
    return [number for part in text.split() for number in _numbers(name, part)]


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        if (number := float(text)).is_integer():  # 1e6
            return int(number)
    except ValueError:
        pass
    raise ConfigError(f"--{name} is {text!r}; it must be a whole number")


def _spelled(name: str, kind: Any, values: list[str]) -> list[str]:
    """A flag and its values for tyro."""
    if kind is bool:
        section, dot, last = name.rpartition(".")
        return [f"--{name}" if values[0].lower() == "true" else f"--{section}{dot}no-{last}"]
    # With `=`, a value may begin with a dash.
    return [f"--{name}={values[0]}"] if len(values) == 1 else [f"--{name}", *values]


def _check_names(cls: Any, names: list[str], prog: str) -> None:
    """Refuse too many or too few positional arguments."""
    wanted = [f for f in dataclasses.fields(cls) if tyro.conf.Positional in get_args(f.type)]
    if any(get_origin(get_args(f.type)[0]) is tuple for f in wanted):
        return
    form = " ".join([prog, *(f.name.upper() for f in wanted)])
    if len(names) > len(wanted):
        raise ConfigError(f"{names[len(wanted)]!r} is one name too many: `{form}`")
    if len(names) < len(wanted) or not all(name.strip() for name in names):
        missing = wanted[min(len(names), len(wanted) - 1)].name.upper()
        raise ConfigError(f"{missing} is missing: `{form}`")


def nearest_flag(flag: str, known: Mapping[str, Any], prog: str) -> str:
    """What to write instead of a flag that does not exist."""
    name = flag.lstrip("-").partition("=")[0].replace("_", "-").lower()
    ends = {
        full.rpartition(".")[2]: full for full in reversed(list(known))
    }  # --horizon: plan.horizon
    if near := difflib.get_close_matches(name, [*known, *ends], 1, 0.7):
        return f"did you mean --{ends.get(near[0], near[0])}?"
    return f"`{prog} --help` lists them"


def _example(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return str(get_args(kind)[0])
    return {int: "10", float: "0.5"}.get(kind, "NAME")


def _one_line(box: str) -> str:
    """The first message in a box that tyro has drawn."""
    lines = [line.strip("│ ").strip() for line in box.splitlines()]
    lines = [line for line in lines if line and line[0] not in "╭╰"]
    ends = [index for index, line in enumerate(lines) if set(line) <= {"─"}]
    return " ".join(lines[: ends[0] if ends else None]) or "the arguments cannot be read"
