"""REDQ against hand-worked numbers: the subset in the target by counting, the mean critic and the
delayed policy by SAC's twin in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.agents import AGENTS, sac
from ace.agents.sac import RedqConfig, SacState
from ace.settings.config import Config, ConfigError, replace
from tests.agents import sac_twin
from tests.agents.sac_twin import Twin, random_batch
from tests.agents.small import ACTION, SIZES, check_crowd
from tests.agents.test_sac import filled, lane_of
from tests.run.helpers import leaves, same

CRITICS, DELAY = 4, 3
SMALL = replace(
    Config(own=RedqConfig()),
    {
        **sac.REDQ.defaults,
        **sac_twin.SMALL,
        "own.critics": CRITICS,
        "own.policy_delay": DELAY,
    },
)
update = jax.jit(sac.update)
POLICY = ("policy_loss", "temperature_loss", "entropy", "policy_grad_norm")


def fresh(config: Config = SMALL, seed: int = 0) -> SacState:
    return sac.init(config, seed, SIZES)


def test_updates_are_those_of_the_twin() -> None:
    """Seven updates: the policy moves in the third and the sixth, with an optimiser of its own
    count; in the others its metrics are missing."""
    rng = np.random.default_rng(9)
    params = jax.tree.map(
        lambda x: (x + 0.1 * rng.normal(size=x.shape)).astype(np.float32), fresh().params
    )
    state = fresh()._replace(params=params, target={"critics": params["critics"]})
    twin, learn, before = Twin(state, SMALL), jax.jit(sac.learn), params
    subsets = [[0, 1], [2, 3], [0, 3], [1, 2], [0, 2], [1, 3], [3, 1]]
    for i, chosen in enumerate(subsets):
        batch, eps = random_batch(i), np.random.default_rng(50 + i).normal(size=(2, 5, ACTION))
        wanted = twin.step(batch, 0.5 * eps, chosen)
        f32 = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (batch, 0.5 * eps))
        state, _, metrics = learn(lane_of(SMALL), state, *f32, jnp.bool_(True), jnp.array(chosen))
        for name, x in wanted.items():
            np.testing.assert_allclose(metrics[name], x, rtol=2e-3, atol=1e-5, err_msg=name)
        turn = i % DELAY == DELAY - 1
        assert [bool(np.isnan(metrics[name])) for name in POLICY] == [not turn] * 4
        for name, x in leaves(state.params).items():
            np.testing.assert_allclose(x, twin.params[name], rtol=3e-3, atol=3e-5, err_msg=name)
            if "critics" not in name and not turn:
                np.testing.assert_array_equal(x, leaves(before)[name])
        for name, x in leaves(state.target).items():
            np.testing.assert_allclose(x, twin.target[name], rtol=3e-3, atol=3e-5, err_msg=name)
        before = state.params
    assert int(state.update_step) == 7 and int(state.skipped) == 0
    assert [int(opt[1].count) for opt in state.opt] == [7, 2, 2]


def test_the_target_takes_the_smaller_of_two_drawn_critics() -> None:
    """Of four critics two are drawn: the smallest decides in 3 of 6 pairs, the next in 2, the third
    in 1, the largest never. Draws differ from update to update and from lane to lane."""
    # One stored transition, a temperature of nearly zero and a policy without noise: the target is
    # r + gamma min(Q_i, Q_j), and no other number is random.
    config = replace(SMALL, {"own.init_temperature": 1e-9, "own.log_std_max": -20.0})
    state, store = fresh(config), filled(1)
    obs = store.obs[1]
    mean, _ = sac.gaussian(config.own, state.params["policy"], obs)
    q = np.sort(sac.value(state.target["critics"], obs, jnp.tanh(mean)))
    values = store.reward[0] + 0.9 * q
    assert np.diff(values).min() > 1e-3

    def target(seed: jax.Array, step: jax.Array) -> jax.Array:
        return sac.update(
            lane_of(config)._replace(seed=seed.astype(jnp.uint32)),
            state._replace(update_step=step),
            store,
            jnp.int32(0),
            jnp.bool_(True),
        )[2]["target"]

    steps, found = jnp.arange(600), []
    draw = jax.jit(jax.vmap(target, in_axes=(None, 0)))
    for seed in (0, 1):
        drawn = np.asarray(draw(seed, steps))
        which = np.abs(drawn[:, None] - values).argmin(1)
        np.testing.assert_allclose(drawn, values[which], atol=1e-4)
        shares = np.bincount(which, minlength=CRITICS) / len(steps)
        np.testing.assert_allclose(shares, [1 / 2, 1 / 3, 1 / 6, 0], atol=0.07)
        found.append(which)
    assert np.mean(found[0] == found[1]) < 0.6  # 7 / 18 by chance


def test_a_padded_lane_in_a_crowd_is_the_plain_lane_alone() -> None:
    """Three lanes at different counts: it is the first policy's turn, then the third's; the second
    is not active."""
    states = [fresh(seed=seed)._replace(update_step=np.int32(5 + seed)) for seed in range(3)]
    args = (lane_of, filled, [SMALL] * 3, states, [[True, False, True]] * 2)
    seen = check_crowd(sac.REDQ, update, *args, rtol=1e-4)
    policies = [[state.params["policy"]["mid"]["w"] for state in after] for after in seen]
    for update_made, turn in enumerate((0, 2)):
        before, after = policies[update_made : update_made + 2]
        moved = [bool(np.any(a != b)) for a, b in zip(before, after, strict=True)]
        assert moved == [i == turn for i in range(3)]
    same(seen[-1][1], states[1])


def test_it_is_registered_with_the_public_settings() -> None:
    agent = AGENTS["redq"]
    config = replace(Config(own=agent.settings and agent.settings()), agent.defaults)
    own, learn = config.own, config.learn
    assert (own.critics, own.target_critics, own.policy_delay) == (10, 2, 20)
    assert own.policy_value == "mean" and own.log_std_bounds == "clip"
    assert (learn.updates_per_step, learn.batch, config.net.mlp) == (20, 256, 256)
    assert config.seed_steps == 5_000
    assert learn.learning_rate == learn.policy_learning_rate == own.temperature_learning_rate
    assert (learn.learning_rate, learn.target_momentum, learn.target_period) == (3e-4, 0.995, 1)
    assert (learn.seed_updates, learn.discount, own.init_temperature) == (0.0, 0.99, 1.0)
    assert own.reset_every == 0
    bytes_of = sum(x.nbytes for x in leaves(fresh()).values())
    networks, *_ = agent.footprint(SMALL, SIZES).values()
    assert 0.7 * bytes_of < networks <= bytes_of


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("target_critics", 5, r"redq.target_critics is 5; it must be from 1 to redq.critics \(4\)"),
        ("target_critics", 0, "from 1 to"),
        ("policy_delay", 0, "redq.policy_delay is 0; it must be at least 1"),
        ("reset_every", -1, "give 0 for no resets"),
    ],
)
def test_settings_that_cannot_work_are_refused(name: str, value: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AGENTS["redq"].check(replace(SMALL, {f"own.{name}": value}))
