"""What the agent hands to the planner and keeps for itself: scores, proposals, schedules, the
working horizon and the belief (2.1, 2.3, 2.7)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.agents import ace as agent
from ace.agents import planning
from ace.method import learner, model, score
from ace.method.types import Lane
from ace.planners import PLANNERS, icem
from ace.settings.config import Config, LearnConfig, NetConfig, PlanConfig, Ramp, flatten, replace
from tests.golden import reference as ref

H, OBS, A = 4, 4, 2
CONFIG = Config(
    seed_steps=10,
    precision="f32",
    net=NetConfig(latent=4, mlp=6, encoder=5, belief=3),
    plan=PlanConfig(
        horizon=H, iterations=2, population=40, elites=16, horizon_ramp=Ramp(2.0, 100.0)
    ),
    learn=LearnConfig(smoothing_std=0.0, discount=0.8),
)


@pytest.fixture(scope="module")
def scene():
    rng = np.random.default_rng(0)
    params, stats = model.init(rng, CONFIG, OBS, A)
    params = jax.tree.map(lambda x: x + 0.3 * rng.standard_normal(x.shape).astype("f"), params)
    stats = jax.tree.map(lambda x: x + rng.uniform(0.1, 0.9, x.shape).astype("f"), stats)
    return params, stats, ref.float64(params), ref.float64(stats)


def step64(p, s, z, a, b):
    """One step of the model in NumPy, with running statistics."""
    b = ref.gru(p["cell"], np.concatenate([z, a], -1), b)
    z, _, _ = ref.batch_norm_net(p["projector"], b, s["mean"], s["var"])
    return z, b


follow, value = jax.jit(score.follow), jax.jit(score.value)


@pytest.mark.parametrize(
    ("horizon", "own", "pessimism"), [(1, 0.0, 1.0), (2, 1.0, 0.0), (4, 0.25, 0.3)]
)
def test_score_of_a_plan(scene, horizon: int, own: float, pessimism: float) -> None:
    """With statistics of all steps together, of each step, and between; with the smaller critic,
    with their mean, and between."""
    params, stats, p64, s64 = scene
    config = replace(CONFIG, {"repair.step_stats": own, "repair.pessimism": pessimism})
    norms = model.planning_norms(config, params, stats)
    rng = np.random.default_rng(1)
    start, actions = rng.standard_normal(4), rng.uniform(-1, 1, (H, 7, A))
    start32, actions32 = jnp.asarray(start, jnp.float32), jnp.asarray(actions, jnp.float32)
    h = jnp.int32(horizon)
    ends = follow(config, params, norms, start32, jnp.zeros(3), actions32, h)
    got = value(config, params, ends, h, jnp.ones((7, A)))
    z, b = np.tile(start, (7, 1)), np.zeros((7, 3))
    wanted = np.zeros(7)
    for t in range(horizon):
        of_step = {
            k: own * s64["steps"][k][t] + (1 - own) * s64["projector"][k] for k in ("mean", "var")
        }
        z, b = step64(p64, of_step, z, actions[t], b)
        wanted += 0.8**t * ref.head(p64["reward"], b)[:, 0]
    q = ref.critics(p64["value"], z, ref.policy(p64["policy"], z))
    wanted += 0.8**horizon * (pessimism * q.min(0) + (1 - pessimism) * q.mean(0))
    np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-4)


def test_without_a_terminal_value_a_plan_is_worth_its_rewards(scene) -> None:
    """The sum over the working horizon alone, and no NaN of a critic that nobody asks."""
    params, stats, p64, s64 = scene
    config = replace(CONFIG, {"plan.terminal_value": False})
    broken = params | {"value": jax.tree.map(lambda x: x * np.nan, params["value"])}
    start, actions = np.full(4, 0.3), np.random.default_rng(1).uniform(-1, 1, (H, 7, A))
    norms = model.planning_norms(config, params, stats)
    given = (jnp.float32(start), jnp.zeros(3), jnp.float32(actions), jnp.int32(3))
    ends = follow(config, params, norms, *given)
    got = value(config, broken, ends, jnp.int32(3), jnp.ones((7, A)))
    z, b = np.tile(start, (7, 1)), np.zeros((7, 3))
    wanted = np.zeros(7)
    for t in range(3):
        z, b = step64(p64, s64["projector"], z, actions[t], b)
        wanted += 0.8**t * ref.head(p64["reward"], b)[:, 0]
    np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-4)


def lane_of(config: Config, size: int = A) -> Lane:
    maps = jnp.asarray(icem.PLANNER.constants(config))
    mask = jnp.arange(size) < A
    return Lane(jnp.uint32(0), jax.tree.map(jnp.float32, config), mask, maps)


def test_proposals_are_the_policy_in_the_model(scene) -> None:
    params, stats, p64, s64 = scene
    norms, s64 = model.planning_norms(CONFIG, params, stats), s64["projector"]
    start = np.random.default_rng(2).standard_normal(4)
    start32, horizon = jnp.asarray(start, jnp.float32), jnp.int32(3)
    given = (CONFIG, params, norms, start32, jnp.zeros(3), horizon)
    got, ends = jax.jit(score.propose)(*given, jnp.zeros((H, 20, A)))
    assert got.shape == (H, 20, A)
    again = follow(CONFIG, params, norms, start32, jnp.zeros(3), got, horizon)
    for one, other in zip(ends, again, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    z, b = start[None], np.zeros((1, 3))
    for t in range(H):
        a = ref.policy(p64["policy"], z)
        np.testing.assert_allclose(got[t], np.tile(a, (20, 1)), rtol=2e-4, atol=2e-4)
        z, b = step64(p64, s64, z, a, b)


OBSERVED = np.array([0.3, -0.5, 1.0, 0.2], np.float32)


@functools.cache
def acting(train: bool):
    return jax.jit(functools.partial(agent.act, train=train))


def act(
    scene, config=CONFIG, first=True, step=5, memory=None, train=True, sizes=(OBS, A), run=None
):
    """An action and the new memory; larger sizes are padded."""
    wide = {"obs": sizes[0], "action": sizes[1]}
    part = {
        name: learner.nets.pad(tree, model.axes(config), wide)
        for name, tree in zip(("params", "stats"), scene[:2], strict=True)
    }
    memory = agent.memory(config, sizes[1]) if memory is None else memory
    obs = np.pad(OBSERVED, (0, sizes[0] - OBS))
    given = jnp.bool_(first), jnp.int32(step), jax.random.key(4)
    return (run or acting(train))(lane_of(config, sizes[1]), part, memory, obs, *given)


def test_the_working_horizon_changes_only_when_an_episode_begins(scene) -> None:
    _, memory = act(scene, first=True, step=99)
    assert memory.horizon == 3
    _, memory = act(scene, first=False, step=100, memory=memory)
    assert memory.horizon == 3
    _, memory = act(scene, first=True, step=101, memory=memory)
    assert memory.horizon == 4


def test_memory_is_the_planners_and_what_the_agent_adds_to_it(scene) -> None:
    memory = agent.memory(CONFIG, A)
    assert memory._fields == ("plan", "horizon", "belief") and memory.belief.shape == (3,)
    planned = icem.init(CONFIG, A)
    assert jax.tree.structure(memory.plan) == jax.tree.structure(planned)
    _, after = act(scene)
    for new, old in zip(jax.tree.leaves(after), jax.tree.leaves(memory), strict=True):
        assert (new.shape, new.dtype) == (old.shape, old.dtype)


def test_a_belief_is_carried_inside_an_episode_where_the_settings_say_so(scene) -> None:
    p64 = scene[2]
    z = ref.encoder(p64["encoder"], OBSERVED)
    carried = replace(CONFIG, {"parity.carry_belief": True})
    old = np.array([0.7, -0.2, 0.4], np.float32)
    memory = agent.memory(carried, A)._replace(belief=jnp.asarray(old), horizon=jnp.int32(2))
    for config, first in ((carried, True), (carried, False), (CONFIG, False)):
        action, after = act(scene, config, first=first, step=60, memory=memory)
        before = np.zeros(3) if first else old
        new = ref.gru(p64["cell"], np.concatenate([z, action]), before)
        np.testing.assert_allclose(after.belief, old if config is CONFIG else new, atol=2e-5)


def test_padded_actions_and_observations_change_nothing(scene) -> None:
    config = replace(CONFIG, {"learn.smoothing_std": 0.3, "learn.smoothing_clip": 0.9})
    action, memory = act(scene, config, step=60)
    wide_action, wide = act(scene, config, step=60, sizes=(OBS + 3, A + 2))
    np.testing.assert_allclose(wide_action[:A], action, atol=1e-5)
    np.testing.assert_allclose(wide.plan.mean[:, :A], memory.plan.mean, atol=1e-5)
    assert not np.any(wide_action[A:]) and not np.any(wide.plan.elites[..., A:])


def act_once(scene, changes: dict):
    """`act` in a program of its own, with noise that makes every proposal another one."""
    config = replace(CONFIG, {"learn.smoothing_std": 0.3, "learn.smoothing_clip": 0.9} | changes)
    run = jax.jit(functools.partial(agent.act, train=True))
    return act(scene, config, step=60, run=run)


# The variant decides how many proposals there are, and the belief what all rollouts begin with.
@pytest.mark.parametrize(("variant", "carry"), [("mixed", True), ("policy_first", False)])
def test_a_proposal_is_worth_what_its_own_rollout_is(scene, monkeypatch, variant, carry) -> None:
    """And the noise at the end of a sequence is drawn anew in every call, and only then."""
    told = []

    def spy(config, rate, proposals, memory, x, key, train):
        seen = []

        def both(actions, proposed, call):
            fast = rate(actions, proposed, 2 * call)
            other = rate(actions, proposed, 2 * call + 1)
            seen.append((fast, rate(actions, slice(0, 0), 2 * call), other))
            told.append(proposed)
            return fast

        action, _ = icem.plan(config, both, proposals, memory, x, key, train)
        return action, seen

    def twice(config):
        return [n for n in icem.PLANNER.calls(config) for _ in range(2)]

    monkeypatch.setitem(PLANNERS, "icem", icem.PLANNER._replace(plan=spy, calls=twice))
    _, memory = act_once(scene, {"plan.variant": variant, "parity.carry_belief": carry})
    assert max(p.stop - p.start for p in told) == (20 if variant == "mixed" else 40)
    for (fast, slow, other), proposed in zip(memory.plan, told, strict=True):
        np.testing.assert_allclose(fast, slow, rtol=1e-5, atol=1e-5)
        assert np.median(np.abs(other - fast)) > 1e-3
        if proposed.stop > proposed.start:
            assert np.ptp(slow[proposed]) > 1e-2  # so that they cannot be mistaken for each other


@pytest.mark.parametrize(
    "changes",
    [
        {"plan.policy_fraction": 0.0},
        {"plan.policy_fraction": 0.0, "plan.elite_reuse": 0.0},
        {"plan.variant": "policy_first", "plan.elite_reuse": 0.0},
        {"plan.variant": "policy_first", "plan.elite_reuse": 0.0, "plan.iterations": 1},
    ],
)
def test_plans_without_proposals_or_without_anything_else(scene, changes: dict) -> None:
    action, memory = act_once(scene, changes)
    assert np.isfinite(action).all() and np.isfinite(memory.plan.mean).all()


def test_the_planner_policy_acts_with_the_policy(scene) -> None:
    greedy = replace(CONFIG, {"plan.planner": "policy"})
    wanted = ref.policy(scene[2]["policy"], ref.encoder(scene[2]["encoder"], OBSERVED))
    action, memory = act(scene, greedy, train=False)
    np.testing.assert_allclose(action, wanted, rtol=2e-4, atol=2e-4)
    assert memory.plan == ()
    noisy, _ = act(scene, greedy, train=True)
    assert 1e-4 < np.abs(noisy - wanted).max() <= 0.3 + 1e-4
    wide, _ = act(scene, greedy, sizes=(OBS + 3, A + 2))
    np.testing.assert_allclose(wide, [*noisy, 0, 0], atol=1e-6)


PLAN_FLOATS = [
    name
    for name, value in flatten(CONFIG).items()
    if isinstance(value, float)
    and name.startswith(("plan.", "learn.discount", "learn.smoothing"))
    and name not in ("plan.population_decay", "plan.elite_reuse", "plan.policy_fraction")
]


@pytest.mark.parametrize("name", PLAN_FLOATS)
def test_every_number_of_the_planner_changes_the_plan(scene, name: str) -> None:
    changes = {
        "plan.policy_ramp": Ramp(0.4 if name.endswith("start") else 0.0, 100.0, after_seed=True),
        "plan.std_ramp": Ramp(0.2, 100.0),
        "learn.smoothing_std": 0.3,
        "learn.smoothing_clip": 0.2,
        "plan.temperature": 20.0,
        "plan.max_std": 0.1 if name == "plan.max_std" else 2.0,
    }
    if name.startswith("plan.policy_ramp"):  # as many elites as samples: poor proposals matter too
        changes |= {"plan.elites": 40, "plan.temperature": 0.5}
    if name == "plan.policy_std":
        changes |= {"plan.planner": "policy"}
    config = replace(CONFIG, changes)
    factor = 0.0 if name == "plan.policy_ramp.start" else 0.5
    other = replace(config, {name: factor * flatten(config)[name]})
    # The full horizon: for three steps or fewer every exponent gives the same noise.
    _, memory = act(scene, config, first=True, step=100)
    first = name.startswith("plan.horizon_ramp")
    a, b = (act(scene, c, first=first, step=60, memory=memory) for c in (config, other))
    gap = [np.abs(x - y).max() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]
    assert max(gap) > 1e-5


# Schedules of the defaults (2.7)


def test_working_horizon_of_dmcontrol() -> None:
    horizon = jax.vmap(functools.partial(planning.working_horizon, Config()))
    steps = [0, 6249, 6250, 12499, 12500, 18749, 18750, 24999, 25000, 125_000]
    np.testing.assert_array_equal(horizon(jnp.array(steps)), [2, 2, 3, 3, 4, 4, 5, 5, 6, 6])
    long = functools.partial(planning.working_horizon, replace(Config(), {"plan.horizon": 7}))
    np.testing.assert_array_equal(
        jax.vmap(long)(jnp.arange(0, 30_001, 5_000)), [2, 3, 4, 5, 6, 7, 7]
    )


def values(ramp, final, steps):
    return np.asarray(ramp.at(final, jnp.array(steps), 5_000))


def test_deviation_floor_falls_from_step_zero() -> None:
    plan = Config().plan
    got = values(plan.std_ramp, plan.min_std, [0, 5_000, 12_500, 25_000, 99_999])
    np.testing.assert_allclose(got, [0.5, 0.41, 0.275, 0.05, 0.05], rtol=1e-5)


def test_novelty_weight_waits_for_the_seed_phase() -> None:
    learn = Config().learn
    steps = [0, 4_999, 5_000, 7_500, 10_000, 50_000]
    got = values(learn.novelty_ramp, learn.novelty_weight, steps)
    np.testing.assert_allclose(got, [0, 0, 0, 0.125, 0.25, 0.25], atol=1e-7)


def test_policy_share_jumps_when_the_seed_phase_ends() -> None:
    plan = Config().plan
    got = values(plan.policy_ramp, plan.policy_fraction, [0, 5_000, 5_001, 9_999])
    np.testing.assert_allclose(got, [0.05, 0.05, 0.5, 0.5], rtol=1e-5)


def test_a_planner_that_rates_other_numbers_than_it_says_is_refused(scene, monkeypatch) -> None:
    monkeypatch.setitem(PLANNERS, "icem", icem.PLANNER._replace(calls=lambda config: [64, 7]))
    with pytest.raises(ValueError, match=r"rates .* sequences in call 1, .* \[64, 7\]"):
        act_once(scene, {})
    monkeypatch.setitem(PLANNERS, "icem", icem.PLANNER._replace(calls=lambda config: [64]))
    with pytest.raises(ValueError, match="in call 1"):
        act_once(scene, {})
