"""Problems that try to violate the bounds: drawn at random, and climbed to from there by keeping
random changes that bring the loss closer to its bound. Random problems alone rarely come close.
Climbers search with all kinds of error at once and with each kind alone, because the kind whose
term is easiest to exhaust would hide the others."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ace.tools.theory.mdps import Array, Problems, optimal
from ace.tools.theory.statements import ERRORS, Sides, Statement

DISCOUNTS = (0.05, 0.2, 0.3, 1 / 3, 0.5, 0.7, 0.9, 0.99)
SIZES = ((1, 2), (2, 2), (3, 2), (5, 3))  # states and actions of random problems
CLIMB_SIZE = (3, 2)
CLIMBERS = 6  # for each discount and kind of error
CLIMB_STEPS = 200
FIRST_DRAWS = 8  # each climber starts from the best of so many
MOST = 4.0  # largest error of a kind
ROUNDING = 1e-12  # times 1 / (1 - gamma)^2: an excess of the loss that is no violation
Score = Callable[[Problems], Array]


class Genes(NamedTuple):
    """What the search varies: a problem whose errors are shapes of size at most 1, times a level
    for each kind of error. All shapes are free, so every problem can be reached."""

    discount: Array  # [N]
    levels: Array  # [N, 4], in the order of ERRORS
    kernel: Array  # [N, S, A, S]
    other: Array  # [N, S, A, S], where the model's error moves probability to
    reward: Array  # [N, S, A], in [0, 1]
    novelty: Array  # [N, S, A], in [0, 1], or in [-1, 1] if signed
    value: Array  # [N, S], in [-1, 1]
    whim: Array  # [N, H, S, A], in [0, 1]


class Count(NamedTuple):
    """What a search has found."""

    checked: int
    violations: int
    largest: float  # loss / bound


Counts = dict[tuple[float, str], Count]  # by discount and kind of search


def draw(
    rng: np.random.Generator, discount: Array, size: tuple[int, int], horizon: int, signed: bool
) -> Genes:
    """Random problems, one for each discount [N]; a fifth of all errors is zero."""
    count, (states, actions) = len(discount), size
    levels = _levels(rng, (count, len(ERRORS)))
    return Genes(
        discount=discount,
        levels=levels * (rng.random(levels.shape) > 0.2),
        kernel=_rows(rng, (count, states, actions, states)),
        other=_rows(rng, (count, states, actions, states)),
        reward=rng.random((count, states, actions)),
        novelty=rng.uniform(-signed, 1, (count, states, actions)),
        value=rng.uniform(-1, 1, (count, states)),
        whim=rng.random((count, horizon, states, actions)),
    )


def build(genes: Genes) -> Problems:
    """The problems that genes describe."""
    model, value, novelty, plan = genes.levels.T
    apart = 0.5 * np.abs(genes.other - genes.kernel).sum(-1, keepdims=True)
    share = np.minimum(1, model[:, None, None, None] / np.maximum(apart, 1e-9))
    bonus = novelty[:, None, None] * genes.novelty
    best = optimal(genes.kernel, genes.reward + bonus, genes.discount)
    return Problems(
        discount=genes.discount,
        kernel=genes.kernel,
        model=genes.kernel + share * (genes.other - genes.kernel),
        reward=genes.reward,
        novelty=bonus,
        value=np.maximum(0, best + value[:, None] * genes.value),
        whim=plan[:, None, None, None] * genes.whim,
    )


def mutate(rng: np.random.Generator, genes: Genes, signed: bool, free: Array) -> Genes:
    """Change a few genes of each problem, and the levels that are `free` [N, 4]."""
    count = len(genes.discount)
    rate = rng.choice([0.03, 0.1, 0.3], count)
    reach = 10 ** rng.uniform(-2.5, 0, count)

    def numbers(old: Array, low: float, high: float) -> Array:
        """Half of the changed numbers jump to an end of their range, where bounds are tight."""
        wide = (count,) + (1,) * (old.ndim - 1)
        near = np.clip(old + reach.reshape(wide) * rng.normal(size=old.shape), low, high)
        end = rng.choice([low, high], old.shape)
        new = np.where(rng.random(old.shape) < 0.5, end, near)
        return np.where(rng.random(old.shape) < rate.reshape(wide), new, old)

    def rows(old: Array) -> Array:
        """Half of the changed rows lead to one state for sure, the others become more likely to."""
        wide = old.shape[:-1]
        sure = np.eye(old.shape[-1])[rng.integers(old.shape[-1], size=wide)]
        share = np.where(rng.random(wide) < 0.5, 1, reach[:, None, None])
        share = share * (rng.random(wide) < rate[:, None, None])
        return old + share[..., None] * (sure - old)

    levels = genes.levels * np.exp(reach[:, None] * rng.normal(size=free.shape))
    jump = rng.random(free.shape) < 0.03
    levels = np.where(jump, _levels(rng, free.shape), np.minimum(levels, MOST))
    levels = np.where(rng.random(free.shape) < 0.03, 0, levels)
    return Genes(
        discount=genes.discount,
        levels=np.where(free, levels, genes.levels),
        kernel=rows(genes.kernel),
        other=rows(genes.other),
        reward=numbers(genes.reward, 0, 1),
        novelty=numbers(genes.novelty, -1 if signed else 0, 1),
        value=numbers(genes.value, -1, 1),
        whim=numbers(genes.whim, 0, 1),
    )


def climb(
    rng: np.random.Generator, genes: Genes, score: Score, steps: int, signed: bool, free: Array
) -> Array:
    """Hill climbing, each problem for itself: keep a change unless it lowers the score. Returns the
    scores [N] that were reached."""
    reached = score(build(genes))
    for _ in range(steps):
        changed = mutate(rng, genes, signed, free)
        found = score(build(changed))
        genes = select(found >= reached, changed, genes)
        reached = np.maximum(found, reached)
    return reached


def select(which: Array, first: Genes, second: Genes) -> Genes:
    """The problems of `first` where `which` [N] is true, else those of `second`."""

    def one(a: Array, b: Array) -> Array:
        return np.where(which.reshape((-1,) + (1,) * (a.ndim - 1)), a, b)

    return Genes(*map(one, first, second))


def best_of(score: Score, draws: Sequence[Genes]) -> Genes:
    """For each climber, the drawn problem with the highest score."""
    best, reached = draws[0], score(build(draws[0]))
    for genes in draws[1:]:
        found = score(build(genes))
        best, reached = select(found > reached, genes, best), np.maximum(found, reached)
    return best


class Checker:
    """Checks problems against a statement and counts by label; a score for `climb`: the ratio of
    loss and bound."""

    def __init__(self, statement: Statement, labels: Sequence[tuple[float, str]]) -> None:
        self.statement, self.labels, self.checked = statement, labels, 0
        self.violations = np.zeros(len(labels), int)
        self.largest = np.zeros(len(labels))

    def __call__(self, problems: Problems) -> Array:
        """The ratios [N]; problems come in equal blocks, in the order of the labels."""
        sides = self.statement.sides(problems)
        ratios, broken = ratio(sides, problems.discount), violated(sides, problems.discount)
        block = (len(self.labels), -1)
        self.checked += ratios.size // len(self.labels)
        self.violations += broken.reshape(block).sum(1)
        self.largest = np.maximum(self.largest, ratios.reshape(block).max(1))
        return ratios

    def counts(self) -> Counts:
        """What was found, by label."""
        found = zip(self.labels, self.violations.tolist(), self.largest.tolist(), strict=True)
        return {label: Count(self.checked, wrong, most) for label, wrong, most in found}


def ratio(sides: Sides, discount: Array) -> Array:
    """Loss over bound [N]; bounds that rounding would dominate are raised."""
    return sides.loss / np.maximum(sides.bound, 100 * ROUNDING / (1 - discount) ** 2)


def violated(sides: Sides, discount: Array) -> Array:
    """Where the loss exceeds the bound by more than rounding, [N]."""
    return sides.loss > sides.bound + ROUNDING / (1 - discount) ** 2


def check_random(
    statement: Statement,
    horizon: int,
    seed: Sequence[int],
    mdps: int,
    discounts: Sequence[float] = DISCOUNTS,
) -> Counts:
    """Check a statement on at least `mdps` random problems, as many for each discount and size."""
    rng = np.random.default_rng(seed)
    checker = Checker(statement, [(discount, "random") for discount in discounts])
    each = -(-mdps // (len(SIZES) * len(discounts)))
    for size in SIZES:
        checker(build(draw(rng, np.repeat(discounts, each), size, horizon, statement.signed)))
    return checker.counts()


def check_climbing(
    statement: Statement,
    horizon: int,
    seed: Sequence[int],
    climbers: int = CLIMBERS,
    steps: int = CLIMB_STEPS,
    discounts: Sequence[float] = DISCOUNTS,
) -> Counts:
    """Check a statement on every problem that hill climbing tries: with all kinds of error, and
    with each kind alone."""
    rng = np.random.default_rng(seed)
    labels = [(d, kind) for d in discounts for kind in ("all", *statement.errors)]
    free = np.array([[kind in ("all", error) for error in ERRORS] for _, kind in labels])
    free = np.repeat(free, climbers, axis=0)
    discount = np.repeat([discount for discount, _ in labels], climbers)

    def start() -> Genes:
        genes = draw(rng, discount, CLIMB_SIZE, horizon, statement.signed)
        return genes._replace(levels=genes.levels * free)

    checker = Checker(statement, labels)
    best = best_of(checker, [start() for _ in range(FIRST_DRAWS)])
    climb(rng, best, checker, steps, statement.signed, free)
    return checker.counts()


def _levels(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Sizes of errors: all orders of magnitude from 0.01 to 2 are as likely."""
    return 10 ** rng.uniform(-2, 0.3, shape)


def _rows(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Random probabilities along the last axis, most of them close to a few states."""
    weights = rng.standard_gamma(0.4, shape) + 1e-9
    return weights / weights.sum(-1, keepdims=True)
