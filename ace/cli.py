"""The `ace` command. Heavy imports wait until a command is known, so that help is quick."""

import difflib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from ace.run.request import Run, plan_run, read_run

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
    from ace.envs import EnvError, TaskError
    from ace.run.checkpoint import CheckpointError
    from ace.settings.config import ConfigError

    return ConfigError, TaskError, EnvError, CheckpointError, OSError


def train(argv: list[str]) -> None:
    """`ace train`."""
    prepare_jax()
    carry_out(plan_run(argv))


def resume(argv: list[str]) -> None:
    """`ace resume`."""
    args = tyro.cli(ResumeArgs, args=argv, prog="ace resume")
    prepare_jax()

    preset, agent, setups, labels = read_run(args.run)
    options = (args.tensorboard, args.quiet, args.save_minutes)
    carry_out(Run(agent, preset, setups, labels, args.run, *options))


def carry_out(run: Any) -> None:
    """Train a run, draw its curve, say where the results are."""
    from ace.run import loop as training
    from ace.tools import plots

    try:
        training.train(run)
    except training.Stopped as stop:
        print(f"ace: {stop}", file=sys.stderr)
        raise SystemExit(128 + stop.signum) from None
    labels = dict(enumerate(run.labels))
    plots.learning_curve(run.folder, run.folder / "curve.png", labels)
    if not run.quiet:
        print(f"results in {run.folder}; `ace eval {run.folder}` evaluates the agents")


def evaluate(argv: list[str]) -> None:
    """`ace eval`."""
    args = tyro.cli(EvalArgs, args=argv, prog="ace eval")
    prepare_jax()
    from rich.console import Console
    from rich.table import Table

    from ace.engine.program import Program
    from ace.engine.resources import count_workers
    from ace.run import evaluate as evaluation
    from ace.run.agent_file import load_agents
    from ace.settings.config import ConfigError
    from ace.tools import plots

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
        try:
            frames = evaluation.film(program, learner, agent_step)
        except Exception as error:  # no GL on this machine is no reason to fail
            print(f"no video: {error}")
            return
        plots.save_video(frames, args.run / "video.mp4", fps=25)
        print(f"video in {args.run / 'video.mp4'}")


def export(argv: list[str]) -> None:
    """`ace export`."""
    args = tyro.cli(ExportArgs, args=argv, prog="ace export")
    prepare_jax()
    from ace.engine.program import Program
    from ace.run.agent_file import load_agents
    from ace.settings.config import ConfigError
    from ace.tools.export import export_agent

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

    from ace.run.record import versions, write_json
    from ace.settings.config import ConfigError
    from ace.tools import speed as speeds

    if min((*args.lanes, args.steps), default=0) < 1:
        raise ConfigError("--lanes and --steps must be at least 1")
    found: dict[str, Any] = {"task": args.task, "preset": args.preset, "versions": versions()}
    found["settings"], found["lanes"], work, runs = settings, [], {}, []
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
            row = speeds.measure(run, args.steps, found["limit_tflops"], work)
            found["lanes"].append(row)
            runs.append(run)
            speeds.show(found, row)
            if args.json:
                write_json(args.json, found)
        for run, row in zip(runs if args.profile else (), found["lanes"], strict=False):
            kernels = speeds.profile(run)
            speeds.show_kernels(row["lanes"], kernels)
            for part in kernels:
                row[part]["kernels"] = kernels[part]
            if args.json:
                write_json(args.json, found)


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
    from ace.run.record import versions
    from ace.settings.presets import PRESETS

    found = versions() | {"presets": list(PRESETS), "agents": list(AGENTS)}
    print(json.dumps(found, indent=2))


def prepare_jax() -> None:
    """Settings that must come before JAX starts: how much memory it takes, and a cache."""
    import os

    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(root / "ace" / "xla"))
    from ace.engine import stored

    stored.enable()
    # Small programs too: a run starts with dozens of them.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
