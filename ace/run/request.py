"""From the flags of `ace train`, or from a run folder, to a `Run`, checked before anything is
written. Heavy imports are deferred, so that help is quick."""

import difflib
import importlib
import importlib.util
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ace.run import flags
from ace.run.folders import check_folder, default_folder, read_json
from ace.settings import checks
from ace.settings import config as settings
from ace.settings.config import Config, ConfigError


@dataclass(frozen=True)
class Run:
    """Everything that defines a run, and where it goes."""

    agent: str
    preset: str
    setups: Sequence[Any]  # LaneSetup
    labels: Sequence[str]
    folder: Path
    tensorboard: bool = False
    quiet: bool = False
    save_minutes: float = 10.0
    imports: tuple[str, ...] = ()  # modules to import before any name is looked up
    notes: tuple[str, ...] = ()  # lines about the tasks, to be printed at the start
    command: str | None = None  # that made it; None: made from Python

    def describe(self) -> dict[str, Any]:
        """What `config.json` holds."""
        lanes = [
            {"task": s.task, "seed": s.seed, "label": label, "config": asdict(s.config)}
            for s, label in zip(self.setups, self.labels, strict=True)
        ]
        named = {"agent": self.agent, "preset": self.preset, "imports": list(self.imports)}
        return {"format": 1, **named, "lanes": lanes}


class Lanes(NamedTuple):
    """The lanes of a request, and which settings differ from those of the preset."""

    setups: list[Any]  # LaneSetup
    labels: list[str]
    changed: dict[str, Any]


def plan_run(argv: Sequence[str]) -> Run:
    """The run that the arguments of `ace train` describe, checked; writes nothing."""
    cls, config = train_class(argv)
    asked = flags.parse_train(cls, argv, config)
    run = make_run(asked, lambda config: flags.parse_train(cls, argv, config).config)
    return replace(run, command=shlex.join(["ace", "train", *argv]))


def make_run(asked: flags.TrainArgs, change: Callable[[Config], Config]) -> Run:
    """A run from its arguments; `change` applies the user's settings to a task's defaults."""
    check_asked(asked)
    lanes = make_lanes(asked, change)
    options = (asked.tensorboard, asked.quiet, asked.save_minutes)
    folder = asked.run or default_folder(asked, lanes.changed)
    notes = task_notes(asked.tasks)
    lists = (lanes.setups, lanes.labels)
    imports = tuple(dict.fromkeys(asked.imports))
    run = Run(asked.agent, asked.preset, *lists, folder, *options, imports, notes)
    check_folder(folder, run.describe())
    return run


def with_settings(config: Config, values: Mapping[str, Any], agent: str) -> Config:
    """A config with dotted settings changed, their types checked; the agent's own section is named
    as in its flags: `sac.init_temperature`."""
    flat = settings.flatten(config)
    own, changed = section_of(agent), {}
    for name, value in values.items():
        path = name.replace("-", "_")
        path = f"own.{path.removeprefix(own)}" if path.startswith(own) else path
        known("setting", path, flat)
        kind = type(flat[path])
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise ConfigError(f"{name} is {value!r:.40}; it must be of type {kind.__name__}")
        changed[path] = value
    return settings.replace(config, changed)


def train_class(argv: Sequence[str]) -> tuple[type[flags.TrainArgs], Config]:
    """The arguments of `ace train` with the own section of argv's agent, and the defaults of all
    settings; imports the user's modules first."""
    first = flags.split(argv, flags.kinds(flags.TrainArgs))
    import_modules(first.flags.get("import", ()))
    name = first.flags.get("agent", ["ace"])[-1]
    agent = find_agent(name)
    check_section(first.others, name)
    config = Config(own=agent.settings and agent.settings())
    config = settings.replace(config, {**agent.defaults, **agent.overrides})
    return flags.train_args(name, agent.settings), config


def open_run(
    folder: Path,
    *,
    env_steps: int | None = None,
    tensorboard: bool = False,
    quiet: bool = False,
    save_minutes: float = 10.0,
) -> Run:
    """The run of a folder, to be continued; `env_steps` makes it longer. Writes nothing."""
    preset, agent, setups, labels = read_run(folder)
    check_tensorboard(tensorboard)
    if env_steps is not None:
        before = setups[0].config.env_steps
        if env_steps <= before:
            raise ConfigError(
                f"--env-steps is {env_steps} and the run was made for {before}; give a larger "
                f"number, or leave it out to finish the run"
            )
        longer = {"env_steps": env_steps}
        setups = [s._replace(config=settings.replace(s.config, longer)) for s in setups]
    found = read_json(folder / "config.json")
    notes = task_notes(dict.fromkeys(setup.task for setup in setups))
    options = (tensorboard, quiet, save_minutes, tuple(found.get("imports", ())), notes)
    return Run(agent, preset, setups, labels, folder, *options, command_of(folder))


def command_of(folder: Path) -> str | None:
    """The command that made a run, if its folder says so."""
    try:
        found = read_json(folder / "versions.json")["command"]
    except (ConfigError, OSError, KeyError, TypeError):  # a run does not need the file
        return None
    return found if isinstance(found, str) else None


def make_lanes(asked: flags.TrainArgs, change: Callable[[Config], Config]) -> Lanes:
    """One lane for each task, varied setting and seed, checked."""
    from ace.engine.lanes import LaneSetup, check_compatible
    from ace.envs import get_spec
    from ace.envs import validate as validate_task
    from ace.settings.presets import resolve

    agent, lanes = find_agent(asked.agent), Lanes([], [], {})
    check_preset(asked.preset, asked.agent)
    for task in asked.tasks:
        validate_task(task)
        spec = get_spec(task)
        own = agent.settings and agent.settings()
        default = resolve(asked.preset, task, spec, agent.defaults_of(task), agent.overrides, own)
        check_columns(spec, agent.metrics)
        config = change(default)
        machine = [replace(c, precision=resolve_precision(c.precision)) for c in (default, config)]
        lanes.changed.update(changes(*machine))
        found = variations(machine[1], asked.vary, asked.agent)
        for label, varied in found:
            if asked.vary:
                check_set_once(changes(*machine), changes(machine[1], varied), asked.agent)
            lanes.changed.update(changes(machine[1], varied))
            check_read(asked.agent, varied, changes(machine[0], varied))
            check_config(asked.agent, varied)
            for seed in asked.seeds:
                sizes = (spec.obs_size, spec.action_size)
                lanes.setups.append(LaneSetup(task, seed, varied, sizes))
                lanes.labels.append(label)
        check_varied(found, asked.agent)
    check_compatible(lanes.setups)
    return lanes


def listed(name: str, values: Any, kind: type, example: str) -> tuple[Any, ...]:
    """The values of a list that Python gives, each of a type; refuses anything else."""
    if isinstance(values, Iterable) and not isinstance(values, str):
        found = tuple(values)
        if all(isinstance(value, kind) for value in found):
            return found
    raise ConfigError(f"{name} is {values!r:.40}; give a list, as in {example}")


def check_asked(asked: flags.TrainArgs) -> None:
    """Refuse wrong tasks, seeds and options, before any settings are read."""
    if not asked.tasks:
        raise ConfigError("name at least one task, as in `ace train dmc/cheetah-run`")
    if not asked.seeds:
        raise ConfigError("name at least one seed, as in `--seeds 0`")
    for name, values in (("task", asked.tasks), ("seed", asked.seeds)):
        if len(set(values)) < len(values):
            raise ConfigError(f"a {name} is given twice: {' '.join(map(str, values))}")
    for seed in asked.seeds:
        if not 0 <= seed < 2**31:
            raise ConfigError(f"seed {seed} is not in 0..{2**31 - 1}")
    check_tensorboard(asked.tensorboard)


def check_tensorboard(wanted: bool) -> None:
    """Refuse `--tensorboard` without tensorboardX."""
    if wanted and importlib.util.find_spec("tensorboardX") is None:
        raise ConfigError("--tensorboard needs tensorboardX: pip install tensorboardX")


def check_section(others: Sequence[str], agent: str) -> None:
    """Refuse flags of another agent's section, and name that agent."""
    from ace.agents import AGENTS

    for flag in others:
        section, dot, _ = flag.removeprefix("--").partition(".")
        if dot and section != agent and section in AGENTS and AGENTS[section].settings:
            raise ConfigError(f"{flag} is a setting of agent {section}; add --agent {section}")


def check_columns(spec: Any, metrics: Sequence[str]) -> None:
    """Refuse an agent whose metrics would share a column with what every run records or with a
    number of the task."""
    from ace.envs.numbers import RESERVED

    for name in sorted({*metrics} & {*RESERVED}):
        raise ConfigError(
            f"the agent has a metric {name!r}, which is a column of every run; rename it"
        )
    for number in spec.numbers:
        if number.name in metrics:
            raise ConfigError(
                f"task {spec.task} has a number {number.name!r}, which is also a metric of the "
                "agent; give it another name"
            )


def check_read(name: str, config: Config, changed: Iterable[str]) -> None:
    """Refuse a changed setting that neither the agent nor its planner ever reads."""
    from ace.planners import PLANNERS

    agent, planner = find_agent(name), config.plan.planner
    if agent.plans:
        known("planner", planner, PLANNERS)
    for setting in changed:
        if not agent.uses(setting, planner):
            which = f"agent {name} with planner {planner}" if agent.plans else f"agent {name}"
            raise ConfigError(f"--{setting.replace('_', '-')} does nothing for {which}")


def check_set_once(chosen: Mapping[str, Any], varied: Iterable[str], agent: str) -> None:
    """Refuse a setting that was both set and varied: the lanes would have one of the two."""
    for name in varied:
        if name in chosen:
            shown = re.sub(r"^own\.", section_of(agent), name)
            raise ConfigError(f"{shown} is set to {chosen[name]} and varied; leave one out")


def mapping(name: str, values: Any, example: str) -> dict[str, Any]:
    """A mapping from names that Python gives; refuses anything else."""
    if isinstance(values, Mapping) and all(isinstance(key, str) for key in values):
        return dict(values)
    raise ConfigError(f"{name} is {values!r:.40}; give a dict, as in {example}")


def check_varied(found: Sequence[tuple[str, Config]], agent: str) -> None:
    """Refuse varied settings that shape the program."""
    import jax

    (one, first), *others = found
    structure = jax.tree.structure(first)
    for other, config in others:
        differing = changes(first, config).items()
        alone = {name: settings.replace(first, {name: value}) for name, value in differing}
        names = [name for name, c in alone.items() if jax.tree.structure(c) != structure]
        if names:
            shown = ", ".join(re.sub(r"^own\.", section_of(agent), name) for name in names)
            raise ConfigError(
                f"lanes {one} and {other} differ in {shown}, which shapes the program and so "
                "cannot be varied in one run; train a run for each value"
            )


def check_config(name: str, config: Config) -> None:
    """Refuse a config that its agent cannot learn with."""
    from ace.planners import PLANNERS

    try:
        checks.validate(config)
    except ConfigError as error:
        # The message starts with the field: name the agent's section as its flags do.
        raise ConfigError(re.sub(r"^own\.", f"{name}.", str(error))) from None
    agent = find_agent(name)
    if agent.plans:
        known("planner", config.plan.planner, PLANNERS)
        PLANNERS[config.plan.planner].check(config)
    agent.check(config)
    segment = agent.segment(config)
    if segment < 1:
        raise ConfigError(f"agent {name} draws segments of {segment} steps; give at least 1")
    if config.seed_steps < segment:
        raise ConfigError(
            f"seed_steps ({config.seed_steps}) is shorter than a segment ({segment} steps): there "
            "would be no segment to learn from; raise seed_steps"
        )
    capacity = config.replay.capacity
    if capacity and capacity < 4 * segment:
        raise ConfigError(
            f"replay.capacity ({capacity}) is too small for segments of {segment} steps; set it to "
            f"at least {4 * segment}, or to 0 to keep the whole run"
        )


def check_preset(preset: str, name: str) -> None:
    """Refuse a preset about another agent, which would make a mixture of two papers."""
    from ace.settings.presets import COMMON, PRESETS

    if preset in PRESETS and preset not in (*COMMON, *find_agent(name).presets):
        raise ConfigError(
            f"preset {preset} does not apply to agent {name}; use default, cpu or debug"
        )


def find_agent(name: str) -> Any:
    """The agent registered under a name."""
    from ace.agents import AGENTS

    known("agent", name, AGENTS)
    return AGENTS[name]


def section_of(agent: str) -> str:
    """How the names of an agent's own settings begin: its name, with _ for - like all settings."""
    return f"{agent.replace('-', '_')}."


def import_modules(names: Iterable[str]) -> None:
    """Import modules of the user, which register agents, planners and tasks."""
    from ace.envs.explain import import_module

    for name in names:
        import_module(name, f"--import {name}")


def task_notes(tasks: Iterable[str]) -> tuple[str, ...]:
    """What the user should know about the tasks, a line each."""
    from ace import envs

    return tuple(dict.fromkeys(line for task in tasks for line in envs.notes(task)))


def known(what: str, name: str, table: Any) -> None:
    """Refuse a name that is not in a table, and suggest the nearest one."""
    if name not in table:
        near = difflib.get_close_matches(name, table, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(table)}"
        hint = hint if near or len(table) < 20 else "`ace train --help` lists them"
        raise ConfigError(f"{what} {name!r} unknown; {hint}")


def changes(before: Config, after: Config) -> dict[str, Any]:
    """Settings in which two configs differ, with the value of the second."""
    old = settings.flatten(before)
    return {n: value for n, value in settings.flatten(after).items() if old.get(n) != value}


def variations(config: Config, vary: Sequence[str], agent: str) -> list[tuple[str, Config]]:
    """(label, config) for every combination of the varied settings; the agent's own section has
    the agent's name."""
    found, seen = [("", config)], set()
    flat = settings.flatten(config)
    names = {re.sub(r"^own\.", section_of(agent), name): name for name in flat if name != "own"}
    for text in vary:
        shown, _, values = text.partition("=")
        shown = shown.removeprefix("--").replace("-", "_")
        known("setting", shown, names)
        if shown in seen:
            raise ConfigError(f"--vary has {shown} twice; give all its values to one of them")
        seen.add(shown)
        name, texts = names[shown], values.split(",")
        parsed = [parse_value(type(flat[name]), v, shown) for v in texts]
        if len(set(parsed)) < len(parsed):
            raise ConfigError(f"--vary {text} has a value twice: those lanes would be the same")
        found = [
            (f"{label} {shown}={v}".strip(), settings.replace(c, {name: value}))
            for label, c in found
            for v, value in zip(texts, parsed, strict=True)
        ]
    return found


def parse_value(kind: type, text: str, name: str) -> Any:
    """A value of a varied setting from text."""
    if not text:
        raise ConfigError(f"--vary {name}: a value is missing, as in {name}=0.2,0.4")
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"--vary {name}: {text!r} is not true or false")
        return text.lower() == "true"
    try:
        return int(float(text)) if kind is int and float(text).is_integer() else kind(text)
    except (ValueError, TypeError, OverflowError):
        raise ConfigError(f"--vary {name}: {text!r} is not a {kind.__name__}") from None


def resolve_precision(precision: str) -> Any:
    """The precision, with `auto` resolved for this machine."""
    import jax

    if precision != "auto":
        return precision
    return "f32" if jax.default_backend() == "cpu" else "bf16"


def read_run(folder: Path) -> tuple[str, str, list, list[str]]:
    """Preset, agent, lanes and labels of a run folder."""
    from ace.engine.lanes import LaneSetup
    from ace.envs import get_spec

    path = folder / "config.json"
    if not path.exists():
        raise ConfigError(f"{folder} is not a run folder: it has no config.json")
    try:
        found = read_json(path)
        import_modules(found.get("imports", ()))
        own = find_agent(found["agent"]).settings
        setups = []
        for lane in found["lanes"]:
            spec = get_spec(lane["task"])
            sizes = (spec.obs_size, spec.action_size)
            config = checks.from_dict(lane["config"], own)
            check_config(found["agent"], config)
            setups.append(LaneSetup(lane["task"], lane["seed"], config, sizes))
        labels = [lane["label"] for lane in found["lanes"]]
        return found["preset"], found["agent"], setups, labels
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is not a config of this version ({error!r})") from error
