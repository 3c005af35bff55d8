"""Suites: tasks x agents x settings x seeds x budget, as data. A suite is a TOML file; those of the
paper ship with the package, and a user's own is named by its path."""

import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ace.settings.config import ConfigError

FOLDER = Path(__file__).parent / "suites"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]*")  # becomes the name of a folder
FIELDS = {
    "about": str,
    "tasks": list,
    "seeds": str,
    "env_steps": int,
    "preset": str,
    "lanes": int,
    "imports": list,
    "score": str,
    "columns": list,
    "settings": dict,
    "agents": dict,
}
AGENT_FIELDS = {
    "agent": str,
    "task_suffix": str,
    "settings": dict,
    "sweep": dict,
    "factors": dict,
}


@dataclass(frozen=True)
class Entry:
    """What a suite calls an agent: a registered agent with some settings changed."""

    name: str
    agent: str  # empty: the longest part of the name, up to a -, that is an agent's name
    settings: Mapping[str, Any] = field(default_factory=dict)
    shared: Mapping[str, Any] = field(
        default_factory=dict
    )  # the suite's, for agents that read them
    task_suffix: str = ""  # it learns TASK with this suffix, and its results count for TASK


@dataclass(frozen=True)
class Suite:
    """All that defines a benchmark."""

    name: str
    about: str
    tasks: tuple[str, ...]
    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]
    env_steps: int
    preset: str
    lanes: int  # most lanes of one program
    imports: tuple[str, ...]
    score: str = ""  # the number that scores its tasks, if not the usual one
    columns: tuple[str, ...] = ()  # of its results, that a report draws beside the score

    def budgets(self) -> tuple[int, int]:
        """The smallest and the largest number of env steps that its agents are trained for."""
        own = [{**e.shared, **e.settings}.get("env_steps", self.env_steps) for e in self.entries]
        return min(own), max(own)

    def for_report(self) -> dict[str, Any]:
        """Fields of the suite that program descriptions pass on to the report."""
        known = {"score": self.score, "columns": list(self.columns)}
        return {name: value for name, value in known.items() if value}


def names() -> list[str]:
    """The suites that ship with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str) -> Suite:
    """A suite by its name, or from a file."""
    from ace.run.request import known

    path = Path(name)
    if path.suffix != ".toml":
        known("suite", name, names())
        path = FOLDER / f"{name}.toml"
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from error
    return parse(path.stem, found, str(path))


def parse(name: str, found: Mapping[str, Any], where: str) -> Suite:
    """A suite from the content of its file, checked; tasks and settings are checked later."""
    from ace.run.flags import read_seeds

    if isinstance(agents := found.get("agents"), list):  # names alone
        found = {**found, "agents": {str(name): {} for name in agents}}
        if len(found["agents"]) < len(agents):
            raise ConfigError(f"{where}: an agent is named twice")
    check_fields(found, FIELDS, where)
    for needed in ("tasks", "env_steps", "agents"):
        if not found.get(needed):
            raise ConfigError(f"{where} has no {needed}; docs/bench.md shows a suite")
    check_name(name, where)
    entries = []
    for label, about in found["agents"].items():
        check_name(label, where)
        if not isinstance(about, dict):
            raise ConfigError(f"{where}: agents.{label} must be a table: [agents.{label}]")
        check_fields(about, AGENT_FIELDS, f"{where}, agents.{label}")
        entries += _swept(label, about, _flat(found.get("settings", {})), where)
    doubled = [e.name for e in entries if sum(e.name == o.name for o in entries) > 1]
    if doubled:
        raise ConfigError(f"{where}: two agents are called {doubled[0]}")
    for task in found["tasks"]:
        if not isinstance(task, str) or found["tasks"].count(task) > 1:
            raise ConfigError(f"{where}: every task must be a name, given once; {task!r} is not")
    lanes = found.get("lanes", 15)
    if lanes < 1 or found["env_steps"] < 1:
        raise ConfigError(f"{where}: lanes and env_steps must be at least 1")
    return Suite(
        name,
        found.get("about", ""),
        tuple(found["tasks"]),
        tuple(entries),
        tuple(read_seeds(found.get("seeds", "0-4"))),
        found["env_steps"],
        found.get("preset", "default"),
        lanes,
        tuple(found.get("imports", ())),
        found.get("score", ""),
        tuple(map(str, found.get("columns", ()))),
    )


def check_name(name: str, where: str) -> None:
    """Refuse a name that cannot be a folder everywhere."""
    if not NAME.fullmatch(name) or name == "programs":
        raise ConfigError(f"{where}: {name!r} is not a name; use letters, digits and . _ = + -")


def check_fields(found: Mapping[str, Any], kinds: Mapping[str, type], where: str) -> None:
    """Refuse unknown fields and wrong types."""
    from ace.run.request import known

    for name, value in found.items():
        known(f"{where}: field", name, kinds)
        if type(value) is not kinds[name]:
            raise ConfigError(f"{where}: {name} must be a {kinds[name].__name__}")


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted settings; `[settings.plan]` is as good as `"plan.horizon"`."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}".replace("-", "_")] = value
    return found


def _swept(label: str, about: Mapping[str, Any], shared: dict[str, Any], where: str) -> list[Entry]:
    """One entry, or one per combination of swept values and cell of the factors, named by them."""
    agent, settings = about.get("agent", ""), _flat(about.get("settings", {}))
    sweep: dict[str, Sequence[Any]] = _flat(about.get("sweep", {}))
    for name, values in sweep.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{where}: sweep of {name} must be a list of values")
    factors = _factors(about.get("factors", {}), where)
    entries = []
    for values in itertools.product(*sweep.values(), fraction(len(factors))):
        chosen = dict(zip(sweep, values[:-1], strict=True))
        levels = dict(zip(factors, values[-1], strict=True))
        suffix = "".join(f"-{n.rpartition('.')[2]}={v}" for n, v in (chosen | levels).items())
        check_name(label + suffix, where)
        for name, level in levels.items():
            chosen |= factors[name] if level else {}
        made = (label + suffix, agent, settings | chosen, shared, about.get("task_suffix", ""))
        entries.append(Entry(*made))
    return entries


def _factors(found: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """The settings that each factor changes, checked: no two may change the same."""
    factors, changed_by = {}, {}
    for factor, changes in found.items():
        if not isinstance(changes, dict) or not changes:
            raise ConfigError(f"{where}: factor {factor} must be a table of settings")
        factors[factor] = _flat(changes)
        for name in factors[factor]:
            if name in changed_by:
                first = changed_by[name]
                raise ConfigError(f"{where}: factors {first} and {factor} both change {name}")
            changed_by[name] = factor
    return factors


def fraction(count: int) -> list[tuple[int, ...]]:
    """The levels, 0 or 1, of some factors in every cell of a fraction of all combinations: the
    first factors in all combinations, and each other one the sum modulo 2 of an odd number of them.
    Main effects then are independent of each other and of every interaction of two factors
    (resolution IV); 2^m cells hold up to 2^(m-1) factors."""
    free = 0
    while 2**free < 2 * count:
        free += 1
    sums = [c for odd in range(1, free + 1, 2) for c in itertools.combinations(range(free), odd)]
    return [
        tuple(sum(levels[i] for i in chosen) % 2 for chosen in sums[:count])
        for levels in itertools.product((0, 1), repeat=free)
    ]
