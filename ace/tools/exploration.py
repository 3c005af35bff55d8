"""The figure of exploration in the point mazes, from what runs recorded (docs/maze.md): coverage
and model error over env steps, and below them where each run was and which places it values."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file

from ace.envs.maze.grid import OFFSET, Grid, read_grid
from ace.tools import plots

CURVES = {
    "train_coverage": "coverage of training",
    "eval_coverage": "coverage of an evaluation",
    "model_error": "model error on the test set",
    "cumulative_error": "cumulative model error",
}
TIMES = 4  # points in time of which places are drawn
WALL, EARLIER, NEWEST = "#d3d6db", "#9fb3c8", "#C1121F"
PANEL = 1.6  # inches: the width of a maze


class Group(NamedTuple):
    """Lanes that differ in their seeds alone; those of a suite may lie in several run folders."""

    task: str
    rows: list[dict[str, Any]]  # of exploration.csv, and the run folder: `folder`

    @property
    def first(self) -> list[dict[str, Any]]:
        """The rows of the first seed, in the order of env steps."""
        seed = min(row["seed"] for row in self.rows)
        return [row for row in self.rows if row["seed"] == seed]


def read_groups(folders: Sequence[Path]) -> dict[str, Group]:
    """What the runs have recorded, by the names in the figure; runs without mazes are left out."""
    from ace.run.explore import CSV
    from ace.run.record import read_csv  # loads JAX, which other figures do not need

    found: dict[tuple[Path, str, str], list[dict[str, Any]]] = {}
    for folder in folders:
        labels = _labels(folder)
        rows = read_csv(folder / CSV) if (folder / CSV).exists() else []
        for row in rows:
            label = labels.get(row["lane"], "")
            # A suite's runs are SUITE/PROGRAM/run, and its labels are names of agents.
            place = folder.parent.parent if folder.name == "run" and label else folder
            found.setdefault((place, label, row["task"]), []).append(row | {"folder": folder})
    named = {}
    for (place, label, task), rows in found.items():
        short = label if place != rows[0]["folder"] else f"{place.name} {label}"
        named.setdefault(short.strip(), []).append((f"{place} {label}".strip(), task, rows))
    several = len({task for _, _, task in found}) > 1
    return {
        (short if len({long for long, _, _ in those}) == 1 else long)
        + (f" {task}" if several else ""): Group(task, rows)
        for short, those in named.items()
        for long, task, rows in those
    }


def _labels(folder: Path) -> dict[int, str]:
    """What `--vary` set in each lane."""
    path = folder / "config.json"
    try:
        lanes = json.loads(path.read_text())["lanes"]
        return {lane: str(of.get("label") or "") for lane, of in enumerate(lanes)}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}  # a folder of curves alone


def draw(folders: Sequence[Path], outs: Sequence[Path]) -> bool:
    """Draw the figure of these runs into files; False, and no file, if none has recorded a maze."""
    import matplotlib
    from matplotlib.figure import Figure

    groups = read_groups(folders)
    if not groups:
        return False
    with matplotlib.rc_context(plots.STYLE):
        shapes = [_grid(group).numbers.shape for group in groups.values()]
        height = sum(PANEL * rows / columns + 0.3 for rows, columns in shapes)
        figure: Any = Figure(figsize=(2 * TIMES * PANEL + 0.4, 3.2 + height), layout="constrained")
        top, bottom = figure.subfigures(2, 1, height_ratios=(2.9, 0.3 + height))
        _draw_curves(top, groups)
        _draw_places(bottom, groups)
        for out in outs:
            # Without dates, so that equal numbers make equal files.
            undated = {"CreationDate" if out.suffix == ".pdf" else "Software": None}
            figure.savefig(out, dpi=150, metadata=undated)
            figure.set_layout_engine("none")  # keep the places that the first drawing found
    return True


def _draw_curves(figure: Any, groups: Mapping[str, Group]) -> None:
    """Mean over seeds and 95 % interval of every column."""
    panels = figure.subplots(1, len(CURVES))
    lines = {}
    for axis, (column, title) in zip(panels, CURVES.items(), strict=True):
        axis.set_title(title, loc="left", fontweight="bold", fontsize=9)
        for index, (name, group) in enumerate(groups.items()):
            steps, values = plots.align(group.rows, column)
            if not steps.size:
                continue
            colour = plots.COLOURS[index % len(plots.COLOURS)]
            (lines[name],) = axis.plot(steps, values.mean(0), color=colour, linewidth=1.8)
            if len(values) > 1:
                interval = plots.bootstrap_interval(values)
                axis.fill_between(steps, *interval, color=colour, alpha=0.18, linewidth=0)
        axis.set_xlim(left=0)
        axis.set_ylim(0, 1.02 if "coverage" in column else None)
        axis.xaxis.set_major_formatter(lambda value, _: plots.steps_text(value))
        axis.set_xlabel("env steps")
    longest = max(map(len, lines))
    columns = max(1, int(2 * TIMES * PANEL / (0.5 + 0.075 * longest)))  # as many as fit the width
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=columns, fontsize=8)


def _draw_places(figure: Any, groups: Mapping[str, Group]) -> None:
    """Traces at the left, maps at the right, a line for the first seed of every group."""
    left, right = figure.subfigures(1, 2)
    left.suptitle("places since the evaluation before (red), earlier (grey)", fontsize=9)
    right.suptitle("value of places, from the least (dark) to the largest (bright)", fontsize=9)
    ratios = [rows / columns for rows, columns in (_grid(g).numbers.shape for g in groups.values())]
    traces, maps = (
        half.subplots(len(groups), TIMES, squeeze=False, height_ratios=ratios)
        for half in (left, right)
    )
    for line, (name, group) in enumerate(groups.items()):
        grid, first = _grid(group), group.first
        shown = times([row["env_step"] for row in first])
        for axis in (*traces[line], *maps[line]):
            _draw_walls(axis, grid)
        traces[line, 0].set_ylabel(textwrap.fill(name, 22), fontsize=8)
        for column, step in enumerate(shown):
            for axis in (traces[line, column], maps[line, column]):
                axis.set_title(plots.steps_text(step), fontsize=8)
        for axis in (*traces[line, len(shown) :], *maps[line, len(shown) :]):
            axis.set_visible(False)
        _fill(traces[line], maps[line], group, shown)


def _fill(traces: Sequence[Any], maps: Sequence[Any], group: Group, shown: Sequence[int]) -> None:
    """Draw what the first lane of a group recorded at the env steps `shown`."""
    from ace.run.explore import FOLDER

    grid, lane, folder = _grid(group), group.first[0]["lane"], group.first[0]["folder"]
    earlier = np.empty((0, 2), np.float32)
    for row in group.first:
        path = folder / FOLDER / f"{row['env_step']}.safetensors"
        if not path.exists():  # of a run of which only the tables were kept
            continue
        arrays = load_file(path)
        trace = arrays[f"lane-{lane}.trace"]
        if row["env_step"] in shown:
            column = shown.index(row["env_step"])
            for part, colour in ((earlier, EARLIER), (trace, NEWEST)):
                dots = {"markersize": 1.2, "markeredgewidth": 0, "rasterized": True}
                traces[column].plot(part[:, 1], part[:, 0], ".", color=colour, **dots)
            if f"lane-{lane}.value" in arrays:
                places, values = (arrays[f"lane-{lane}.{name}"] for name in ("place", "value"))
                maps[column].imshow(image(grid, places, values), extent=_extent(grid))
                span = (
                    f"{plots.steps_text(row['env_step'])}: {values.min():.3g} to {values.max():.3g}"
                )
                maps[column].set_title(span, fontsize=8)
        earlier = np.concatenate([earlier, trace])


def times(steps: Sequence[int]) -> list[int]:
    """A few of the env steps, at about equal distances, the last among them."""
    picks = np.linspace(0, len(steps), min(TIMES, len(steps)) + 1)[1:]
    return [steps[round(pick) - 1] for pick in picks]


def image(grid: Grid, places: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The values of places [P] as a picture of the whole maze, NaN where there are none."""
    from ace.run.explore import SPACING

    rows, columns = grid.numbers.shape
    picture = np.full((round(rows / SPACING), round(columns / SPACING)), np.nan)
    row, column = np.floor((places + OFFSET + 0.5) / SPACING).astype(int).T
    picture[row, column] = values
    return picture


def _draw_walls(axis: Any, grid: Grid) -> None:
    from matplotlib.colors import ListedColormap

    colours = ListedColormap([WALL, "white"])
    axis.imshow(grid.numbers >= 0, cmap=colours, extent=_extent(grid), vmin=0, vmax=1)
    axis.set(xticks=[], yticks=[])
    axis.grid(False)
    axis.spines[:].set_visible(False)


def _extent(grid: Grid) -> tuple[float, float, float, float]:
    """Left, right, bottom and top of the maze: columns to the right, rows downwards."""
    edge = -OFFSET - 0.5
    rows, columns = grid.numbers.shape
    return edge, columns + edge, rows + edge, edge


def _grid(group: Group) -> Grid:
    return read_grid(group.task.removeprefix("maze/"))
