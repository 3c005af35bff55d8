"""The `ace` command. Heavy imports are deferred until a command runs, so that help is quick."""

import contextlib
import difflib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from ace.run.request import Run

USAGE = """usage: ace COMMAND ...

  ace train TASK [TASK ...] [--seeds 0 1 2] [--env-steps N] [--preset default] [--run DIR]
  ace resume RUN [--env-steps N]
  ace eval RUN [--episodes 10] [--video]
  ace diagnose RUN [--episodes 10]
  ace export RUN OUT [--lane 0]
  ace speed [--lanes 1 5 16 48] [--preset default] [--task dmc/quadruped-run] [--json FILE]
  ace bench SUITE [--for 25m] [--dry-run] [--ray auto]     (`ace bench list` shows the suites)
  ace merge INTO FROM [FROM ...]
  ace report RESULTS [RESULTS ...] [--out report]
  ace compare RESULTS [RESULTS ...]
  ace plot RUN [RUN ...]
  ace theory [--mdps N] [--seed 0] [--out DIR]
  ace tasks
  ace check-env TASK [--steps 2000] [--seed 0]
  ace info

`ace COMMAND --help` explains a command; `ace train --help` lists every setting.
"""
NO_ARGUMENTS = {
    "tasks": "usage: ace tasks\n\nlist every task that `ace train` knows by name",
    "info": "usage: ace info\n\nshow versions, device, presets, agents and planners",
}


def main(argv: list[str] | None = None) -> None:
    """Run a command; errors that the user can fix are one line on stderr."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        # Find modules in the working directory, as `python -m` does; last, to hide no package.
        sys.path += [os.getcwd()] if os.getcwd() not in sys.path else []
        try:
            with interrupts():
                dispatch(argv)
        finally:
            sys.stdout.flush()  # raises here if the reader has gone, not at exit
    except BrokenPipeError:
        # Discard what is still buffered: Python would flush it at exit and complain.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except KeyboardInterrupt:  # the training loop raises it when it is interrupted twice
        stop_now()
    except Exception as error:
        if (line := explained(error)) is None:
            raise
        print(f"ace: {line}", file=sys.stderr)
        raise SystemExit(1) from None


def explained(error: Exception) -> str | None:
    """What the user can do about an error, in one line; None if it is a bug of ours."""
    from ace.bench.results import ResultError
    from ace.run import errors

    return str(error) if isinstance(error, ResultError) else errors.explained(error)


def dispatch(argv: Sequence[str]) -> None:
    """Find the command and run it."""
    commands = {
        "train": train,
        "resume": resume,
        "eval": evaluate,
        "diagnose": diagnose,
        "export": export,
        "speed": speed,
        "bench": bench,
        "merge": merge,
        "report": report,
        "compare": compare,
        "plot": plot,
        "theory": theory,
        "tasks": tasks,
        "check-env": check_env,
        "info": info,
    }
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE, end="", file=sys.stdout if argv else sys.stderr)
        raise SystemExit(0 if argv else 2)
    if argv[0] == "--version":
        from ace import __version__

        print(__version__)
        return
    if argv[0] not in commands:
        near = difflib.get_close_matches(argv[0], commands, 1)
        hint = f"did you mean `ace {near[0]}`?" if near else "`ace --help` lists them"
        print(f"ace: no command {argv[0]!r}; {hint}", file=sys.stderr)
        raise SystemExit(2)
    if not {"-h", "--help"}.isdisjoint(argv):
        show_help(argv[0], argv[1:])
        return
    prepare_environment()
    commands[argv[0]](argv[1:])


def show_help(command: str, argv: Sequence[str]) -> None:
    """Print the help of a command; imports JAX only for an agent's own settings."""
    if command in NO_ARGUMENTS:
        print(NO_ARGUMENTS[command])
        return
    import ace.settings

    flags_of_agents = ("--agent", "--import")
    own = command == "train" and any(word.startswith(flags_of_agents) for word in argv)
    ace.settings.help_only = not own
    from ace.run import flags

    if own:
        from ace.run.request import train_class

        cls, config = train_class(argv)
        flags.parse_train(cls, ["--help"], config)
    elif command == "train":
        cls = flags.train_args("ace", None)
        flags.parse_train(cls, ["--help"], flags.Config())
    else:
        classes = {
            "resume": flags.ResumeArgs,
            "eval": flags.EvalArgs,
            "diagnose": flags.DiagnoseArgs,
            "export": flags.ExportArgs,
            "speed": flags.SpeedArgs,
            "bench": flags.BenchArgs,
            "theory": flags.TheoryArgs,
            "check-env": flags.CheckEnvArgs,
            **bench_args(),
        }
        flags.parse(classes[command], ["--help"], f"ace {command}")


def bench_args() -> dict[str, Any]:
    """The arguments of the commands that read results; none of them needs JAX."""
    from ace.bench.compare import CompareArgs
    from ace.bench.merge import MergeArgs
    from ace.bench.report import PlotArgs, ReportArgs

    commands = {"merge": MergeArgs, "report": ReportArgs}
    return {**commands, "compare": CompareArgs, "plot": PlotArgs}


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """Let SIGINT end the process at once. A KeyboardInterrupt could be raised anywhere, also in a
    callback of XLA, which loses it or aborts. The training loop has a handler of its own."""
    own = threading.current_thread() is threading.main_thread()
    if not own or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda signum, frame: stop_now())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def stop_now() -> NoReturn:
    """End the process without unwinding: XLA's threads may crash in an ordinary exit."""
    # Bypass Python's buffers: the interrupted code may hold their locks.
    with contextlib.suppress(OSError):
        os.write(2, b"ace: stopped\n")
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, RuntimeError):
            stream.flush()
    os._exit(130)


def train(argv: Sequence[str]) -> None:
    """`ace train`."""
    prepare_jax()
    from ace.run.request import plan_run

    carry_out(plan_run(argv))


def resume(argv: Sequence[str]) -> None:
    """`ace resume`."""
    prepare_jax()
    from ace.run.flags import ResumeArgs, parse
    from ace.run.request import open_run

    args = parse(ResumeArgs, argv, "ace resume")
    options = {"env_steps": args.env_steps, "tensorboard": args.tensorboard, "quiet": args.quiet}
    carry_out(open_run(args.run, **options, save_minutes=args.save_minutes))


def carry_out(run: "Run") -> None:
    """Train a run, draw its curve, say where the results are."""
    from ace.run import loop as training
    from ace.tools import plots

    try:
        training.train(run)
    except training.Stopped as stop:
        print(f"ace: {stop}", file=sys.stderr, flush=True)
        if stop.compiling:  # an ordinary exit would wait for the compiler, a minute or more
            sys.stdout.flush()
            os._exit(128 + stop.signum)
        raise SystemExit(128 + stop.signum) from None
    labels = dict(enumerate(run.labels))
    plots.learning_curve(run.folder, run.folder / "curve.png", labels)
    if not run.quiet:
        print(f"results in {run.folder}; `ace eval {run.folder}` evaluates the agents")


def evaluate(argv: Sequence[str]) -> None:
    """`ace eval`."""
    prepare_jax()
    from ace.run.flags import EvalArgs, parse

    args = parse(EvalArgs, argv, "ace eval")
    from ace.tools import played

    found = played.play(args.run, args.episodes)
    played.show(found)
    if args.video:
        played.save_film(found, args.run / "video.mp4")


def diagnose(argv: Sequence[str]) -> None:
    """`ace diagnose`."""
    prepare_jax()
    from ace.run.flags import DiagnoseArgs, parse

    args = parse(DiagnoseArgs, argv, "ace diagnose")
    from ace.tools.diagnose import diagnose as examine

    examine(args.run, args.episodes)


def export(argv: Sequence[str]) -> None:
    """`ace export`."""
    prepare_jax()
    from ace.run.flags import ExportArgs, parse

    args = parse(ExportArgs, argv, "ace export")
    from ace.tools.export import export_agent
    from ace.tools.trained import load

    agent = load(args.run, args.lane)
    names = " and ".join(export_agent(agent, args.out))
    print(f"{names} of lane {args.lane} ({agent.task}, seed {agent.seed}) in {args.out}")


def speed(argv: Sequence[str]) -> None:
    """`ace speed`."""
    prepare_jax()
    from ace.run.flags import SpeedArgs, parse

    settings: list[str] = []
    args = parse(SpeedArgs, argv, "ace speed", others=settings)
    from ace.tools import speed as speeds

    speeds.speed(args, settings)


def bench(argv: Sequence[str]) -> None:
    """`ace bench`."""
    # This process only plans and watches: it keeps off the devices, which its jobs use.
    os.environ["ACE_BENCH_PLATFORM"] = os.environ.get("JAX_PLATFORMS", "")
    os.environ["JAX_PLATFORMS"] = "cpu"
    prepare_jax()
    from ace.bench import bench as benchmark
    from ace.run.flags import BenchArgs, parse

    if list(argv) == ["list"]:
        benchmark.show_suites()
        return
    if status := benchmark.bench(parse(BenchArgs, argv, "ace bench"), argv):
        raise SystemExit(status)


def read_results(command: str, argv: Sequence[str]) -> Any:
    """The arguments of a command that reads results; JAX is not imported for them."""
    import ace.settings

    ace.settings.help_only = True
    from ace.run.flags import parse

    return parse(bench_args()[command], argv, f"ace {command}")


def merge(argv: Sequence[str]) -> None:
    """`ace merge`."""
    args = read_results("merge", argv)
    from ace.bench import merge as merging

    merging.merge(args)


def report(argv: Sequence[str]) -> None:
    """`ace report`."""
    args = read_results("report", argv)
    from ace.bench import report as reports

    reports.report(args)


def compare(argv: Sequence[str]) -> None:
    """`ace compare`."""
    args = read_results("compare", argv)
    from ace.bench import compare as comparison

    comparison.compare(args)


def plot(argv: Sequence[str]) -> None:
    """`ace plot`."""
    args = read_results("plot", argv)
    from ace.bench import report as reports

    reports.plot(args)


def theory(argv: Sequence[str]) -> None:
    """`ace theory`."""
    import ace.settings

    ace.settings.help_only = True  # plain NumPy: spare the import of JAX
    from ace.run.flags import TheoryArgs, parse

    args = parse(TheoryArgs, argv, "ace theory")
    from ace.tools.theory import command

    if not command.theory(args):
        raise SystemExit(1)


def tasks(argv: Sequence[str]) -> None:
    """`ace tasks`."""
    no_arguments("tasks", argv)
    from ace.envs import registry

    print("\n".join(registry.task_names()))
    print(registry.GYM_HELP)


def check_env(argv: Sequence[str]) -> None:
    """`ace check-env`."""
    import ace.settings

    ace.settings.help_only = True  # no import of JAX
    from ace.run.flags import CheckEnvArgs, parse
    from ace.run.request import import_modules
    from ace.settings.config import ConfigError

    args = parse(CheckEnvArgs, argv, "ace check-env")
    if not 1 <= args.steps <= 10**7 or not 0 <= args.seed < 2**31:
        raise ConfigError(f"--steps must lie in 1..10000000, and --seed in 0..{2**31 - 1}")
    import_modules(args.imports)
    from ace.tools import check_env as checks

    if not checks.report(args.task, args.steps, args.seed):
        raise SystemExit(1)


def info(argv: Sequence[str]) -> None:
    """`ace info`."""
    no_arguments("info", argv)
    import json

    from ace.agents import AGENTS
    from ace.planners import PLANNERS
    from ace.run.record import versions
    from ace.settings.presets import PRESETS

    tables = {"presets": list(PRESETS), "agents": list(AGENTS), "planners": list(PLANNERS)}
    print(json.dumps(versions() | tables, indent=2))


def no_arguments(command: str, argv: Sequence[str]) -> None:
    """Refuse arguments of a command that takes none."""
    if argv:
        from ace.settings.config import ConfigError

        raise ConfigError(f"`ace {command}` takes no arguments; leave out {' '.join(argv)}")


def prepare_environment() -> None:
    """Set what JAX and XLA read when they are loaded, unless the user has set it."""
    import warnings

    from ace.engine import prepare

    prepare.environment()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # only errors of XLA
    if not sys.warnoptions:  # neither -W nor PYTHONWARNINGS
        # Hide the warnings of other packages from the user of a command; show ours.
        warnings.simplefilter("ignore")
        warnings.filterwarnings("default", module=r"ace(\.|$)")
        shown, package = warnings.showwarning, Path(__file__).parent

        def show(message: Any, category: Any, filename: str, *more: Any, **named: Any) -> None:
            # Gymnasium, when it is imported, puts a filter of its own before these.
            if Path(filename).is_relative_to(package):
                shown(message, category, filename, *more, **named)

        warnings.showwarning = show


def prepare_jax() -> None:
    """Import JAX with a persistent compilation cache."""
    prepare_environment()
    from ace.engine import prepare

    prepare.keep_memory()
    prepare.load_jax()
