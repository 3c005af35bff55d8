"""The planner, watched from outside: it is handed a score that records what it is asked to rate
(2.3 to 2.6), and its refits are done again in NumPy."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ace.planners import PLANNERS, Context, Planner, icem, register, sequences
from ace.planners.icem import plan, populations
from ace.settings.config import Config, PlanConfig, Ramp, replace, validate

# These programs run a few times only: compile them fast rather than well.
quick = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
SMALL = replace(
    Config(),
    {
        "plan.horizon": 4,
        "plan.iterations": 3,
        "plan.population": 40,
        "plan.elites": 8,
        "plan.elite_reuse": 0.5,
        "plan.min_std": 0.01,
        "plan.std_ramp.duration": 0.0,
        "plan.policy_ramp.duration": 0.0,
        "plan.select_eval": "best",
    },
)
LATER = SMALL.seed_steps + 1  # an agent step at which both ramps have ended
GOAL = np.array([[0.5, -0.3], [0.2, 0.6], [-0.4, 0.1], [0.0, -0.7]], np.float32)


def quadratic(actions, proposed=slice(0, 0), call=0):
    """A score whose optimum is known."""
    return -jnp.sum(jnp.square(actions - GOAL[: len(actions), None]), (0, 2))


@functools.cache
def compiled(score, train: bool):
    def run(config, proposals, memory, x, key):
        seen = []

        def spy(actions, proposed, call):
            assert call == len(seen)  # the calls of one plan are counted from zero
            values = jnp.asarray(score(actions, proposed, call))
            seen.append((actions, values))
            told.append((proposed.start, proposed.stop))
            return values

        told: list[tuple[int, int]] = []
        return *plan(config, spy, proposals, memory, x, key, train), seen, told

    return quick(run)


class Given(NamedTuple):
    """What one plan is given besides its settings, score and memory."""

    proposals: jax.Array
    context: Context
    key: jax.Array


def watch(config: Config, score, memory, given: Given, train: bool = False):
    """The action, the memory, and the candidates and values of every iteration."""
    run = compiled(score, train)
    found = run(config, given.proposals, memory, given.context, given.key)
    *found, seen, told = jax.tree.map(np.asarray, found)
    assert len(seen) == config.plan.iterations
    for (actions, _), (start, stop) in zip(seen, told, strict=True):
        # What the score is told to be the first proposals is just that.
        wanted = given.proposals[:, : stop - start]
        np.testing.assert_array_equal(actions[:, start:stop], wanted)
    return *found, seen


def scene(config: Config, size: int = 2, seed: int = 0, key: Any = None, **changes: Any) -> Given:
    p = config.plan
    rng = np.random.default_rng(5)
    shape = (p.horizon, icem.PLANNER.proposals(config), size)
    context = Context(
        first=jnp.bool_(True),
        horizon=jnp.int32(changes.pop("horizon", p.horizon)),
        agent_step=jnp.int32(LATER),
        mask=jnp.ones(size, bool),
        constants=jnp.asarray(icem.PLANNER.constants(config)),
    )
    if key is None:
        key = jax.random.key(seed, impl="rbg")  # compiles in a third of the time
    proposals = jnp.asarray(rng.uniform(-1, 1, shape), jnp.float32)
    return Given(proposals, context._replace(**changes), key)


def random_memory(config: Config, size: int = 2, seed: int = 3) -> icem.PlanMemory:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: jnp.asarray(rng.uniform(-1, 1, x.shape), jnp.float32), icem.init(config, size)
    )


def weights_of(values: np.ndarray, temperature: float) -> np.ndarray:
    w = np.exp(temperature * (values - values.max()))
    return w / w.sum()


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


# Scores that are no numbers


floats = st.floats(-1e6, 1e6, width=32)
odd = st.sampled_from([np.nan, np.inf, -np.inf])
select = jax.jit(sequences.select_elites, static_argnums=2)
weigh = jax.jit(sequences.elite_weights)


@settings(max_examples=150, deadline=None, database=None)
@given(
    st.lists(st.one_of(floats, odd), min_size=12, max_size=12),
    st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_a_plan_without_a_value_is_never_elite(values: list[float], allowed: list[bool]) -> None:
    v, ok = np.array(values, np.float32), np.array(allowed)
    best, top = select(jnp.asarray(v), jnp.asarray(ok), 4)
    usable = np.isfinite(v) & ok
    wanted = np.sort(v[usable])[::-1][:4]
    real = min(4, usable.sum())
    assert np.all(usable[np.asarray(best)[:real]])
    np.testing.assert_array_equal(v[np.asarray(best)[:real]], wanted)  # best first
    w = np.asarray(weigh(top, 0.5))
    assert np.all(np.isfinite(w)) and np.all(w >= 0) and not np.any(w[real:])
    if real:
        np.testing.assert_allclose(w.sum(), 1, rtol=1e-5)


def test_plans_with_broken_scores_lose_against_poor_ones() -> None:
    def score(actions, proposed, call):
        # All plans are worth less than nothing; the nearer to the broken part the better.
        a = actions[0, :, 0]
        broken = jnp.where(a > 0.6, jnp.nan, jnp.where(a > 0.3, jnp.inf, -jnp.inf))
        return jnp.where(a > 0.1, broken, a - 5.0)

    action, after, seen = watch(SMALL, score, icem.init(SMALL, 2), scene(SMALL))
    values = np.concatenate([v for _, v in seen])
    assert np.isnan(values).any() and np.isposinf(values).any() and np.isneginf(values).any()
    assert action[0] <= 0.1 and np.all(after.elites[0, :, 0] <= 0.1)
    assert np.all(np.isfinite(after.mean))


def test_nothing_but_broken_scores_still_gives_a_usable_action() -> None:
    def broken(actions, proposed, call):
        return jnp.full(actions.shape[1], jnp.nan)

    action, after, _ = watch(SMALL, broken, icem.init(SMALL, 2), scene(SMALL), train=True)
    assert np.all(np.isfinite(action)) and np.all(np.abs(action) <= 1)
    assert all(np.all(np.isfinite(x)) for x in after)


# The parts


def test_elite_weights_multiply_by_the_temperature() -> None:
    values = np.array([3.0, 1.0, -2.0])
    for temperature in (0.5, 2.0):
        np.testing.assert_allclose(
            sequences.elite_weights(jnp.asarray(values), temperature),
            weights_of(values, temperature),
            rtol=1e-5,
        )
    large = sequences.elite_weights(jnp.array([1e4, 1e4 - 2]), 0.5)  # no overflow
    np.testing.assert_allclose(large, weights_of(np.array([2.0, 0.0]), 0.5), rtol=1e-5)


def test_fit_by_hand_and_bounds_of_the_deviation() -> None:
    chosen = jnp.array([[[0.0], [1.0]]])  # one step, two elites
    mean, std = sequences.fit(chosen, jnp.array([0.25, 0.75]), jnp.float32(0.0), 2.0)
    assert mean[0, 0] == pytest.approx(0.75)
    assert std[0, 0] == pytest.approx(np.sqrt(0.25 * 0.75))
    assert sequences.fit(chosen, jnp.array([0.25, 0.75]), jnp.float32(0.6), 2.0)[1][
        0, 0
    ] == pytest.approx(0.6)
    assert sequences.fit(chosen, jnp.array([0.25, 0.75]), jnp.float32(0.0), 0.1)[1][
        0, 0
    ] == pytest.approx(0.1)


def test_choices_of_the_action() -> None:
    chosen = jnp.array([[[0.1], [0.2], [0.3]], [[9.0], [9.0], [9.0]]])
    weights, mean = jnp.array([0.5, 0.3, 0.2]), jnp.array([[0.7], [9.0]])

    def choose(how, pick):
        return sequences.choose(how, jnp.float32(pick), chosen, weights, mean)[0]

    assert choose("best", 0.99) == np.float32(0.1)
    assert choose("mean", 0.0) == np.float32(0.7)
    got = [float(choose("sample", p)) for p in (0.0, 0.49, 0.51, 0.79, 0.81, 0.999)]
    np.testing.assert_allclose(got, [0.1, 0.1, 0.2, 0.2, 0.3, 0.3], rtol=1e-6)


def test_select_applies_to_training_and_select_eval_to_evaluation(watched) -> None:
    config = replace(SMALL, {"plan.select": "mean", "plan.iterations": 1, "plan.act_noise": 0.0})
    action, after, _ = watch(config, quadratic, icem.init(config, 2), scene(config), train=True)
    np.testing.assert_allclose(action, after.mean[0], atol=1e-6)
    *_, action, after = watched  # in evaluation: the best
    np.testing.assert_allclose(action, after.elites[0, 0], atol=1e-6)
    assert np.abs(action - after.mean[0]).max() > 1e-4


@pytest.fixture(scope="module")
def noisy_actions():
    """Many training actions of one fixed situation, clipped and not, and the quiet one."""
    runs = {}
    for clip in (True, False):
        config = replace(
            SMALL, {"plan.iterations": 1, "plan.select": "mean", "parity.clip_action": clip}
        )

        def one(key, noise, c=config):
            # With a floor above all deviations, the noise's size is known: 0.5 or nothing.
            c, x = replace(c, {"plan.act_noise": noise, "plan.min_std": 0.5}), scene(c)
            return plan(c, quadratic, x.proposals, icem.init(c, 2), x.context, key, True)[0]

        keys = jax.random.split(jax.random.key(0), 400)
        run = quick(jax.vmap(one, in_axes=(0, None)))
        runs[clip] = np.asarray(run(keys, 1.0)), np.asarray(run(keys, 0.0))
    return runs


def test_exploration_noise_has_the_final_deviation(noisy_actions) -> None:
    loud, quiet = noisy_actions[False]
    noise = loud - quiet
    np.testing.assert_allclose(noise.std(0), 0.5, rtol=0.15)  # four standard errors
    np.testing.assert_allclose(noise.mean(0), 0.0, atol=0.1)
    assert np.abs(loud).max() > 1


def test_executed_actions_are_clipped(noisy_actions) -> None:
    clipped, raw = noisy_actions[True][0], noisy_actions[False][0]
    np.testing.assert_allclose(clipped, np.clip(raw, -1, 1), atol=1e-6)


def test_first_iteration_floor() -> None:
    """D9: the released agent keeps the first refit at the initial deviation."""
    spread = {}
    for floored in (True, False):
        config = replace(
            SMALL,
            {
                "parity.first_std_floor": floored,
                "plan.iterations": 2,
                "plan.init_std": 0.3,
                "plan.temperature": 500.0,  # narrows at once
            },
        )
        _, _, seen = watch(config, quadratic, icem.init(config, 2), scene(config))
        drawn = seen[1][0][:, 1:32]
        spread[floored] = (drawn - drawn.mean(1, keepdims=True)).std()
    assert 0.25 < spread[True] < 0.45  # 0.3 times the noise's 1.23
    assert spread[False] < 0.75 * spread[True]


def test_the_floor_of_the_deviation_falls_with_the_agent_step() -> None:
    ramp = {"plan.std_ramp": Ramp(0.3, 2.0 * LATER)}
    config = replace(SMALL, ramp | {"plan.temperature": 500.0, "plan.iterations": 2})
    for agent_step, floor in ((0, 0.3), (LATER, 0.155), (4 * LATER, 0.01)):
        x = scene(config, agent_step=jnp.int32(agent_step))
        _, _, seen = watch(config, quadratic, icem.init(config, 2), x)
        drawn = seen[1][0][:, 1:32]  # after a refit to next to one elite
        spread = (drawn - drawn.mean(1, keepdims=True)).std()
        assert 0.75 * floor < spread / 1.23 < 1.15 * floor + 0.1 * (floor < 0.1)


def on_two_actions(actions, proposed, call):
    return quadratic(actions[..., :2])


def test_padded_actions_stay_zero_and_change_nothing() -> None:
    memory = random_memory(SMALL)
    x = scene(SMALL, first=jnp.bool_(False), key=jax.random.key(0))

    def wide(a):
        return jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, 2)])

    narrow_action, narrow, _ = watch(SMALL, on_two_actions, memory, x, train=True)
    context = x.context._replace(mask=jnp.arange(4) < 2)
    action, after, seen = watch(
        SMALL,
        on_two_actions,
        jax.tree.map(wide, memory),
        x._replace(proposals=wide(x.proposals), context=context),
        train=True,
    )
    np.testing.assert_allclose(action[:2], narrow_action, atol=1e-6)
    np.testing.assert_allclose(after.mean[..., :2], narrow.mean, atol=1e-6)
    assert not np.any(action[2:]) and not np.any(after.mean[..., 2:])
    assert all(not np.any(candidates[..., 2:]) for candidates, _ in seen)


def test_temperature_and_noise_exponent_change_the_plan() -> None:
    x, memory = scene(SMALL), icem.init(SMALL, 2)

    def mean(config, x):
        return watch(config, quadratic, memory, x)[1].mean

    base = mean(SMALL, x)
    assert np.abs(mean(replace(SMALL, {"plan.temperature": 5.0}), x) - base).max() > 1e-3
    white = scene(replace(SMALL, {"plan.noise_beta": 0.0}))
    assert np.abs(mean(SMALL, white) - base).max() > 1e-3


# The contract


def test_the_calls_of_a_plan_are_counted() -> None:
    """A random score draws other numbers in each call: the count is what tells them apart."""
    for changes in ({}, {"plan.variant": "policy_first"}, {"plan.iterations": 1}):
        config = replace(SMALL, changes)
        assert [call for *_, call in asked(config)] == list(range(config.plan.iterations))


@pytest.mark.parametrize("variant", ["mixed", "policy_first"])
@pytest.mark.parametrize("first", [True, False])
def test_a_horizon_of_one_step(variant: str, first: bool) -> None:
    changes = {"plan.horizon": 1, "plan.horizon_ramp.start": 1.0, "plan.variant": variant}
    config = replace(SMALL, changes | {"plan.temperature": 20.0})
    validate(config)
    x = scene(config, first=jnp.bool_(first))
    action, after, seen = watch(config, quadratic, random_memory(config), x)
    assert after.mean.shape == (1, 2) and after.elites.shape == (1, 4, 2)
    best = seen[-1][0][0, np.argmax(seen[-1][1])]
    np.testing.assert_array_equal(action, best)
    np.testing.assert_allclose(action, GOAL[0], atol=0.2)


def test_memory_is_the_mean_and_the_elites_and_nothing_of_the_agent() -> None:
    """A planner that kept the agent's horizon or belief could not be used by another agent."""
    assert icem.PlanMemory._fields == ("mean", "elites")
    other = {"net.belief": 17, "net.latent": 19, "parity.carry_belief": True}
    for config in (SMALL, replace(SMALL, other)):
        memory = icem.init(config, 2)
        assert memory.mean.shape == (4, 2) and memory.elites.shape == (4, 4, 2)
        x = scene(config)
        after = watch(config, quadratic, memory, x)[1]
        assert jax.tree.structure(after) == jax.tree.structure(memory)
        for a, b in zip(after, memory, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)


def test_a_planner_is_known_by_its_name(monkeypatch) -> None:
    assert PLANNERS["icem"] is icem.PLANNER
    mine = Planner(
        init=lambda config, size: (), plan=plan, proposals=lambda config: 0, calls=lambda config: ()
    )
    monkeypatch.setitem(PLANNERS, "mine", None)  # taken out again after the test
    register("mine", mine)
    assert PLANNERS["mine"] is mine and mine.constants(SMALL) == ()
