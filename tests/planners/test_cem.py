"""The cross-entropy planner against a slow one in NumPy that is handed the same noise (2.4)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.method.noise import noise_maps
from ace.planners import PLANNERS, Context, cem
from ace.planners.icem import draw_noise
from ace.settings.config import Config, replace

# These programs run a few times only: compile them fast rather than well.
quick = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
SMALL = replace(
    Config(),
    {
        "plan.planner": "cem",
        "plan.horizon": 4,
        "plan.iterations": 3,
        "plan.population": 40,
        "plan.policy_fraction": 0.24,
        "plan.elites": 8,
        "plan.min_std": 0.05,
        "plan.noise_beta": 1.5,
    },
)
GOAL = np.array([[0.5, -0.3], [0.2, 0.6], [-0.4, 0.1], [0.0, -0.7]], np.float32)
LATE = 100_000  # agent steps after which no schedule moves any more


def quadratic(actions):
    """A score whose optimum is known."""
    return -jnp.sum(jnp.square(actions - GOAL[:, None, : actions.shape[2]]), (0, 2))


def context(config: Config = SMALL, size: int = 2, first: bool = True, **changes) -> Context:
    p = config.plan
    maps = jnp.asarray(noise_maps(p.horizon, p.noise_beta))
    x = Context(jnp.bool_(first), jnp.int32(4), jnp.int32(LATE), jnp.ones(size, bool), maps)
    return x._replace(**changes)


def proposed(count: int, size: int = 2, seed: int = 5) -> jax.Array:
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.uniform(-1, 1, (4, count, size)), jnp.float32)


@functools.cache
def compiled(score, train: bool):
    def run(config, proposals, memory, x, key):
        seen = []

        def spy(actions, slots, call):
            assert call == len(seen)
            population = config.plan.population
            assert slots == slice(population, population + proposals.shape[1])
            seen.append(actions)
            return jnp.asarray(score(actions))

        return *cem.plan(config, spy, proposals, memory, x, key, train), seen

    return quick(run)


def watch(config, memory, x, *, score=quadratic, train=False, key=0, proposals=None):
    """The action, the new mean, and the candidates of every iteration."""
    given = proposed(cem.proposal_count(config.plan)) if proposals is None else proposals
    found = compiled(score, train)(config, given, memory, x, jax.random.key(key))
    return jax.tree.map(np.asarray, found)


def slow_plan(config, memory, x, key, train, proposals):
    """The same search, one sequence and one number at a time where that is clearer."""
    p = config.plan
    noise, act_noise, pick = jax.tree.map(
        np.asarray, draw_noise(x, jax.random.key(key), [p.population] * p.iterations)
    )
    h = int(x.horizon)
    mean = np.zeros_like(memory)
    if not x.first:
        for t in range(p.horizon):
            mean[t] = memory[min(t + 1, h - 1)]
    std = np.full_like(mean, 2.0)
    for i in range(p.iterations):
        candidates = [np.clip(mean + std * noise[i][:, j], -1, 1) for j in range(p.population)] + [
            proposals[:, j] for j in range(int(p.policy_fraction * p.population))
        ]
        values = np.array([-np.sum((c - GOAL) ** 2) for c in candidates])
        order = np.argsort(-values, kind="stable")[: p.elites]
        elites = np.stack([candidates[j] for j in order])
        w = np.exp(p.temperature * (values[order] - values.max()))
        w /= w.sum()
        fitted = np.tensordot(w, elites, 1)
        var = np.tensordot(w, (elites - fitted) ** 2, 1)
        std = np.clip(np.sqrt(var), p.min_std, p.max_std)
        mean = p.momentum * mean + (1 - p.momentum) * fitted
    how = p.select if train else p.select_eval
    picked = {"best": elites[0, 0], "mean": mean[0]}.get(how)
    if picked is None:
        picked = elites[np.searchsorted(np.cumsum(w), pick, side="right"), 0]
    if train:
        picked = picked + p.act_noise * std[0] * act_noise
    return np.clip(picked, -1, 1), mean


@pytest.mark.parametrize("how", ["sample", "best", "mean"])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_it_does_what_the_slow_one_does(how: str, train: bool, first: bool) -> None:
    config = replace(SMALL, {"plan.select": how, "plan.select_eval": how})
    memory = proposed(1, seed=8)[:, 0]
    for key in range(3):
        x = context(config, first=first)
        action, mean, _ = watch(config, memory, x, train=train, key=key)
        given = np.asarray(proposed(cem.proposal_count(config.plan)))
        wanted = slow_plan(config, np.asarray(memory), x, key, train, given)
        np.testing.assert_allclose(action, wanted[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(mean, wanted[1], rtol=1e-4, atol=1e-5)


def test_it_finds_the_optimum() -> None:
    changes = {"plan.iterations": 8, "plan.population": 400, "plan.elites": 40}
    config = replace(SMALL, changes | {"plan.select_eval": "best"})
    action, mean, _ = watch(config, cem.init(config, 2), context(config))
    np.testing.assert_allclose(mean, GOAL, atol=0.05)
    np.testing.assert_allclose(action, GOAL[0], atol=0.1)


def test_every_iteration_rates_the_same_numbers() -> None:
    """40 samples, which start at the bounds, and int(0.24 * 40) unchanged proposals."""
    assert cem.proposal_count(SMALL.plan) == 9 == PLANNERS["cem"].proposals(SMALL)
    _, _, seen = watch(SMALL, cem.init(SMALL, 2), context())
    assert [c.shape for c in seen] == [(4, 49, 2)] * 3
    for candidates in seen:
        np.testing.assert_array_equal(candidates[:, 40:], proposed(9))
    assert np.mean(np.abs(seen[0][:, :40]) == 1) > 0.4  # beyond the bounds with a deviation of 2
    assert np.mean(np.abs(seen[2][:, :40]) == 1) < 0.3


def test_the_start_keeps_the_bounds_of_the_deviation() -> None:
    narrow = replace(SMALL, {"plan.max_std": 0.1, "plan.min_std": 0.1, "plan.std_ramp.start": 0.1})
    _, _, seen = watch(narrow, cem.init(narrow, 2), context(narrow))
    _, _, wide = watch(SMALL, cem.init(SMALL, 2), context())
    assert seen[0][:, :40].std() < 0.2 < wide[0][:, :40].std()


def test_an_episode_begins_without_the_one_before() -> None:
    one, other = (proposed(1, seed=seed)[:, 0] for seed in (1, 2))
    same = [watch(SMALL, memory, context())[:2] for memory in (one, other)]
    np.testing.assert_array_equal(same[0][0], same[1][0])
    np.testing.assert_array_equal(same[0][1], same[1][1])
    later = [watch(SMALL, memory, context(first=False))[1] for memory in (one, other)]
    assert not np.any(later[0] == later[1])


def test_the_mean_is_shifted_within_the_working_horizon() -> None:
    """Nothing can be chosen with equal scores and a mean that keeps all of its past."""
    config = replace(SMALL, {"plan.momentum": 1.0})
    memory = proposed(1, seed=3)[:, 0]
    for horizon, rows in ((4, [1, 2, 3, 3]), (2, [1, 1, 1, 1])):
        x = context(config, first=False, horizon=jnp.int32(horizon))
        np.testing.assert_allclose(watch(config, memory, x)[1], memory[np.array(rows)], rtol=1e-6)


def test_the_shifted_mean_may_end_in_zero() -> None:
    config = replace(SMALL, {"plan.momentum": 1.0, "plan.mean_tail": "zero"})
    memory = np.array(proposed(1, seed=3)[:, 0])
    for horizon, rows in ((4, [1, 2, 3]), (2, [1]), (1, [])):
        x = context(config, first=False, horizon=jnp.int32(horizon))
        mean = watch(config, jnp.asarray(memory), x)[1][:horizon]
        np.testing.assert_allclose(mean[:-1], memory[np.array(rows, int)], rtol=1e-6)
        np.testing.assert_array_equal(mean[-1], 0.0)


def test_values_that_are_not_finite_never_win() -> None:
    def spoiled(actions):
        return jnp.where(actions[0, :, 0] > 0, jnp.nan, quadratic(actions))

    _, mean, _ = watch(SMALL, cem.init(SMALL, 2), context(), score=spoiled)
    assert np.all(np.isfinite(mean)) and mean[0, 0] <= 0


def test_padding_changes_nothing() -> None:
    action, mean, _ = watch(SMALL, cem.init(SMALL, 2), context(), train=True)
    mask = jnp.array([True, True, False])

    def padded_score(actions):
        return quadratic(actions[..., :2])

    given = jnp.pad(proposed(9), ((0, 0), (0, 0), (0, 1)))
    wide = watch(
        SMALL,
        cem.init(SMALL, 3),
        context(size=3, mask=mask),
        score=padded_score,
        train=True,
        proposals=given,
    )
    np.testing.assert_allclose(wide[0], [*action, 0.0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(wide[1][:, :2], mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(wide[1][:, 2], 0.0)


def test_proposals_count_as_the_schedule_allows() -> None:
    """A proposal at the optimum wins only when the policy's share has grown."""
    best = jnp.tile(jnp.asarray(GOAL)[:, None], (1, 9, 1))
    config = replace(SMALL, {"plan.select_eval": "best", "plan.policy_ramp.start": 0.0})
    early = context(config, agent_step=jnp.int32(0))
    assert not np.any(watch(config, cem.init(config, 2), early, proposals=best)[0] == GOAL[0])
    late = watch(config, cem.init(config, 2), context(config), proposals=best)
    np.testing.assert_array_equal(late[0], GOAL[0])
