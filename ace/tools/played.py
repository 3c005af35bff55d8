"""An evaluation of the agents that a run has saved, its table and its video."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ace.engine.program import Program
from ace.engine.resources import check_memory, count_workers
from ace.envs import EnvError
from ace.run.agent_file import load_agents
from ace.run.evaluate import Evaluation, Evaluator, film
from ace.run.request import Run, open_run
from ace.settings.checks import validate
from ace.settings.config import ConfigError, replace
from ace.tools import plots

LEFT = ("task", "setting")  # columns of text
OF_OPENGL = r"(?i)\b(lib|py)?(egl|gladload|glerror|glfw|glx|opengl|osmesa|display)"
NO_OPENGL = (
    "pictures need OpenGL without a display: install EGL (libegl1, or the GPU's driver) and set "
    "MUJOCO_GL=egl, or OSMesa (libosmesa6) and MUJOCO_GL=osmesa"
)


class Played(NamedTuple):
    """An evaluation, and what played it."""

    run: Run
    episodes: int
    program: Program
    acting: Any  # the agents, on the device
    agent_step: int
    rows: list[Evaluation]  # per lane


def play(folder: Path, episodes: int) -> Played:
    """Evaluate the agents of a run folder."""
    if episodes <= 0:
        raise ConfigError(f"--episodes is {episodes}; it must be at least 1")
    run = open_run(folder)
    wanted = {"eval_episodes": episodes, "learn.batch": 1}  # no memory for updates
    setups = [s._replace(config=replace(s.config, wanted)) for s in run.setups]
    validate(setups[0].config)
    try:
        check_memory(run.agent, setups, capacity=1)
    except ConfigError as error:  # whose advice is for training
        raise ConfigError(f"{str(error).partition('; ')[0]}; give a smaller --episodes") from None
    program = Program(run.agent, run.setups)
    acting, agent_step = load_agents(folder, program)
    workers = count_workers(program.config, len(run.setups) * episodes)
    evaluator = Evaluator(program, episodes, workers)
    try:
        rows = evaluator.run(acting, agent_step)
    finally:
        evaluator.close()
    return Played(run, episodes, program, acting, agent_step, rows)


def show(played: Played) -> None:
    """Print a table with a row per lane."""
    lines = []
    for line, row in zip(lanes(played.run), played.rows, strict=True):
        line["return"] = f"{row.ret:.1f}"
        if row.policy_ret is not None:
            line["policy_return"] = f"{row.policy_ret:.1f}"
        line["episode_length"] = f"{row.length:.0f}"
        lines.append(line | {n: f"{x:.3g}" for n, x in row.numbers.items()})
    env_step = played.agent_step * played.program.config.action_repeat
    title = f"{played.run.folder}: {played.episodes} episodes after {env_step} env steps"
    Console().print(table(title, lines))


def save_film(played: Played, path: Path) -> None:
    """Write a video of the first lane, or print why there is none: an evaluation must not fail
    without pictures."""
    try:
        frames = film(played.program, played.acting, played.agent_step)
        plots.save_video(frames, path, fps=25)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".rstrip(": ").split())
        if isinstance(error, EnvError):  # ours say what to do
            reason = str(error)
        elif re.search(OF_OPENGL, reason):
            reason += f"; {NO_OPENGL}"
        print(f"no video: {reason}")
        return
    print(f"video in {path}")


def lanes(run: Run) -> list[dict[str, str]]:
    """The columns that name a lane."""
    named = zip(run.setups, run.labels, strict=True)
    return [{"task": s.task, "seed": str(s.seed), "setting": label} for s, label in named]


def table(title: str, lines: Sequence[dict[str, str]]) -> Table:
    """A table with a row per lane; columns that no lane has a value for are left out."""
    made = Table(title=escape(title))
    # Every line has the columns in one order, but not every line has all of them.
    names = sorted({n for line in lines for n in line}, key=lambda n: _place(n, lines))
    names = [n for n in names if any(line.get(n) for line in lines)]
    for name in names:
        side = "left" if name in LEFT else "right"
        made.add_column(escape(name), justify=side, overflow="fold")
    for line in lines:
        made.add_row(*(escape(line.get(name, "")) for name in names))
    return made


def _place(name: str, lines: Sequence[dict[str, str]]) -> tuple[int, str]:
    return max(list(line).index(name) for line in lines if name in line), name
