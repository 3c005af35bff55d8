"""Statistics of benchmark reports: aggregates over tasks, their bootstrap intervals, comparisons
of two agents, and the main effects of a factorial run.

The aggregates and intervals are those of rliable (Agarwal et al., 2021, "Deep RL at the edge of
the statistical precipice"), extended to tasks with different numbers of runs: every task counts
the same, however many runs it has.

`scores` is one array per task with one final score per run (seed). Arrays may have leading axes,
the same for all tasks; only the last one, the runs, is reduced. `interval` uses this to evaluate
all bootstrap samples in one call. A matrix [tasks, runs] will do as well; rliable's is [runs,
tasks], so transpose it.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Scores = Sequence[np.ndarray] | np.ndarray
BySeed = Mapping[Any, float]  # seed -> score
Value = Any  # a float; an array where the scores have leading axes or there are several values
Settings = Mapping[str, float | str]


class Estimate(NamedTuple):
    """A value and the ends of its interval."""

    value: Value
    low: Value
    high: Value


class Difference(NamedTuple):
    """How far one agent is above another: per task (arrays [tasks]), and the mean over tasks."""

    tasks: Estimate
    mean: Estimate


class Effect(NamedTuple):
    """One level of a factor: its mean, and its difference from the factor's first level."""

    level: float | str
    mean: float
    effect: float
    error: float  # standard error of the effect
    ratio: float  # effect / error


# Aggregates


def mean(scores: Scores) -> Value:
    """Mean over tasks of the task means."""
    return np.mean(_task_means(_checked(scores)), axis=0)


def median(scores: Scores) -> Value:
    """Median over tasks of the task means."""
    return np.median(_task_means(_checked(scores)), axis=0)


def iqm(scores: Scores) -> Value:
    """Interquartile mean: the mean of all runs pooled, without the lowest and highest quarter.

    With equally many runs per task it is `scipy.stats.trim_mean(runs, 0.25)`, and so rliable's:
    of n runs, n // 4 are cut at each end. Otherwise it is that trimmed mean after every run has
    been repeated until all tasks have as many runs as the least common multiple of their numbers.
    Runs on the boundary of a quarter are then cut in part.
    """
    tasks = _checked(scores)
    counts = [task.shape[-1] for task in tasks]
    common = math.lcm(*counts)
    total, cut = len(tasks) * common, len(tasks) * common // 4
    pooled = np.concatenate(tasks, axis=-1)
    order = np.argsort(pooled, axis=-1)
    # Instead of repeating runs, count the copies of each that lie between the two cuts.
    copies = np.repeat([common // count for count in counts], counts)[order]
    ends = np.cumsum(copies, axis=-1)
    kept = np.minimum(ends, total - cut) - np.maximum(ends - copies, cut)
    ranked = np.take_along_axis(pooled, order, axis=-1)
    return np.sum(ranked * np.maximum(kept, 0), axis=-1) / (total - 2 * cut)


def optimality_gap(scores: Scores, target: float = 1.0) -> Value:
    """How far runs stay below `target` on average; what lies above it counts as reaching it."""
    return target - mean([np.minimum(task, target) for task in _checked(scores)])


def performance_profile(scores: Scores, thresholds: Sequence[float] | np.ndarray) -> np.ndarray:
    """Fraction of runs above each threshold [..., thresholds], averaged over tasks.

    Its pointwise interval: `interval(partial(performance_profile, thresholds=...), scores)`.
    """
    tasks = _checked(scores)
    # One threshold at a time: an array [samples, runs, thresholds] would take gigabytes.
    above = [np.mean(_task_means([task > bar for task in tasks]), axis=0) for bar in thresholds]
    return np.stack(above, axis=-1)


def probability_of_improvement(x: Scores, y: Scores) -> Value:
    """Mean over tasks of P(X > Y) + P(X = Y) / 2 for one run of each agent, drawn at random.

    Its interval, for which both agents' runs are resampled: `interval(probability_of_improvement,
    x, y)`.
    """
    wins = []
    for ours, theirs in zip(*_same_tasks(_checked(x), _checked(y)), strict=True):
        ours, theirs = ours[..., :, None], theirs[..., None, :]
        wins.append(np.mean((ours > theirs) + 0.5 * (ours == theirs), axis=(-2, -1)))
    return np.mean(wins, axis=0)


# Intervals


def interval(
    statistic: Callable[..., Value],
    *scores: Scores,
    samples: int = 2000,
    level: float = 0.95,
    rng: np.random.Generator | int = 0,
    picks: Sequence[Sequence[np.ndarray]] | None = None,
) -> tuple[Value, Value]:
    """Stratified bootstrap interval of `statistic(*scores)`: low and high percentile.

    Runs are resampled with replacement within each task, tasks stay as they are, and several
    sets of scores are resampled independently. The interval therefore speaks about new seeds on
    the same tasks, and a task with one run adds no width to it. The statistic is called once, on
    scores [samples, runs], and must reduce the last axis alone. `picks` replaces the random
    draws: for each set of scores, what `draw` returns.
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; give a fraction between 0 and 1, such as 0.95")
    sets = [_one_set(each) for each in scores]
    if picks is None:
        rng = np.random.default_rng(rng)
        picks = [draw(tasks, samples, rng) for tasks in sets]
    resampled = [
        [task[pick] for task, pick in zip(tasks, chosen, strict=True)]
        for tasks, chosen in zip(sets, picks, strict=True)
    ]
    values = np.asarray(statistic(*resampled))
    if values.shape[:1] != resampled[0][0].shape[:1]:
        raise ValueError(
            f"the statistic made an array of shape {values.shape} of {len(resampled[0][0])} "
            "bootstrap samples; let it reduce the last axis of each task's scores, not all axes"
        )
    tail = (1 - level) / 2
    low, high = np.quantile(values, [tail, 1 - tail], axis=0)
    return low, high


def draw(scores: Scores, samples: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Bootstrap samples: for each task, which of its runs each sample takes [samples, runs]."""
    return [rng.integers(len(task), size=(samples, len(task))) for task in scores]


def difference(
    x: Sequence[np.ndarray | BySeed],
    y: Sequence[np.ndarray | BySeed],
    *,
    paired: bool = False,
    samples: int = 2000,
    level: float = 0.95,
    rng: np.random.Generator | int = 0,
) -> Difference:
    """Mean of x minus mean of y, per task and averaged over tasks, with bootstrap intervals.

    Unpaired, the runs of x and y are resampled independently. With `paired`, each task is a
    mapping from seed to score, and the differences of runs with the same seed are resampled: the
    interval is narrower where a seed means the same to both agents.
    """
    _same_tasks(x, y)
    if paired:
        pairs = enumerate(zip(x, y, strict=True))
        sets = [[_by_seed([a, b], f"task {task}") @ (1.0, -1.0) for task, (a, b) in pairs]]
    else:
        sets = [[_runs(task) for task in each] for each in (x, y)]
    value = _gains(*map(_one_set, sets))
    low, high = interval(_gains, *sets, samples=samples, level=level, rng=rng)
    ends = (value, low, high)
    return Difference(Estimate(*(end[:-1] for end in ends)), Estimate(*(end[-1] for end in ends)))


# Factorial runs


def main_effects(
    cells: Sequence[tuple[Settings, np.ndarray | BySeed]], *, paired: bool = False
) -> dict[str, list[Effect]]:
    """For each factor: the mean at each level, and its difference from the factor's first level.

    A cell is a combination of levels and the scores of its runs. Levels keep the order in which
    they first appear. The standard error comes from the variance within cells, pooled over all of
    them: sqrt(s^2 (1/n_level + 1/n_first)), n counting runs. With `paired`, every cell maps the
    same seeds to scores, and the error is that of the mean over seeds of each seed's own effect;
    this removes what a seed does to all cells, but has only (seeds - 1) degrees of freedom. With
    one run in every cell, s^2 is what the main effects leave unexplained; the error is NaN where
    that has fewer than three degrees of freedom.

    Every pair of levels of two factors must occur equally often, as in a full factorial. An
    orthogonal fraction of one passes too; there, interactions add to the main effects.
    """
    if not cells:
        raise ValueError("there are no cells; give (settings, scores) for each combination")
    settings = [dict(setting) for setting, _ in cells]
    levels = _balanced_levels(settings)
    scores = _cell_scores([runs for _, runs in cells], paired)
    columns = {name: [s[name] for s in settings] for name in levels}
    if scores.shape[1] > 1:
        variance = float(scores.var(axis=1, ddof=1).mean())
    else:
        variance, paired = _unexplained(columns, levels, scores[:, 0]), False
    return {
        name: _effects(columns[name], levels[name], scores, variance, paired) for name in levels
    }


def _balanced_levels(settings: Sequence[Settings]) -> dict[str, list[float | str]]:
    """Levels of each factor; refuses designs in which one factor's effect leaks into another's."""
    names = list(settings[0])
    for index, setting in enumerate(settings):
        if set(setting) != set(names):
            raise ValueError(
                f"cell {index} sets {sorted(setting)}, cell 0 sets {sorted(names)}; "
                "give every cell a value for each factor"
            )
    levels = {name: list(dict.fromkeys(s[name] for s in settings)) for name in names}
    cells = Counter(tuple(s[name] for name in names) for s in settings)
    if twice := [cell for cell, count in cells.items() if count > 1]:
        raise ValueError(
            f"two cells have the settings {dict(zip(names, twice[0], strict=True))}; "
            "put their runs into one cell"
        )
    groups = [*itertools.combinations(names, 1), *itertools.combinations(names, 2)]
    for group in groups:
        counts = Counter(tuple(s[name] for name in group) for s in settings)
        choices = list(itertools.product(*(levels[name] for name in group)))
        for choice in choices:
            if counts[choice] * len(choices) != len(settings):
                raise ValueError(
                    f"unbalanced: {counts[choice]} of {len(settings)} cells have "
                    f"{dict(zip(group, choice, strict=True))}; each such combination must occur "
                    "equally often, so add the missing cells or leave out a level"
                )
    return levels


def _cell_scores(runs: Sequence[np.ndarray | BySeed], paired: bool) -> np.ndarray:
    """Scores [cells, runs]; with `paired`, a column is a seed."""
    if paired:
        scores = list(_by_seed(runs, "cells").T)
    else:
        scores = [_runs(cell) for cell in runs]
    scores = _one_set(scores, "cell")
    if len({len(cell) for cell in scores}) > 1:
        counts = [len(cell) for cell in scores]
        raise ValueError(f"unbalanced: the cells have {counts} runs; give each equally many")
    return np.stack(scores)


def _unexplained(
    columns: Mapping[str, Sequence[float | str]],
    levels: Mapping[str, Sequence[float | str]],
    scores: np.ndarray,
) -> float:
    """Variance [cells] that the sum of all main effects leaves, by its degrees of freedom; NaN if
    these are too few to estimate it."""
    free = len(scores) - 1 - sum(len(each) - 1 for each in levels.values())
    if free < 3:
        return math.nan
    rest = scores - scores.mean()
    for name, column in columns.items():
        at_level = np.array([[mine == level for mine in column] for level in levels[name]])
        gains = at_level @ (scores - scores.mean()) / at_level.sum(1)
        rest = rest - gains @ at_level
    return float(np.sum(rest**2) / free)


def _effects(
    of_cell: Sequence[float | str],
    levels: Sequence[float | str],
    scores: np.ndarray,
    variance: float,
    paired: bool,
) -> list[Effect]:
    """Effects of one factor, whose level in each cell is `of_cell`."""
    by_seed = [scores[[level == mine for mine in of_cell]].mean(axis=0) for level in levels]
    runs = scores.size // len(levels)
    pooled = math.sqrt(2 * variance / runs)
    effects = []
    for level, at_level in zip(levels, by_seed, strict=True):
        gain = at_level - by_seed[0]
        effect = float(gain.mean())
        error = float(gain.std(ddof=1)) / math.sqrt(len(gain)) if paired else pooled
        if level == levels[0]:
            error = 0.0  # compared with itself
        ratio = effect / error if error else math.copysign(math.inf, effect) if effect else math.nan
        effects.append(Effect(level, float(at_level.mean()), effect, error, ratio))
    return effects


# What the functions above share


def _checked(scores: Scores, what: str = "task") -> list[np.ndarray]:
    """The scores as float arrays, if there are any and all are finite."""
    arrays = [np.asarray(each, np.float64) for each in scores]
    if not arrays:
        raise ValueError(f"there are no scores; give one array per {what}")
    for index, array in enumerate(arrays):
        if array.ndim == 0:
            raise ValueError(f"{what} {index} is a single number; give an array of its runs")
        if array.shape[-1] == 0:
            raise ValueError(f"{what} {index} has no runs; leave it out or run it")
        if bad := np.count_nonzero(~np.isfinite(array)):
            raise ValueError(
                f"{what} {index} has {bad} scores of {array.size} that are not finite; "
                "find out why these runs failed, and run them again or leave them out"
            )
    return arrays


def _one_set(scores: Scores, what: str = "task") -> list[np.ndarray]:
    """Checked scores without leading axes."""
    arrays = _checked(scores, what)
    for index, array in enumerate(arrays):
        if array.ndim > 1:
            raise ValueError(f"{what} {index} has scores of shape {array.shape}; give one per run")
    return arrays


def _task_means(tasks: Scores) -> np.ndarray:
    """Means over runs [tasks, ...]."""
    return np.stack([task.mean(axis=-1) for task in tasks])


def _same_tasks(x: Sequence, y: Sequence) -> tuple[Sequence, Sequence]:
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} tasks and y has {len(y)}; give both on the same tasks")
    return x, y


def _gains(x: Scores, y: Scores | None = None) -> np.ndarray:
    """Task means of x, less those of y, and at the end their mean over tasks [..., tasks + 1]."""
    gains = _task_means(x) if y is None else _task_means(x) - _task_means(y)
    return np.moveaxis(np.concatenate([gains, gains.mean(axis=0, keepdims=True)]), 0, -1)


def _runs(runs: np.ndarray | BySeed) -> np.ndarray:
    return np.array([*runs.values()] if isinstance(runs, Mapping) else runs, np.float64)


def _by_seed(runs: Sequence[np.ndarray | BySeed], where: str) -> np.ndarray:
    """Scores [seeds, sets] of mappings that all have the same seeds."""
    maps = [each for each in runs if isinstance(each, Mapping)]
    if len(maps) < len(runs):
        raise ValueError(f"{where}: pairing needs to know the seeds; give {{seed: score}}")
    for each in maps:
        if odd := set(each) ^ set(maps[0]):
            raise ValueError(
                f"{where}: seeds {sorted(odd, key=str)} are not in all that is paired; leave them "
                "out, or compare without pairing"
            )
    scores = [[each[seed] for each in maps] for seed in maps[0]]
    return np.array(scores, np.float64).reshape(-1, len(maps))
