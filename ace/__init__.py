"""ace: a novelty-aware planner and the off-policy agent that learns with it, on JAX.

    import ace

    run = ace.train("dmc/cartpole-swingup", preset="cpu", seeds=(0, 1))
    agent = ace.load(run.folder)
    action, memory = agent.act(obs)          # begins an episode
    action, memory = agent.act(obs, memory)  # continues it

Importing the package loads neither JAX nor a simulator; its functions do when they are called. What
cannot work raises a ConfigError (settings, folders, memory) or a TaskError (tasks, modules of
yours).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ace.envs.api import TaskError
    from ace.settings.config import ConfigError
    from ace.tools.trained import TrainedAgent

__all__ = ["ConfigError", "TaskError", "TrainedRun", "load", "train"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The errors, whose modules are imported when they are asked for."""
    if name == "ConfigError":
        from ace.engine import prepare

        prepare.environment()  # the settings import JAX
        from ace.settings.config import ConfigError

        return ConfigError
    if name == "TaskError":
        from ace.envs.api import TaskError

        return TaskError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class TrainedRun(NamedTuple):
    """A run that was trained to its end."""

    folder: Path
    """The folder with everything that the run wrote (docs/metrics.md)."""

    def evaluations(self) -> list[dict[str, Any]]:
        """The rows of the run's eval.csv."""
        from ace.run.record import read_csv

        return read_csv(self.folder / "eval.csv")

    def agent(self, lane: int = 0) -> "TrainedAgent":
        """The agent of one lane."""
        return load(self.folder, lane)


def train(
    tasks: str | Sequence[str],
    *,
    seeds: Sequence[int] = (0,),
    preset: str = "default",
    agent: str = "ace",
    settings: Mapping[str, Any] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    folder: str | Path | None = None,
    imports: Sequence[str] = (),
    tensorboard: bool = False,
    quiet: bool = False,
    save_minutes: float = 10.0,
) -> TrainedRun:
    """Train agents as `ace train` does: one lane for each task, seed and varied setting, all in one
    program. The same call again continues a run that was interrupted.

    `settings` are those of `ace train --help`, by their dotted names: {"learn.td_lambda": 0.4}.
    `vary` crosses settings: {"learn.td_lambda": (0.0, 0.4, 0.8)}. `imports` names modules that
    register agents, planners or tasks of your own; simulator processes import tasks by it.
    """
    from ace.engine import prepare

    prepare.load_jax()
    import signal
    import sys
    from numbers import Integral

    from jax.errors import JaxRuntimeError

    from ace.run import errors, flags, request
    from ace.run.loop import Stopped
    from ace.run.loop import train as train_run
    from ace.settings.config import Config, ConfigError
    from ace.tools import plots

    tasks = (tasks,) if isinstance(tasks, str) else tasks
    tasks = request.listed("tasks", tasks, str, '("dmc/walker-run",)')
    imports = request.listed("imports", imports, str, '("my_module",)')
    seeds = request.listed("seeds", seeds, Integral, "(0, 1)")
    settings = request.mapping("settings", settings or {}, '{"learn.td_lambda": 0.4}')
    vary = request.mapping("vary", vary or {}, '{"learn.td_lambda": (0.2, 0.4)}')
    varied = {
        name: request.listed(f"vary of {name}", values, object, "(0.2, 0.4)")
        for name, values in vary.items()
    }
    request.import_modules(imports)
    own = request.find_agent(agent).settings
    asked = flags.TrainArgs(
        tasks=tasks,
        config=Config(own=own and own()),
        seeds=tuple(map(int, seeds)),
        preset=preset,
        run=None if folder is None else flags.check_path("folder", folder),
        agent=agent,
        imports=imports,
        vary=tuple(f"{name}={','.join(map(str, x))}" for name, x in varied.items()),
        tensorboard=tensorboard,
        quiet=quiet,
        save_minutes=save_minutes,
    )
    run = request.make_run(asked, lambda c: request.with_settings(c, settings, agent))
    try:
        train_run(run)
    except Stopped as stop:
        if stop.signum == signal.SIGINT:
            raise KeyboardInterrupt(str(stop)) from None
        print(f"ace: {stop}", file=sys.stderr)
        raise SystemExit(128 + stop.signum) from None
    except JaxRuntimeError as error:
        if (line := errors.explained(error)) is None:
            raise
        raise ConfigError(line) from error
    plots.learning_curve(run.folder, run.folder / "curve.png", dict(enumerate(run.labels)))
    return TrainedRun(run.folder)


def load(folder: str | Path, lane: int = 0) -> "TrainedAgent":
    """The agent of one lane of a run folder, as it was at the run's last evaluation."""
    from ace.engine import prepare

    prepare.load_jax()
    from ace.tools.trained import load as load_agent

    return load_agent(Path(folder), lane)
