"""The `ace` command. Heavy imports wait until a command is known, so that help is quick."""

import difflib
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from ace.config import Config

COMMANDS = ("train", "resume", "eval", "export", "speed", "tasks", "info")
USAGE = """usage: ace COMMAND ...

  ace train TASK [TASK ...] [--seeds 0 1 2] [--env-steps N] [--preset default] [--run DIR]
  ace resume RUN
  ace eval RUN [--episodes 10] [--video]
  ace export RUN OUT [--lane 0]
  ace speed [--lanes 1 5 16 48] [--preset default] [--task dmc/quadruped-run] [--json FILE]
  ace tasks
  ace info

`ace COMMAND --help` explains a command; `ace train --help` lists every setting.
"""


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


@dataclass(frozen=True)
class ResumeArgs:
    """Continue an interrupted run; the command that started it does the same."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    tensorboard: bool = False
    """Write TensorBoard files too."""
    quiet: bool = False
    """Print nothing but errors."""
    save_minutes: float = 10.0
    """Minutes between checkpoints; 0 saves only at the end and on SIGINT or SIGTERM."""


@dataclass(frozen=True)
class EvalArgs:
    """Evaluate the agents that a run has saved."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    episodes: int = 10
    """Episodes per lane, for the planner and for the policy."""
    video: bool = False
    """Film one planned episode of the first lane into video.mp4."""


@dataclass(frozen=True)
class ExportArgs:
    """Write the policy and the planner of a trained agent as files that need no training code."""

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
    """Name the kernels that take the time."""


def main(argv: list[str] | None = None) -> None:
    """Run a command; errors that the user can mend are one line on stderr."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE, end="")
        raise SystemExit(0 if argv else 2)
    if argv[0] == "--version":
        from ace import __version__

        print(__version__)
        return
    if argv[0] not in COMMANDS:
        near = difflib.get_close_matches(argv[0], COMMANDS, 1)
        hint = f"; did you mean `ace {near[0]}`?" if near else ""
        print(f"ace: no command {argv[0]!r}{hint}\n\n{USAGE}", file=sys.stderr, end="")
        raise SystemExit(2)
    try:
        commands = {
            "train": train,
            "resume": resume,
            "eval": evaluate,
            "export": export,
            "speed": speed,
            "tasks": tasks,
            "info": info,
        }
        commands[argv[0]](argv[1:])
    except KeyboardInterrupt:
        raise SystemExit("ace: stopped") from None
    except user_errors() as error:
        print(f"ace: {error}", file=sys.stderr)
        raise SystemExit(1) from None


def user_errors() -> tuple[type[Exception], ...]:
    """Errors whose message tells the user what to do."""
    from ace.checkpoint import CheckpointError
    from ace.config import ConfigError
    from ace.envs import EnvError, TaskError

    return ConfigError, TaskError, EnvError, CheckpointError, OSError


def train(argv: list[str]) -> None:
    """`ace train`."""
    prepare_jax()
    carry_out(plan_run(argv))


def resume(argv: list[str]) -> None:
    """`ace resume`."""
    args = tyro.cli(ResumeArgs, args=argv, prog="ace resume")
    prepare_jax()
    from ace.train import Run

    preset, agent, setups, labels = read_run(args.run)
    options = (args.tensorboard, args.quiet, args.save_minutes)
    carry_out(Run(agent, preset, setups, labels, args.run, *options))


def carry_out(run: Any) -> None:
    """Train a run, draw its curve, say where the results are."""
    from ace import plots
    from ace import train as training

    try:
        training.train(run)
    except training.Stopped as stop:
        print(f"ace: {stop}", file=sys.stderr)
        raise SystemExit(128 + stop.signum) from None
    labels = dict(enumerate(run.labels))
    plots.learning_curve(run.folder, run.folder / "curve.png", labels)
    if not run.quiet:
        print(f"results in {run.folder}; `ace eval {run.folder}` evaluates the agents")


def plan_run(argv: list[str]) -> Any:
    """Everything that `ace train` was asked for, checked before anything is written."""
    from ace.agents import AGENTS
    from ace.config import ConfigError, validate
    from ace.envs import get_spec
    from ace.envs import validate as validate_task
    from ace.lanes import LaneSetup, check_compatible
    from ace.presets import resolve
    from ace.train import Run

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
    from ace.config import ConfigError

    if name not in table:
        near = difflib.get_close_matches(name, table, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(table)}"
        raise ConfigError(f"{what} {name!r} unknown; {hint}")


def variations(config: Config, vary: tuple[str, ...]) -> list[tuple[str, Config]]:
    """(label, config) for every combination of the varied settings."""
    from ace import config as settings

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
    from ace.config import ConfigError

    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"--vary: {text!r} is not a {kind.__name__}") from None


def check_folder(run: Any) -> None:
    """Refuse a folder that holds another run; the same run is continued."""
    from ace.config import ConfigError

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


def evaluate(argv: list[str]) -> None:
    """`ace eval`."""
    args = tyro.cli(EvalArgs, args=argv, prog="ace eval")
    prepare_jax()
    from rich.console import Console
    from rich.table import Table

    from ace import evaluate as evaluation
    from ace import plots
    from ace.config import ConfigError
    from ace.lanes import Program
    from ace.train import count_workers, load_agents

    if args.episodes <= 0:
        raise ConfigError(f"--episodes is {args.episodes}; it must be at least 1")
    _, agent, setups, labels = read_run(args.run)
    program = Program(agent, setups)
    learner, agent_step = load_agents(args.run, program)
    workers = count_workers(program.config, len(setups) * args.episodes)
    evaluator = evaluation.Evaluator(program, args.episodes, workers)
    try:
        rows = evaluator.run(learner, agent_step)
    finally:
        evaluator.close()
    env_step = agent_step * program.config.action_repeat
    table = Table(title=f"{args.run}: {args.episodes} episodes after {env_step} env steps")
    for name in ("task", "seed", "setting", "return", "policy_return", "episode_length"):
        table.add_column(name, justify="left" if name in ("task", "setting") else "right")
    for setup, label, row in zip(setups, labels, rows, strict=True):
        numbers = (f"{row.ret:.1f}", f"{row.policy_ret:.1f}", f"{row.length:.0f}")
        table.add_row(setup.task, str(setup.seed), label, *numbers)
    Console().print(table)
    if args.video:
        import jax

        single = Program(agent, setups[:1], (program.obs_size, program.action_size))
        first = jax.tree.map(lambda x: x[:1], learner)
        try:
            frames = evaluation.film(single, first, agent_step)
        except Exception as error:  # no GL on this machine is no reason to fail
            print(f"no video: {error}")
            return
        plots.save_video(frames, args.run / "video.mp4", fps=25)
        print(f"video in {args.run / 'video.mp4'}")


def export(argv: list[str]) -> None:
    """`ace export`."""
    args = tyro.cli(ExportArgs, args=argv, prog="ace export")
    prepare_jax()
    from ace.config import ConfigError
    from ace.export import export_agent
    from ace.lanes import Program
    from ace.train import load_agents

    _, agent, setups, _ = read_run(args.run)
    if not 0 <= args.lane < len(setups):
        raise ConfigError(f"--lane is {args.lane}; the run has lanes 0 to {len(setups) - 1}")
    program = Program(agent, setups)
    learner, agent_step = load_agents(args.run, program)
    export_agent(program, args.lane, learner, agent_step, args.out)
    setup = setups[args.lane]
    print(f"policy and planner of lane {args.lane} ({setup.task}, seed {setup.seed}) in {args.out}")


def speed(argv: list[str]) -> None:
    """`ace speed`."""
    args, settings = tyro.cli(SpeedArgs, args=argv, prog="ace speed", return_unknown_args=True)
    prepare_jax()
    import tempfile

    from ace import speed as speeds
    from ace.config import ConfigError
    from ace.record import versions, write_json

    if min((*args.lanes, args.steps), default=0) < 1:
        raise ConfigError("--lanes and --steps must be at least 1")
    found: dict[str, Any] = {"task": args.task, "preset": args.preset, "versions": versions()}
    found["settings"], found["lanes"], work = settings, [], {}
    with tempfile.TemporaryDirectory() as folder:
        for lanes in args.lanes:
            seeds = [str(seed) for seed in range(lanes)]
            where = ["--quiet", "--save-minutes", "0", "--run", f"{folder}/{lanes}"]
            asked = [args.task, "--seeds", *seeds, "--preset", args.preset, "--seed-steps", "64"]
            run = plan_run([*asked, *where, *settings])
            run.folder.mkdir()
            if "limit_tflops" not in found:
                found["limit_tflops"] = speeds.measure_limit(run.setups[0].config.precision)
                work = speeds.count_work(run)
            row = speeds.measure(run, args.steps, found["limit_tflops"], work, args.profile)
            found["lanes"].append(row)
            speeds.show(found, row)
            if args.json:
                write_json(args.json, found)


def read_run(folder: Path) -> tuple[str, str, list, list[str]]:
    """Preset, agent, lanes and labels of a run folder."""
    from ace.config import ConfigError, from_dict
    from ace.envs import get_spec
    from ace.lanes import LaneSetup

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
    from ace.config import ConfigError

    try:
        return json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged ({error!r:.100}); restore or delete it") from None


def tasks(argv: list[str]) -> None:
    """`ace tasks`."""
    from ace.envs import registry

    if argv:
        print("usage: ace tasks\n\nlist every task that `ace train` knows by name")
        return
    print("\n".join(registry.task_names()))
    print(registry.GYM_HELP)


def info(argv: list[str]) -> None:
    """`ace info`."""
    if argv:
        print("usage: ace info\n\nshow versions, device, presets and agents")
        return
    from ace.agents import AGENTS
    from ace.presets import PRESETS
    from ace.record import versions

    found = versions() | {"presets": list(PRESETS), "agents": list(AGENTS)}
    print(json.dumps(found, indent=2))


def prepare_jax() -> None:
    """Settings that must come before JAX starts: a compilation cache, and no memory hoarding."""
    import os

    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(root / "ace" / "xla"))
    # Small programs too: a run starts with dozens of them.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
