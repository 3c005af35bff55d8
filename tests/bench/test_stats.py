"""Aggregates and intervals equal rliable's on the same bootstrap samples; what rliable does not do
(unequal numbers of runs, differences, factorial runs) equals numbers worked out by hand."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from ace.bench import stats

AGGREGATES: list[Callable[..., Any]] = [
    stats.iqm,
    stats.median,
    stats.mean,
    partial(stats.optimality_gap, target=0.7),
]
NAMES = ["iqm", "median", "mean", "gap"]
BARS = np.linspace(-0.1, 1.1, 13)


def matrix(runs: int, tasks: int, seed: int = 0) -> np.ndarray:
    """Scores [runs, tasks], as rliable has them; rounded, so that there are ties."""
    rng = np.random.default_rng(seed)
    return np.round(rng.beta(0.5 + np.arange(tasks) % 4, 1.5, size=(runs, tasks)), 2)


@pytest.fixture(scope="module")
def rliable() -> Any:
    # Imported when needed: it brings statsmodels and pandas, which take seconds.
    from rliable import library, metrics

    def gap(scores: np.ndarray) -> Any:
        target: Any = 0.7  # they declare an int
        return metrics.aggregate_optimality_gap(scores, gamma=target)

    class Theirs:
        aggregates = (metrics.aggregate_iqm, metrics.aggregate_median, metrics.aggregate_mean, gap)
        improvement = staticmethod(metrics.probability_of_improvement)
        rooms = library

    return Theirs


@pytest.fixture
def recorded(rliable, monkeypatch) -> Iterator[list]:
    """What rliable's bootstraps draw, in a list that grows with each sample."""
    samples = []
    for kind in (rliable.rooms.StratifiedBootstrap, rliable.rooms.StratifiedIndependentBootstrap):

        def draw(self, original=kind.update_indices):
            samples.append(original(self))
            return samples[-1]

        monkeypatch.setattr(kind, "update_indices", draw)
    yield samples


def as_picks(samples: list[np.ndarray]) -> list[np.ndarray]:
    """Samples of indices [runs, tasks] as one array [samples, runs] per task."""
    return list(np.moveaxis(np.stack(samples), 2, 0))


@pytest.mark.parametrize("runs, tasks", [(10, 15), (5, 15), (5, 3), (3, 1), (1, 7), (1, 1)])
def test_aggregates_are_those_of_rliable(rliable, runs: int, tasks: int) -> None:
    scores = matrix(runs, tasks)
    for ours, theirs in zip(AGGREGATES, rliable.aggregates, strict=True):
        np.testing.assert_allclose(ours(scores.T), theirs(scores), rtol=1e-13)
    profile = rliable.rooms.score_distributions(scores, BARS)
    np.testing.assert_allclose(stats.performance_profile(scores.T, BARS), profile, rtol=1e-13)


@pytest.mark.parametrize("index", range(4), ids=NAMES)
@pytest.mark.parametrize("level", [0.95, 0.8])
def test_intervals_are_those_of_rliable(rliable, recorded, index: int, level: float) -> None:
    scores, theirs = matrix(5, 15), rliable.aggregates[index]
    _, wanted = rliable.rooms.get_interval_estimates(
        {"x": scores}, lambda s: np.array([theirs(s)]), reps=300, confidence_interval_size=level
    )
    picks = as_picks([sample[0] for sample in recorded])
    assert picks[0].shape == (300, 5)
    found = stats.interval(AGGREGATES[index], scores.T, level=level, picks=[picks])
    np.testing.assert_allclose(found, wanted["x"].ravel(), rtol=1e-12)


def test_profiles_have_the_interval_of_rliable(rliable, recorded) -> None:
    scores = matrix(6, 5)
    _, wanted = rliable.rooms.create_performance_profile({"x": scores}, BARS, reps=100)
    picks = as_picks([sample[0] for sample in recorded])
    profile = partial(stats.performance_profile, thresholds=BARS)
    found = stats.interval(profile, scores.T, picks=[picks])
    np.testing.assert_allclose(found, wanted["x"], rtol=1e-12)


def test_the_probability_of_improvement_is_that_of_rliable(rliable, recorded) -> None:
    x, y = matrix(6, 4), matrix(5, 4, seed=1)
    point, wanted = rliable.rooms.get_interval_estimates(
        {"xy": [x, y]}, lambda a, b: np.array([rliable.improvement(a, b)]), reps=100
    )
    np.testing.assert_allclose(
        stats.probability_of_improvement(x.T, y.T), point["xy"][0], rtol=1e-13
    )
    picks = [as_picks([sample[0][side][0] for sample in recorded]) for side in (0, 1)]
    found = stats.interval(stats.probability_of_improvement, x.T, y.T, picks=picks)
    np.testing.assert_allclose(found, wanted["xy"].ravel(), rtol=1e-12)


def test_improvement_counts_ties_half() -> None:
    # First task: 3 > 1, 3 > 2, 2 > 1 and 2 = 2 of four pairs; second task: none of two.
    x, y = [np.array([3.0, 2.0]), np.array([0.0])], [np.array([1.0, 2.0]), np.array([5.0, 6.0])]
    assert stats.probability_of_improvement(x, y) == (3.5 / 4 + 0) / 2
    assert stats.probability_of_improvement(x, x) == 0.5


# Tasks with different numbers of runs


def test_tasks_count_the_same_whatever_their_number_of_runs() -> None:
    scores = [np.array([0.0, 1.0, 2.0]), np.array([4.0]), np.array([0.5, 0.5])]
    assert stats.mean(scores) == (1 + 4 + 0.5) / 3
    assert stats.median(scores) == 1
    assert stats.optimality_gap(scores) == pytest.approx((1 / 3 + 0 + 0.5) / 3)
    profile = stats.performance_profile(scores, [0.0, 1.0, 9.0])
    np.testing.assert_allclose(profile, [(2 / 3 + 1 + 1) / 3, (1 / 3 + 1 + 0) / 3, 0])


def test_iqm_of_unequal_numbers_by_hand() -> None:
    # Four runs each: [0, 0, 8, 8] and [1, 2, 3, 4]; two are cut at each end: 1, 2, 3, 4 stay.
    assert stats.iqm([np.array([0.0, 8.0]), np.array([1.0, 2.0, 3.0, 4.0])]) == 2.5
    # Two each: [5, 5] and [1, 9]; 9 and 1 go.
    assert stats.iqm([np.array([5.0]), np.array([1.0, 9.0])]) == 5
    # Three each: [6, 6, 6] and [0, 3, 9]; one of six goes at each end: 3, 6, 6, 6.
    assert stats.iqm([np.array([6.0]), np.array([0.0, 3.0, 9.0])]) == 5.25


@pytest.mark.parametrize("counts", [(1, 2), (2, 3, 5), (9, 10, 15, 14), (4, 4, 6), (3, 3, 3)])
def test_iqm_is_the_trimmed_mean_of_repeated_runs(counts: tuple[int, ...]) -> None:
    from scipy.stats import trim_mean  # it takes a second, which collecting tests should not

    rng, common = np.random.default_rng(3), math.lcm(*counts)
    scores = [np.round(rng.normal(size=n), 1) for n in counts]
    pool = np.concatenate([np.repeat(task, common // len(task)) for task in scores])
    assert stats.iqm(scores) == pytest.approx(trim_mean(pool, 0.25), abs=1e-12)
    assert stats.iqm(scores[::-1]) == pytest.approx(stats.iqm(scores), abs=1e-12)
    assert stats.iqm([-task for task in scores]) == pytest.approx(-stats.iqm(scores), abs=1e-12)


# Intervals


def test_leading_axes_are_kept() -> None:
    rng = np.random.default_rng(0)
    scores = [rng.normal(size=(2, 3, n)) for n in (4, 5)]
    for aggregate in AGGREGATES:
        alone = [[aggregate([task[i, j] for task in scores]) for j in range(3)] for i in range(2)]
        np.testing.assert_allclose(aggregate(scores), alone, rtol=1e-13)
    assert stats.performance_profile(scores, BARS).shape == (2, 3, 13)


def test_an_interval_by_hand() -> None:
    """Three samples of the mean: (1 + 9) / 2, (2 + 9) / 2 and (3 + 9) / 2."""
    scores = [np.array([1.0, 3.0]), np.array([9.0])]
    picks = [np.array([[0, 0], [0, 1], [1, 1]]), np.zeros((3, 1), int)]
    assert stats.interval(stats.mean, scores, level=0.5, picks=[picks]) == (5.25, 5.75)


def test_intervals_depend_on_the_generator_alone() -> None:
    scores = matrix(5, 4).T
    one, other = (stats.interval(stats.iqm, scores, samples=50) for _ in range(2))
    assert one == other != stats.interval(stats.iqm, scores, samples=50, rng=1)
    assert one == stats.interval(stats.iqm, scores, samples=50, rng=np.random.default_rng(0))


def test_draws_stay_within_the_runs_of_each_task() -> None:
    scores = [np.zeros(3), np.zeros(7), np.zeros(1)]
    picks = stats.draw(scores, 500, np.random.default_rng(0))
    assert [pick.shape for pick in picks] == [(500, 3), (500, 7), (500, 1)]
    assert [set(pick.flat) for pick in picks] == [set(range(n)) for n in (3, 7, 1)]


def test_the_interval_of_a_mean_is_that_of_theory() -> None:
    scores = [np.random.default_rng(task).normal(size=400) for task in range(4)]
    low, high = stats.interval(stats.mean, scores)
    assert high - low == pytest.approx(2 * 1.96 / math.sqrt(4 * 400), rel=0.1)
    assert low < stats.mean(scores) < high


def test_one_run_per_task_has_no_spread() -> None:
    low, high = stats.interval(stats.iqm, [np.array([1.0]), np.array([3.0])], samples=20)
    assert low == high == 2


def test_all_samples_are_aggregated_at_once() -> None:
    """One call for each of 2,000 samples would take seconds."""
    shapes = []

    def counted(scores: list[np.ndarray]) -> np.ndarray:
        shapes.append([task.shape for task in scores])
        return stats.iqm(scores)

    stats.interval(counted, matrix(10, 15).T, samples=50)
    assert shapes == [[(50, 10)] * 15]


def test_wrong_intervals_are_refused() -> None:
    scores = [np.ones(3), np.ones(3)]
    with pytest.raises(ValueError, match="reduce the last axis"):
        stats.interval(lambda tasks: np.mean(tasks), scores)
    with pytest.raises(ValueError, match="level is 95"):
        stats.interval(stats.mean, scores, level=95)
    with pytest.raises(ValueError, match=r"task 1 has scores of shape \(2, 2\)"):
        stats.interval(stats.mean, [np.ones(3), np.ones((2, 2))])


# Differences


def test_a_difference_by_hand() -> None:
    x = [np.array([3.0, 5.0]), np.array([10.0])]
    y = [np.array([1.0, 2.0, 3.0]), np.array([11.0])]
    tasks, mean = stats.difference(x, y)
    np.testing.assert_allclose(tasks.value, [2, -1])
    assert mean.value == 0.5
    assert tasks.low[0] < 2 < tasks.high[0] and tasks.low[1] == tasks.high[1] == -1
    # One run in the second task: all the width of the mean is half that of the first.
    np.testing.assert_allclose(mean.high - mean.low, (tasks.high[0] - tasks.low[0]) / 2)
    assert mean.low == pytest.approx((tasks.low[0] - 1) / 2)


def test_pairing_removes_what_a_seed_does_to_both() -> None:
    luck = np.random.default_rng(0).normal(scale=100, size=10)
    y = [dict(enumerate(luck))]
    x = [{seed: score + 7 for seed, score in reversed(y[0].items())}]
    paired, unpaired = stats.difference(x, y, paired=True), stats.difference(x, y)
    np.testing.assert_allclose([paired.tasks.low[0], paired.mean.high], 7)
    assert unpaired.mean.value == pytest.approx(7)
    assert unpaired.mean.high - unpaired.mean.low > 50
    arrays = stats.difference([np.array([*x[0].values()])], [luck])
    assert arrays.mean == unpaired.mean


def test_a_paired_interval_is_that_of_the_differences() -> None:
    x = [{1: 4.0, 2: 9.0}, {"a": 1.0, "b": 2.0, "c": 4.0}]
    y = [{2: 3.0, 1: 1.0}, {"a": 1.0, "b": 1.0, "c": 1.0}]
    gains = [np.array([3.0, 6.0]), np.array([0.0, 1.0, 3.0])]
    found = stats.difference(x, y, paired=True).mean
    assert found == (stats.mean(gains), *stats.interval(stats.mean, gains))


def test_wrong_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"task 1: seeds \[0, 2\]"):
        stats.difference([{0: 1.0}, {0: 1.0}], [{0: 1.0}, {2: 1.0}], paired=True)
    with pytest.raises(ValueError, match="task 0: pairing needs to know the seeds"):
        stats.difference([np.ones(2)], [np.ones(2)], paired=True)
    with pytest.raises(ValueError, match="task 0 has no runs"):
        stats.difference([{}], [{}], paired=True)
    for compare in (stats.difference, stats.probability_of_improvement):
        with pytest.raises(ValueError, match="x has 1 tasks and y has 2"):
            compare([np.ones(2)], [np.ones(2), np.ones(2)])


# Factorial runs

CELLS: list[tuple[dict[str, Any], Any]] = [
    ({"rate": 0, "norm": "none"}, {0: 10, 1: 12}),
    ({"rate": 0, "norm": "layer"}, {0: 20, 1: 26}),
    ({"rate": 1, "norm": "none"}, {0: 14, 1: 18}),
    ({"rate": 1, "norm": "layer"}, {1: 30, 0: 30}),
]


def test_main_effects_by_hand() -> None:
    """Variances within cells are 2, 18, 8 and 0, so s^2 = 7; every level has four runs."""
    error = math.sqrt(7 * (1 / 4 + 1 / 4))
    arrays = [(settings, np.array([*runs.values()], float)) for settings, runs in CELLS]
    for effects in (stats.main_effects(CELLS), stats.main_effects(arrays)):
        (first, rate), (none, layer) = effects["rate"], effects["norm"]
        assert (first.level, first.mean, first.effect, first.error) == (0, 17, 0, 0)
        assert math.isnan(first.ratio)
        assert rate == pytest.approx((1, 23, 6, error, 6 / error))
        assert (none.level, none.mean, layer.level) == ("none", 13.5, "layer")
        assert layer[1:] == pytest.approx((26.5, 13, error, 13 / error))


def test_paired_main_effects_by_hand() -> None:
    """Seed 0 gains 7 by the rate and seed 1 gains 5; both gain 13 by the norm."""
    effects = stats.main_effects(CELLS, paired=True)
    assert effects["rate"][1] == pytest.approx((1, 23, 6, 1, 6))
    assert effects["norm"][1] == ("layer", 26.5, 13, 0, math.inf)


def test_three_levels_are_compared_with_the_first() -> None:
    cells = [
        ({"rate": rate}, np.array([mean - 1.0, mean + 1.0]))
        for rate, mean in ((0.1, 5.0), (1.0, 9.0), (10.0, 2.0))
    ]
    effects = stats.main_effects(cells)["rate"]
    assert [each.effect for each in effects] == [0, 4, -3]
    assert [each.error for each in effects] == pytest.approx([0, math.sqrt(2), math.sqrt(2)])


def test_the_error_is_the_spread_of_repeated_experiments() -> None:
    rng, found = np.random.default_rng(0), []
    for _ in range(300):
        cells = [(settings, rng.normal(size=5)) for settings, _ in CELLS]
        found.append(stats.main_effects(cells)["rate"][1])
    effects, errors = np.array([each[2:4] for each in found]).T
    assert effects.std() == pytest.approx(np.sqrt(np.mean(errors**2)), rel=0.1)


def test_with_one_run_a_cell_the_error_is_what_the_effects_leave() -> None:
    """Ordinary least squares with an intercept and a column per factor, by another route."""
    rng = np.random.default_rng(1)
    base = [(a, b, c) for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)]
    design = np.array([(*abc, abc[0] * abc[1] * abc[2]) for abc in base])
    scores = design @ (3.0, 0.0, -1.0, 0.5) + rng.normal(size=8)
    cells = [
        (dict(zip("abcd", row, strict=True)), {10: score})
        for row, score in zip(design.tolist(), scores, strict=True)
    ]
    matrix = np.column_stack([np.ones(8), design])
    weights, (left,), *_ = np.linalg.lstsq(matrix, scores, rcond=None)
    error = 2 * np.sqrt(left / (8 - 5) / 8)  # an effect is twice its weight
    for paired in (False, True):
        found = stats.main_effects(cells, paired=paired)
        for name, weight in zip("abcd", weights[1:], strict=True):
            assert found[name][1].effect == pytest.approx(2 * weight)
            assert found[name][1].error == pytest.approx(error)


def test_too_few_cells_with_one_run_have_effects_without_errors() -> None:
    single = [(settings, np.array([runs[0]], float)) for settings, runs in CELLS]
    effects = stats.main_effects(single)
    means = [runs[0] for _, runs in CELLS]
    assert effects["rate"][1].effect == pytest.approx(np.mean(means[2:]) - np.mean(means[:2]))
    assert math.isnan(effects["rate"][1].error) and effects["rate"][0].error == 0


def test_an_orthogonal_fraction_is_balanced() -> None:
    half = [(a, b, a * b) for a in (-1, 1) for b in (-1, 1)]
    cells = [(dict(zip("abc", abc, strict=True)), 3.0 * abc[2] + np.array([-1, 1])) for abc in half]
    effects = stats.main_effects(cells)
    assert [effects[name][1].effect for name in "ab"] == [0, 0]
    assert abs(effects["c"][1].effect) == 6


def test_unbalanced_designs_are_refused() -> None:
    def refused(cells: list, match: str, paired: bool = False) -> None:
        with pytest.raises(ValueError, match=match):
            stats.main_effects(cells, paired=paired)

    refused([], "no cells")
    refused(CELLS[:3], "unbalanced: 2 of 3 cells have {'rate': 0}")
    crossed = [({"a": a, "b": b}, [1, 2]) for a, b in ((0, 0), (1, 1))]
    refused(crossed, "unbalanced: 1 of 2 cells have {'a': 0, 'b': 0}")
    refused([*CELLS[:3], CELLS[0]], "two cells have the settings {'rate': 0, 'norm': 'none'}")
    refused([*CELLS[:3], ({"rate": 1}, {0: 1, 1: 1})], r"cell 3 sets \['rate'\]")
    refused([*CELLS[:3], (CELLS[3][0], np.ones(3))], r"\[2, 2, 2, 3\] runs")
    refused([*CELLS[:3], (CELLS[3][0], {0: 1, 7: 1})], r"seeds \[1, 7\]", paired=True)
    refused([*CELLS[:3], (CELLS[3][0], {0: 1, 1: math.nan})], "cell 3 has 1 scores of 2")


# What is not a score


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_are_refused_by_task(bad: float) -> None:
    scores = [np.ones(3), np.ones(3), np.array([1.0, bad, 2.0])]
    uses = [
        *(partial(aggregate, scores) for aggregate in AGGREGATES),
        partial(stats.performance_profile, scores, BARS),
        partial(stats.probability_of_improvement, scores, scores[:1] * 3),
        partial(stats.probability_of_improvement, scores[:1] * 3, scores),
        partial(stats.interval, stats.iqm, scores),
        partial(stats.difference, scores, scores[:1] * 3),
        partial(stats.difference, scores[:1] * 3, scores),
        partial(
            stats.difference,
            [dict(enumerate(task)) for task in scores],
            [dict(enumerate(np.ones(3)))] * 3,
            paired=True,
        ),
    ]
    for use in uses:
        with pytest.raises(ValueError, match="task 2 has 1 scores of 3 that are not finite"):
            use()


def test_tasks_without_runs_are_refused() -> None:
    for aggregate in AGGREGATES:
        with pytest.raises(ValueError, match="task 1 has no runs"):
            aggregate([np.ones(2), np.ones(0)])
        with pytest.raises(ValueError, match="no scores"):
            aggregate([])
        with pytest.raises(ValueError, match="task 0 is a single number"):
            aggregate(np.ones(3))
    with pytest.raises(ValueError, match="task 1 has no runs"):
        stats.interval(stats.mean, [np.ones(2), np.ones(0)])
