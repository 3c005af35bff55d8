"""What a run is asked to be: from the flags of `ace train`, checked before anything is written, or
from the folder of a run. Heavy imports wait, so that help is quick."""

import difflib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from ace.settings.config import Config


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

    def describe(self) -> dict[str, Any]:
        """What `config.json` holds."""
        lanes = [
            {"task": s.task, "seed": s.seed, "label": label, "config": asdict(s.config)}
            for s, label in zip(self.setups, self.labels, strict=True)
        ]
        return {"format": 1, "agent": self.agent, "preset": self.preset, "lanes": lanes}


@dataclass(frozen=True)
class TrainArgs:
    """Train agents, one lane for each task, seed and varied setting, all in one program."""

    tasks: tyro.conf.Positional[tuple[str, ...]]
    """What to learn, as `ace tasks` lists them, gym/Id, or package.module:function."""
    config: Annotated[Config, tyro.conf.arg(name="")]
    seeds: tuple[int, ...] = (0,)
    """One lane per seed."""
    preset: str = "default"
    """Starting point of all settings: default, paper, released, cpu or debug."""
    run: Path | None = None
    """Folder for everything that is written; runs/TASK-PRESET if left out."""
    agent: str = "ace"
    """Which agent learns."""
    vary: tuple[str, ...] = ()
    """Lanes that differ in a setting: learn.td-lambda=0,0.2,0.8 (several are crossed)."""
    tensorboard: bool = False
    """Write TensorBoard files too."""
    quiet: bool = False
    """Print nothing but errors."""
    save_minutes: float = 10.0
    """Minutes between checkpoints; 0 saves only at the end and on SIGINT or SIGTERM."""


def plan_run(argv: list[str]) -> Any:
    """Everything that `ace train` was asked for, checked before anything is written."""
    from ace.agents import AGENTS
    from ace.engine.program import LaneSetup, check_compatible
    from ace.envs import get_spec
    from ace.envs import validate as validate_task
    from ace.settings.config import ConfigError, validate
    from ace.settings.presets import resolve

    asked = parse_train(argv, Config())  # tasks and preset decide the defaults of all the rest
    if not asked.tasks:
        raise ConfigError("name at least one task, as in `ace train dmc/cheetah-run`")
    known("agent", asked.agent, AGENTS)
    for name, values in (("task", asked.tasks), ("seed", asked.seeds)):
        if len(set(values)) < len(values):
            raise ConfigError(f"a {name} is given twice: {' '.join(map(str, values))}")
    if not asked.seeds:
        raise ConfigError("give at least one seed, as in --seeds 0 1 2")
    for seed in asked.seeds:
        if not 0 <= seed < 2**31:
            raise ConfigError(f"seed {seed} is not in 0..{2**31 - 1}")
    setups, labels = [], []
    for task in asked.tasks:
        validate_task(task)
        spec = get_spec(task)
        config = parse_train(argv, resolve(asked.preset, task, spec)).config
        config = replace(config, precision=resolve_precision(config.precision))
        for label, varied in variations(config, asked.vary):
            validate(varied)
            for seed in asked.seeds:
                sizes = (spec.obs_size, spec.action_size)
                setups.append(LaneSetup(task, seed, varied, sizes))
                labels.append(label)
    check_compatible(setups)
    names = "+".join(t.split("/")[-1].replace(":", ".") for t in asked.tasks)
    folder = asked.run or Path("runs") / f"{names}-{asked.preset}"
    options = (asked.tensorboard, asked.quiet, asked.save_minutes)
    run = Run(asked.agent, asked.preset, setups, labels, folder, *options)
    check_folder(run)
    return run


def parse_train(argv: list[str], config: Config) -> TrainArgs:
    """Flags of `ace train` over the defaults of a config."""
    default = TrainArgs(tasks=(), config=config)
    return tyro.cli(TrainArgs, args=argv, default=default, prog="ace train")


def known(what: str, name: str, table: Any) -> None:
    """Refuse a name that a table does not have, with the nearest one that it has."""
    from ace.settings.config import ConfigError

    if name not in table:
        near = difflib.get_close_matches(name, table, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(table)}"
        raise ConfigError(f"{what} {name!r} unknown; {hint}")


def variations(config: Config, vary: tuple[str, ...]) -> list[tuple[str, Config]]:
    """(label, config) for every combination of the varied settings."""
    from ace.settings import config as settings

    found = [("", config)]
    flat = settings.flatten(config)
    for text in vary:
        name, _, values = text.partition("=")
        name = name.replace("-", "_")
        known("setting", name, flat)
        if not values:
            raise settings.ConfigError(f"--vary {text}: give values, as in {name}=0.2,0.4")
        kind = type(flat[name])
        found = [
            (f"{label} {name}={v}".strip(), settings.replace(c, {name: parse_value(kind, v)}))
            for label, c in found
            for v in values.split(",")
        ]
    return found


def parse_value(kind: type, text: str) -> Any:
    """A value of a setting from text."""
    from ace.settings.config import ConfigError

    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"--vary: {text!r} is not a {kind.__name__}") from None


def check_folder(run: Any) -> None:
    """Refuse a folder that holds another run; the same run is continued."""
    from ace.settings.config import ConfigError

    path = run.folder / "config.json"
    if run.folder.exists() and not run.folder.is_dir():
        raise ConfigError(f"{run.folder} is a file; give --run a folder")
    if path.exists() and read_json(path) != json.loads(json.dumps(run.describe())):
        raise ConfigError(
            f"{run.folder} holds a run with another config; choose another --run, or delete it"
        )


def resolve_precision(precision: str) -> Any:
    """What `auto` means on this machine."""
    import jax

    if precision != "auto":
        return precision
    return "f32" if jax.default_backend() == "cpu" else "bf16"


def read_run(folder: Path) -> tuple[str, str, list, list[str]]:
    """Preset, agent, lanes and labels of a run folder."""
    from ace.engine.program import LaneSetup
    from ace.envs import get_spec
    from ace.settings.config import ConfigError, from_dict

    path = folder / "config.json"
    if not path.exists():
        raise ConfigError(f"{folder} is not a run folder: it has no config.json")
    try:
        found = read_json(path)
        setups = []
        for lane in found["lanes"]:
            spec = get_spec(lane["task"])
            sizes = (spec.obs_size, spec.action_size)
            setups.append(LaneSetup(lane["task"], lane["seed"], from_dict(lane["config"]), sizes))
        labels = [lane["label"] for lane in found["lanes"]]
        return found["preset"], found["agent"], setups, labels
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is not a config of this version ({error!r})") from error


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    from ace.settings.config import ConfigError

    try:
        return json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged ({error!r:.100}); restore or delete it") from None
