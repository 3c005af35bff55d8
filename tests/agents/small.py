"""What the tests of several agents share: small states and replays, and checks of how lanes learn
beside each other."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace import replay
from ace.agents import Agent
from ace.engine import fused
from ace.engine.kernels import common
from ace.engine.lanes import stack
from ace.method.replaceable import replaced
from ace.method.types import Lane, Transition
from ace.settings.config import Config
from tests.run.helpers import leaves, same

SIZES = OBS, ACTION = 3, 2
WIDE = (OBS + 4, ACTION + 3)


def as_f32(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def shaken(state: Any, seed: int) -> Any:
    """An agent whose heads, biases, norms and target are not those of the start, which hide
    mistakes."""
    rng = np.random.default_rng(seed)
    params, target = (
        jax.tree.map(lambda x: (x + 0.3 * rng.normal(size=x.shape)).astype("f"), tree)
        for tree in (state.params, state.target)
    )
    return state._replace(params=params, target=target)


# Called as they are, every operation in them is compiled for itself.
add = jax.jit(replay.add)
sample = jax.jit(replay.sample, static_argnums=(3, 4))


@functools.cache
def filled(
    horizon: int, steps: int = 40, sizes: tuple[int, int] = SIZES, seed: int = 0
) -> replay.Replay:
    """A replay with episodes of five steps, every other one terminated, padded to `sizes`."""
    rng = np.random.default_rng(seed)

    def draw(real: int, size: int) -> jax.Array:
        return jnp.asarray(np.pad(rng.uniform(-1, 1, real), (0, size - real)), jnp.float32)

    store = replay.init(60, draw(OBS, sizes[0]), sizes[1], horizon)
    for i in range(steps):
        done = i % 5 == 4
        action, final = draw(ACTION, sizes[1]), draw(OBS, sizes[0])
        reward = jnp.float32(rng.normal())
        obs = draw(OBS, sizes[0]) if done else final
        terminated = jnp.bool_(done and i % 2 == 0)
        step = Transition(action, reward, terminated, jnp.bool_(done), final, obs)
        store = add(store, step)
    return store


def check_crowd(
    agent: Agent,
    update: Callable,
    lane_of: Callable,
    filled: Callable,
    configs: list[Config],
    states: list,
    turns: list[list[bool]],
    wide: tuple[int, int] = WIDE,
    rtol: float = 1e-3,
) -> list[list]:
    """Lanes that are padded to the sizes `wide` learn beside each other what plain ones learn
    alone, with the compiled `update`.

    `turns` says for every update which lanes are active. Returns the states of the lanes alone:
    those given, and those after each update.
    """
    count, seen = range(len(configs)), [states]
    crowd = jax.jit(jax.vmap(agent.update, in_axes=(0, 0, 0, None, 0)))
    lanes = stack([lane_of(configs[i], i, wide) for i in count])
    padded = stack([agent.pad(configs[i], states[i], wide) for i in count])
    stores = stack([filled(sizes=wide, seed=i) for i in count])
    plain = [filled(seed=i) for i in count]
    for active in turns:
        padded, stores, metrics = crowd(lanes, padded, stores, 0, np.array(active))
        seen.append([])
        for i in count:
            alone = lane_of(configs[i], i), seen[-2][i], plain[i]
            state, plain[i], told = update(*alone, 0, active[i])
            seen[-1].append(state)
            assert set(agent.metrics) <= told.keys()
            for name, x in told.items():
                close = {"rtol": rtol, "atol": 1e-2 * rtol, "err_msg": name}
                np.testing.assert_allclose(metrics[name][i], x, **close)
            mine = leaves(jax.tree.map(lambda x, i=i: x[i], padded))
            for name, x in leaves(agent.pad(configs[i], jax.device_get(state), wide)).items():
                close = {"rtol": rtol, "atol": 1e-2 * rtol, "err_msg": name}
                np.testing.assert_allclose(mine[name], x, **close)
                np.testing.assert_array_equal(mine[name][x == 0], 0.0, err_msg=name)
            tree = stores.tree.sums[0][i]
            np.testing.assert_allclose(tree, plain[i].tree.sums[0], rtol=rtol)
    return seen


def check_no_turn(update: Callable, lane: Lane, state: Any, filled: Callable) -> None:
    """A lane that is not active stays as it is, with segments in store and without."""
    state = update(lane, state, filled(), 0, True)[0]  # moments that are not zero
    for steps in (40, 0):
        store = filled(steps)
        same(update(lane, state, store, 0, False)[:2], (state, store))


def check_left_out(update: Callable, lane: Lane, before: Any, filled: Callable) -> None:
    """Gradients that are not finite are left out and counted, from the next update on also in the
    metrics, and learning goes on."""
    store = filled()
    store = store._replace(reward=store.reward.at[:].set(jnp.nan))
    state, after, metrics = update(lane, before, store, 0, True)
    assert metrics["skipped_updates"] == 0 and state.skipped == 1 == state.update_step
    same((state.params, state.target, state.opt), (before.params, before.target, before.opt))
    same(after, store._replace(tree=after.tree))
    same(after.tree.sums[0], store.tree.sums[0])
    state, _, metrics = update(lane, state, filled(), 0, True)
    assert metrics["skipped_updates"] == 1 == state.skipped and state.update_step == 2
    policy = [tree["policy"]["in"]["w"] for tree in (state.params, before.params)]
    assert not np.array_equal(*policy)


def check_faster_forms(
    agent: Agent, update: Callable, act: Callable, data: tuple, seen: tuple
) -> None:
    """With the engine's faster forms, interpreted, an update and an action are what the compiled
    `update` and `act` give."""
    wanted = leaves((update(*data), act(*seen)))
    with replaced(fused.TABLE), pytest.MonkeyPatch.context() as patch:
        patch.setattr(common, "INTERPRET", True)
        # Functions of their own, since the plain ones may have been traced before.
        learned = jax.jit(lambda *args: agent.update(*args))(*data)
        acted = jax.jit(lambda *args: agent.act(*args), static_argnums=7)(*seen)
    for name, x in leaves((learned, acted)).items():
        np.testing.assert_allclose(x, wanted[name], rtol=1e-3, atol=1e-5, err_msg=name)


def check_orthogonal(params: Any, zero: tuple[str, ...] = ()) -> None:
    """Biases, and the weights named in `zero`, are zero; all other weights are orthogonal."""
    for name, x in leaves(params).items():
        if name.endswith("['b']") or name in zero:
            assert not np.any(x), name
        elif name.endswith("['w']"):
            for w in x.reshape(-1, *x.shape[-2:]):
                few = w if w.shape[0] <= w.shape[1] else w.T
                np.testing.assert_allclose(few @ few.T, np.eye(len(few)), atol=1e-5, err_msg=name)


def check_seeds(begun: list, update: Callable, lanes: list[Lane], state: Any, store: Any) -> None:
    """Learners of two seeds begin with other weights, and lanes of two seeds learn from other
    draws."""
    one, other = (leaves(state.params) for state in begun)
    for name, x in one.items():
        if name.endswith("['w']") and np.any(x):
            assert not np.any(x == other[name]), name
    a, b = (update(lane, state, store, 0, True)[2]["q"] for lane in lanes)
    assert a != b
