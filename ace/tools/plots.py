"""Figures and videos from recorded runs: learning curves with bootstrap intervals, and episodes as
mp4. Drawing packages are imported only when used."""

import io
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ace.settings.words import counted

Rows = Sequence[Mapping[str, Any]]

# The colours of all figures and of the report's page, for curves of our own: colour-blind readers
# can tell them apart, and they are dark enough for thin lines.
COLOURS = ("#0072b2", "#d55e00", "#00896a", "#b0479a", "#a87900", "#2292bf", "#7350c8", "#6b4a2b")
# Softer tones, for curves of others.
SOFT = (
    *("#6d87ab", "#ab7c48", "#5f9180", "#a9708f", "#8b833f"),
    *("#7d7d7d", "#8370ab", "#4f8b9a", "#99695b", "#5c6a88"),
)
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#777777",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#ebebeb",
    "grid.linewidth": 0.7,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
}
MAX_COLUMNS = 3


def bootstrap_interval(
    values: np.ndarray, level: float = 0.95, samples: int = 2000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap interval of the mean over seeds; `values` is [seeds, points]."""
    picks = np.random.default_rng(seed).integers(len(values), size=(samples, len(values)))
    # A resampled mean weighs each seed by how often it was picked.
    counts = (picks[:, :, None] == np.arange(len(values))).sum(axis=1)
    tail = (1 - level) / 2
    low, high = np.quantile(counts @ values / len(values), [tail, 1 - tail], axis=0)
    return low, high


def align(rows: Rows, column: str = "return") -> tuple[np.ndarray, np.ndarray]:
    """Env steps [points] and values [seeds, points] over the range that all seeds share."""
    curves = _by_seed(rows, column)
    if not curves:
        return np.empty(0), np.empty((0, 0))
    first = max(steps[0] for steps, _ in curves)
    last = min(steps[-1] for steps, _ in curves)
    grid = np.unique(np.concatenate([steps for steps, _ in curves]))
    grid = grid[(grid >= first) & (grid <= last)]
    # Seeds are evaluated at equal steps unless episodes end early; then interpolate.
    return grid, np.stack([np.interp(grid, *curve) for curve in curves])


def learning_curve(folder: Path, out: Path, labels: Mapping[int, str] | None = None) -> None:
    """Draw a run's evaluations, one panel per task; `labels` names the settings of each lane."""
    from ace.run.record import read_csv  # loads JAX, which the other figures do not need

    labels = labels or {}
    rows = read_csv(folder / "eval.csv")
    if not rows:
        raise ValueError(f"{folder / 'eval.csv'} has no evaluations to draw yet")
    train = read_csv(folder / "train.csv") if (folder / "train.csv").exists() else []
    names = _unique(labels.get(row["lane"], "") for row in rows)

    def draw(axis: Any, task: str) -> None:
        for index, name in enumerate(names):

            def mine(row: Mapping[str, Any], name: str = name) -> bool:
                return row["task"] == task and labels.get(row["lane"], "") == name

            colour = _colour(index)
            _draw_run(axis, list(filter(mine, rows)), list(filter(mine, train)), colour)

    with_policy = any(np.isfinite(_floats(rows, "policy_return")))
    first = "planner" if with_policy else "agent"
    keys = [
        (name or first, {"color": _colour(index), "linewidth": 2})
        for index, name in enumerate(names)
    ]
    neutral = COLOURS[0] if len(names) == 1 else "#555555"
    if with_policy:
        keys.append(("policy alone", {"color": neutral, "linewidth": 1.2, "linestyle": "--"}))
    if train:
        dots = {"color": neutral, "alpha": 0.4, "marker": ".", "linestyle": ""}
        keys.append(("training episode", dots))
    _save(_unique(row["task"] for row in rows), draw, keys, out)


def save_video(frames: Sequence[np.ndarray], path: Path, fps: int) -> None:
    """Write RGB frames [height, width, 3] as an mp4 that browsers can play."""
    import imageio.v2 as imageio

    writer: Any  # the package does not type what its formats return
    with warnings.catch_warnings():
        # JAX warns of any fork, but this child becomes the encoder at once and holds no lock.
        warnings.filterwarnings("ignore", message=".*os.fork", category=RuntimeWarning)
        # H.264 needs even sizes; two is the smallest block that guarantees them.
        with imageio.get_writer(path, fps=fps, codec="libx264", macro_block_size=2) as writer:
            for frame in frames:
                writer.append_data(np.asarray(frame, np.uint8))


def _save(
    tasks: Sequence[str],
    draw: Callable[[Any, str], None],
    keys: Sequence[tuple[str, dict[str, Any]]],
    out: Path,
) -> None:
    """Lay out one panel per task, let `draw` fill it, and write the figure."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    columns = min(len(tasks), MAX_COLUMNS)
    lines = -(-len(tasks) // columns)
    # A bare Figure draws with Agg and leaves the user's own backend alone.
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.2 * columns, 3.1 * lines + 0.35), layout="constrained")
        panels = figure.subplots(lines, columns, squeeze=False)
        for index, axis in enumerate(panels.flat):
            if index >= len(tasks):
                axis.set_visible(False)
                continue
            axis.set_title(tasks[index], loc="left", fontweight="bold")
            draw(axis, tasks[index])
            _limits(axis)
            axis.set_xlabel("env steps")
            if index % columns == 0:
                axis.set_ylabel("return")
        handles = [Line2D([], [], label=name, **style) for name, style in keys]
        _add_legend(figure, handles)
        _write_png(figure, out)


def _add_legend(figure: Any, handles: Sequence[Any]) -> None:
    """A legend below the panels, in rows that fit the width. The figure grows by the rows after the
    first, and becomes wider where a single name needs it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()
    for columns in range(len(handles), 0, -1):
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns)
        box = legend.get_window_extent(renderer)
        if box.width <= figure.bbox.width or columns == 1:
            rows = -(-len(handles) // columns)
            width, height = figure.get_size_inches()
            height += box.height / figure.dpi * (1 - 1 / rows)
            figure.set_size_inches(max(width, box.width / figure.dpi + 0.1), height)
            return
        legend.remove()


def _write_png(figure: Any, out: Path) -> None:
    """Save with a palette: a third of the size, without a visible loss in line art."""
    from PIL import Image

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    Image.open(buffer).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(
        out, format="png", optimize=True
    )


def _draw_run(axis: Any, rows: Rows, train: Rows, colour: str) -> None:
    """One task and setting of a run: episodes, each seed, the mean, the policy alone."""
    if not rows:
        return
    steps, returns = _floats(train, "env_step"), _floats(train, "return")
    axis.plot(steps, returns, ".", color=colour, alpha=0.18, markersize=3, markeredgewidth=0)
    curves = _by_seed(rows, "return")
    for curve in curves if len(curves) > 1 else ():
        axis.plot(*curve, color=colour, alpha=0.35, linewidth=0.7)
    axis.plot(*_mean_curve(rows, "policy_return"), color=colour, linewidth=1.2, linestyle="--")
    _draw_mean(axis, rows, color=colour, linewidth=2)
    say_seeds(axis, counted(len({row["seed"] for row in rows}), "seed"))


def _draw_mean(axis: Any, rows: Rows, **style: Any) -> None:
    steps, values = align(rows)
    axis.plot(steps, values.mean(axis=0), **style)
    if len(values) > 1:
        band = {"color": style["color"], "alpha": 0.18, "linewidth": 0}
        axis.fill_between(steps, *bootstrap_interval(values), **band)


def _limits(axis: Any) -> None:
    """Start both axes at zero where the data allow it, and print steps as 100k or 1M."""
    axis.set_xlim(0, max(line.get_xdata()[-1] for line in axis.lines if len(line.get_xdata())))
    if axis.dataLim.ymin >= 0:
        axis.set_ylim(bottom=0)
    axis.xaxis.set_major_formatter(lambda value, _: steps_text(value))


def steps_text(value: float) -> str:
    """A number of steps in short: 500, 100k or 1M."""
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}"


def say_seeds(axis: Any, text: str) -> None:
    """Say above a panel how many seeds its curves have."""
    axis.set_title(text, loc="right", fontsize=8, color="#777777")


def _mean_curve(rows: Rows, column: str) -> tuple[np.ndarray, np.ndarray]:
    steps, values = align(rows, column)
    return steps, values.mean(axis=0) if steps.size else steps


def _by_seed(rows: Rows, column: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Env steps and values of each seed, sorted, without gaps; a repeated step keeps its last."""
    curves: dict[int, dict[float, float]] = {}
    for row in rows:
        if np.isfinite(row[column]):
            curves.setdefault(row["seed"], {})[row["env_step"]] = row[column]
    return [
        (np.array(sorted(curve), float), np.array([curve[step] for step in sorted(curve)], float))
        for curve in curves.values()
    ]


def _colour(index: int) -> str:
    palette = (*COLOURS, *SOFT)
    return palette[index % len(palette)]


def _floats(rows: Rows, column: str) -> np.ndarray:
    return np.array([row[column] for row in rows], float)


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
