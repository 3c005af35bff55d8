"""The planner, watched from outside: it is handed a score that records what it is asked to rate
(2.3 to 2.6), and its refits are done again in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.planners import icem, sequences
from ace.planners.icem import plan, populations
from ace.settings.config import Config, PlanConfig, Ramp, replace
from tests.golden.planning import (
    GOAL,
    LATER,
    SMALL,
    quadratic,
    random_memory,
    scene,
    watch,
    weights_of,
)

# Sizes


def test_population_table() -> None:
    assert populations(PlanConfig()) == [256, 204, 163, 130, 104, 83]
    assert populations(PlanConfig(population=700)) == [700, 560, 448, 358, 286, 228]
    assert populations(PlanConfig(population=100)) == [100, 80, 64, 64, 64, 64]  # twice the elites


def test_proposal_counts() -> None:
    assert icem.proposal_counts(PlanConfig()) == [128, 102, 81, 65, 52, 41]
    assert icem.proposal_counts(PlanConfig(variant="policy_first")) == [256, 0, 0, 0, 0, 0]
    assert icem.reuse_count(PlanConfig()) == 8


@pytest.mark.parametrize("variant", ["mixed", "policy_first"])
@pytest.mark.parametrize("iterations", [1, 3])
def test_the_score_is_told_where_the_proposals_are(variant: str, iterations: int) -> None:
    config = replace(SMALL, {"plan.variant": variant, "plan.iterations": iterations})
    wanted = icem.proposal_counts(config.plan)
    if variant == "policy_first" and iterations == 1:
        wanted = [0]  # the mean takes the place of the first
    assert [p.stop - p.start for _, p, _ in asked(config)] == wanted
    watch(config, quadratic, icem.init(config, 2), scene(config), train=True)  # checks which


def asked(config: Config) -> list[tuple[int, slice, int]]:
    """Candidates, proposals and number of every call of the score, without running the program."""
    calls = []

    def score(actions, proposed, call):
        calls.append((actions.shape[1], proposed, call))
        return jnp.zeros(actions.shape[1])

    def run(m, x):
        return plan(config, score, x.proposals, m, x.context, x.key, True)

    jax.eval_shape(run, icem.init(config, 2), scene(config))
    return calls


def rated(config: Config) -> list[int]:
    return [count for count, *_ in asked(config)]


def test_candidates_per_iteration() -> None:
    assert rated(Config()) == [392, 314, 252, 203, 164, 132]
    released = replace(Config(), {"plan.variant": "policy_first"})
    assert rated(released) == [n + 8 for n in (256, 204, 163, 130, 104, 83)]


def test_the_calls_of_a_plan_are_counted() -> None:
    """A random score draws other numbers in each call: the count is what tells them apart."""
    for changes in ({}, {"plan.variant": "policy_first"}, {"plan.iterations": 1}):
        config = replace(SMALL, changes)
        assert [call for *_, call in asked(config)] == list(range(config.plan.iterations))


# One plan, iteration by iteration


@pytest.fixture(scope="module")
def watched():
    """A plan at a later step of an episode, with all it rated and what came out; the lower bound
    of the deviation is half way on its ramp from 0.05 to 0.01."""
    config = replace(SMALL, {"plan.std_ramp": Ramp(0.05, 2.0 * LATER)})
    memory, x = random_memory(config), scene(config, first=jnp.bool_(False))
    action, after, seen = watch(config, quadratic, memory, x)
    return seen, memory, x, action, after


def test_iterations_are_refitted_as_in_numpy(watched) -> None:
    seen, memory, x, action, after = watched
    sizes, counts = [40, 32, 25], [20, 16, 12]
    # Warm start: everything one step on, the last row twice.
    mean = np.asarray(memory.mean)[[1, 2, 3, 3]]
    old = np.asarray(memory.elites)[[1, 2, 3, 3]]
    std = np.full((4, 2), 0.5)
    for i, (candidates, values) in enumerate(seen):
        n, m = sizes[i], counts[i]
        assert candidates.shape == (4, n + m + 4, 2)
        assert np.abs(candidates).max() <= 1
        np.testing.assert_array_equal(candidates[:, n : n + m], x.proposals[:, :m])
        reused = candidates[:, n + m :]
        if i == 0:  # shifted, with a fresh last action
            np.testing.assert_array_equal(reused[:3], old[:3])
            assert np.abs(reused[3] - old[3]).min() > 1e-4
            assert len(np.unique(reused[3, :, 0])) == 4
        else:  # the best so far, best first
            np.testing.assert_array_equal(reused, old)
        drawn = candidates[:, :n]
        if i == 2:
            np.testing.assert_allclose(drawn[:, 0], mean, atol=1e-5)
            drawn = drawn[:, 1:]
        if i:  # deviations are small enough here that clipping hardly matters
            scale = 1.23 * std  # marginal deviation of the noise for four steps, beta 2.5
            spread = (drawn - mean[:, None]) / scale[:, None]
            assert 0.8 < spread.std() < 1.2
        order = np.argsort(-values, kind="stable")[:8]
        chosen, w = candidates[:, order], weights_of(values[order].astype(float), 0.5)
        fitted = np.einsum("e,hea->ha", w, chosen)
        std = np.sqrt(np.einsum("e,hea->ha", w, (chosen - fitted[:, None]) ** 2))
        std = np.clip(std, 0.03, 2.0)
        mean = 0.1 * mean + 0.9 * fitted
        old = chosen[:, :4]
    np.testing.assert_allclose(after.mean, mean, atol=1e-5)
    np.testing.assert_array_equal(after.elites, old)
    np.testing.assert_array_equal(action, old[0, 0])


def test_policy_first_rates_proposals_alone_at_first() -> None:
    config = replace(SMALL, {"plan.variant": "policy_first"})
    x = scene(config, first=jnp.bool_(False))
    _, _, seen = watch(config, quadratic, random_memory(config), x)
    np.testing.assert_array_equal(seen[0][0][:, :40], x.proposals)
    assert [c.shape[1] for c, _ in seen] == [44, 36, 29]


@functools.cache
def by_place(first: int, end: int | None):
    """A score that prefers candidates by their place: those of a slice first, then the earlier."""

    def score(actions, proposed, call):
        rank = -np.arange(actions.shape[1], dtype=np.float32)
        rank[first:end] += 1000.0
        return rank

    return score


@pytest.mark.parametrize("past, taken", [(-999, 2), (0, 2), (58, 12), (100, 20), (999, 20)])
def test_only_the_present_share_of_proposals_may_be_elite(past: int, taken: int) -> None:
    """On the ramp the share is 0.05, 0.311 and 0.5 of 40, so many steps past the seed phase."""
    config = replace(SMALL, {"plan.iterations": 1, "plan.elites": 30, "plan.elite_reuse": 1.0})
    config = replace(config, {"plan.policy_ramp": Ramp(0.05, 100.0, after_seed=True)})
    x = scene(config, agent_step=jnp.int32(config.seed_steps + past))
    _, after, _ = watch(config, by_place(40, 60), icem.init(config, 2), x)  # all proposals
    np.testing.assert_array_equal(after.elites[:, :taken], x.proposals[:, :taken])
    rest = {tuple(a) for a in np.asarray(x.proposals[0]).tolist()}
    assert not rest & {tuple(a) for a in np.asarray(after.elites[0, taken:]).tolist()}


def test_memory_is_ignored_when_an_episode_begins() -> None:
    def run(memory, first):
        return watch(SMALL, quadratic, memory, scene(SMALL, first=jnp.bool_(first)), train=True)[:2]

    one, other = random_memory(SMALL, seed=1), random_memory(SMALL, seed=2)
    for a, b in zip(
        jax.tree.leaves(run(one, True)), jax.tree.leaves(run(other, True)), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert np.any(run(one, False)[0] != run(other, False)[0])


@pytest.mark.parametrize("kept", [True, False])
def test_elites_within_the_first_step(kept: bool) -> None:
    config = replace(SMALL, {"parity.elites_at_first": kept, "plan.iterations": 2})
    prefers_reused = by_place(-4, None)
    _, after, seen = watch(config, prefers_reused, random_memory(config), scene(config))
    # Before the first iteration there is nothing to reuse; after it there may be.
    np.testing.assert_array_equal(seen[1][0][:, -4:], seen[0][0][:, :4])
    wanted = seen[1][0][:, -4:] if kept else seen[1][0][:, :4]
    np.testing.assert_array_equal(after.elites, wanted)


def test_warm_start_inside_a_short_working_horizon() -> None:
    seq = jnp.arange(6.0)[:, None]
    np.testing.assert_array_equal(sequences.shift(seq, jnp.int32(3))[:3, 0], [1, 2, 2])
    np.testing.assert_array_equal(sequences.shift(seq, jnp.int32(6))[:, 0], [1, 2, 3, 4, 5, 5])
    # A mean that only remembers: what comes out is what went in, one step on.
    config = replace(SMALL, {"plan.momentum": 1.0})
    memory = random_memory(config)
    x = scene(config, horizon=2, first=jnp.bool_(False))
    _, after, seen = watch(config, quadratic, memory, x)
    np.testing.assert_allclose(after.mean[:2], np.asarray(memory.mean)[[1, 1]], atol=1e-6)
    reused = seen[0][0][:, 60:]
    np.testing.assert_array_equal(reused[0], memory.elites[1])
    assert np.all(np.abs(reused[1] - np.asarray(memory.elites[1])) > 1e-5)  # the fresh tail


def test_repeated_tail_of_shifted_elites() -> None:
    config = replace(SMALL, {"parity.elite_tail": "repeat", "plan.iterations": 1})
    memory, x = random_memory(config), scene(config, first=jnp.bool_(False))
    _, _, seen = watch(config, quadratic, memory, x)
    np.testing.assert_array_equal(seen[0][0][:, 60:], np.asarray(memory.elites)[[1, 2, 3, 3]])


def test_finds_the_optimum_of_a_quadratic() -> None:
    config = replace(
        SMALL,
        {"plan.iterations": 5, "plan.population": 600, "plan.elites": 24, "plan.noise_beta": 0.0},
    )
    config = replace(config, {"plan.temperature": 20.0, "plan.min_std": 0.05})
    x = scene(config)
    action, after, seen = watch(config, quadratic, icem.init(config, 2), x)
    np.testing.assert_allclose(action, GOAL[0], atol=0.12)
    np.testing.assert_allclose(after.mean, GOAL, atol=0.12)
    assert np.abs(seen[0][0] - GOAL[:, None]).max((0, 2)).min() > 0.2  # not found by luck


def test_select_applies_to_training_and_select_eval_to_evaluation(watched) -> None:
    config = replace(SMALL, {"plan.select": "mean", "plan.iterations": 1, "plan.act_noise": 0.0})
    action, after, _ = watch(config, quadratic, icem.init(config, 2), scene(config), train=True)
    np.testing.assert_allclose(action, after.mean[0], atol=1e-6)
    *_, action, after = watched  # in evaluation: the best
    np.testing.assert_allclose(action, after.elites[0, 0], atol=1e-6)
    assert np.abs(action - after.mean[0]).max() > 1e-4
