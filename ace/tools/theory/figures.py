"""How bound and loss depend on horizon, model error and novelty bias: the bound for errors of a
given size, the largest loss that hill climbing finds with such errors, and the mean loss of random
problems."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ace.tools import plots
from ace.tools.theory.mdps import Array, Problems
from ace.tools.theory.search import Genes, best_of, build, climb, draw
from ace.tools.theory.statements import corollary_1_sharper, greedy_loss, model_cost

DISCOUNT = 0.9
MODEL, VALUE, NOVELTY = 0.01, 0.5, 0.1  # errors, where the panel does not vary them
MODELS = (0.0, 0.01, 0.03)  # the curves of the first panel
HORIZONS = (1, 3, 10)  # the curves of the other panels
SIZE = (3, 2)  # states and actions
CLIMBERS = 16  # for each point
CLIMB_STEPS = 250
FIRST_DRAWS = 12
STYLE: dict[Any, Any] = plots.STYLE | {"pdf.fonttype": 42}
GREEDY = 0  # stands for the horizon of the greedy policy


class Point(NamedTuple):
    """A point of a figure."""

    panel: str
    horizon: int  # GREEDY is the greedy policy, which needs no model
    model_error: float
    novelty_bias: float
    bound: float  # Corollary 1, sharper; Lemma 1, corrected, if greedy
    printed: float  # Corollary 1; Lemma 1, both as printed
    largest_loss: float
    mean_loss: float


def dependence(seed: int) -> list[Point]:
    """All points of the three panels."""
    points = []
    for horizon in (1, 2, 3, 4, 6, 8, 10, 13, 16):
        points += _points("horizon", horizon, [(model, NOVELTY) for model in MODELS], seed)
    for horizon in HORIZONS:
        errors = [(model, NOVELTY) for model in (0, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1)]
        points += _points("model error", horizon, errors, seed)
    for horizon in (GREEDY, *HORIZONS):
        errors = [(MODEL, novelty) for novelty in (0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)]
        points += _points("novelty bias", horizon, errors, seed)
    return points


def bounds(horizon: int, model: Array, novelty: Array) -> tuple[Array, Array]:
    """Our bound and the printed one [N] for errors of this size, rewards up to 1, and the largest
    value that a learned value function can then have."""
    discount, alpha = np.full_like(model, DISCOUNT), novelty / (1 - DISCOUNT)
    if horizon == GREEDY:
        scale = 2 * DISCOUNT / (1 - DISCOUNT)
        return scale * VALUE + alpha, scale * (VALUE + alpha)
    most_value = (1 + novelty) / (1 - DISCOUNT) + VALUE
    cost = model_cost(discount, horizon, model, np.ones_like(model), most_value)
    far = DISCOUNT**horizon
    scale = 2 / (1 - far)
    return scale * (cost + far * VALUE) + far * alpha, scale * (cost + far * (VALUE + alpha))


def _points(
    panel: str, horizon: int, errors: Sequence[tuple[float, float]], seed: int
) -> list[Point]:
    """The points of one horizon; `errors` are pairs of model error and novelty bias, one of which
    grows."""
    model, novelty = np.array(errors, float).T
    loss: Callable[[Problems], Array] = (
        greedy_loss if horizon == GREEDY else lambda problems: corollary_1_sharper(problems).loss
    )
    levels = np.stack([model, np.full_like(model, VALUE), novelty, np.zeros_like(model)], axis=1)
    levels = np.repeat(levels, CLIMBERS, axis=0)
    draws = []
    for index in range(FIRST_DRAWS):
        # The same problems at every point, so that the mean loss shows errors and not chance.
        rng = np.random.default_rng([seed, index])
        drawn = draw(rng, np.full(CLIMBERS, DISCOUNT), SIZE, max(horizon, 1), signed=False)
        repeated = Genes(*(np.concatenate([array] * len(errors)) for array in drawn))
        draws.append(repeated._replace(levels=levels))
    mean = np.mean([loss(build(genes)) for genes in draws], axis=0)
    rng = np.random.default_rng([seed, horizon, len(panel)])
    held = np.zeros(levels.shape, bool)
    found = climb(rng, best_of(loss, draws), loss, CLIMB_STEPS, signed=False, free=held)
    columns = (
        *bounds(horizon, model, novelty),
        # Errors of at most this size: a loss with smaller ones is possible here too.
        np.maximum.accumulate(found.reshape(-1, CLIMBERS).max(1)),
        mean.reshape(-1, CLIMBERS).mean(1),
    )
    numbers = np.stack(columns, axis=1)
    return [
        Point(panel, horizon, *pair, *row)
        for pair, row in zip(errors, numbers.tolist(), strict=True)
    ]


def write(points: Sequence[Point], out: Path) -> list[Path]:
    """Draw the three panels as dependence.png and dependence.pdf."""
    import matplotlib
    from matplotlib.figure import Figure

    models = {rf"$\epsilon_m = {model:g}$": ("model_error", model) for model in MODELS}
    horizons = {f"H = {horizon}": ("horizon", float(horizon)) for horizon in HORIZONS}
    greedy = {"greedy (Lemma 1)": ("horizon", float(GREEDY))}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 3.6), layout="constrained")
        panels = figure.subplots(1, 3, sharey=True)
        _panel(panels[0], points, "horizon", models)
        _panel(panels[1], points, "model error", horizons)
        _panel(panels[2], points, "novelty bias", horizons | greedy)
        panels[0].set_xlabel("H")
        panels[1].set_xlabel(r"$\epsilon_m$")
        panels[2].set_xlabel(r"$\epsilon_r$")
        panels[0].set_ylabel("loss in the worst state")
        panels[0].set_ylim(1.5e-3, 200)
        _legend(figure)
        paths = [out / "dependence.png", out / "dependence.pdf"]
        for path in paths:
            _save(figure, path)
    return paths


def _panel(
    axis: Any, points: Sequence[Point], panel: str, curves: Mapping[str, tuple[str, float]]
) -> None:
    """A curve for each label: the points where a column has a value."""
    shown = panel.replace(" ", "_")  # the column that the panel is about
    for (label, (column, value)), colour in zip(curves.items(), plots.COLOURS, strict=False):
        mine = [p for p in points if p.panel == panel and getattr(p, column) == value]
        x = [getattr(p, shown) for p in mine]
        axis.plot(x, [p.bound for p in mine], color=colour, linewidth=2, label=label)
        axis.plot(x, [p.printed for p in mine], color=colour, linewidth=1, linestyle=":")
        axis.plot(x, [p.largest_loss for p in mine], "o", color=colour, markersize=4)
        axis.plot(x, [p.mean_loss for p in mine], color=colour, linewidth=1, linestyle="--")
    axis.axhline(1 / (1 - DISCOUNT), color="#999999", linewidth=1)
    axis.set_yscale("log")
    axis.set_title(panel, loc="left", fontweight="bold")
    axis.legend(fontsize=7.5, loc="lower left", ncols=2)


def _legend(figure: Any) -> None:
    from matplotlib.lines import Line2D

    styles = {
        "our bound": {"linewidth": 2},
        "printed bound": {"linewidth": 1, "linestyle": ":"},
        "largest loss found": {"marker": "o", "markersize": 4, "linestyle": ""},
        "mean loss of random MDPs": {"linewidth": 1, "linestyle": "--"},
        "largest possible loss": {"linewidth": 1, "color": "#999999"},
    }
    handles = [Line2D([], [], label=name, **{"color": "#444444"} | s) for name, s in styles.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8)


def _save(figure: Any, path: Path) -> None:
    """Write the whole file or none; without dates, so that equal numbers make equal files."""
    content, kind = io.BytesIO(), path.suffix.removeprefix(".")
    nothing = {"Software": None} if kind == "png" else {"CreationDate": None}
    figure.savefig(content, format=kind, dpi=110, metadata=nothing)
    path.write_bytes(content.getvalue())
