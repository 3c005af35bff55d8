"""MR.Q and DR.Q once more, in NumPy, and the small agents, replays and batches of their tests."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ace import replay
from ace.agents import mrq
from ace.agents.mrq import MrqConfig, MrqState
from ace.method.types import Lane, Transition
from ace.settings.config import Config, replace
from tests.agents.small import ACTION, OBS, SIZES, shaken
from tests.golden import reference as ref

HORIZON, STEPS, PERIOD, BATCH = 3, 2, 3, 4
SMALL = replace(
    Config(own=MrqConfig()),
    dict(mrq.AGENT.defaults)
    | {
        "net.latent": 4,
        "net.encoder": 5,
        "net.mlp": 4,
        "learn.batch": BATCH,
        "learn.discount": 0.9,
        "learn.learning_rate": 0.01,
        "learn.policy_learning_rate": 0.02,
        "learn.weight_decay": 0.1,
        "own.encoder_learning_rate": 0.03,
        "own.embedding": 3,
        "own.horizon": HORIZON,
        "own.return_steps": STEPS,
        "own.period": PERIOD,
        "own.action_penalty": 0.3,
    },
)
update, learn = jax.jit(mrq.update), jax.jit(mrq.learn)


def lane_of(config: Config = SMALL, seed: int = 0, sizes: tuple[int, int] = SIZES) -> Lane:
    floats = jax.tree.map(jnp.float32, config)
    return Lane(jnp.uint32(seed), floats, jnp.arange(sizes[1]) < ACTION, ())


def fresh(config: Config = SMALL, seed: int = 0) -> MrqState:
    """An agent whose biases, targets and units are not those of the start: zeros hide mistakes."""
    state = shaken(mrq.init(config, seed, SIZES), seed)
    return state._replace(scale=np.array([0.5, 0.25], "f"))


add = jax.jit(replay.add)
add_all = jax.jit(
    lambda store, steps: jax.lax.scan(
        lambda store, step: (replay.add(store, step), None), store, steps
    )[0]
)


@functools.cache
def filled(steps: int = 40, sizes: tuple[int, int] = SIZES, seed: int = 0) -> replay.Replay:
    """A replay with episodes of five steps, every other one terminated."""
    rng = np.random.default_rng(seed)
    obs, final = np.zeros((2, steps + 1, sizes[0]), "f")
    final[:, :OBS] = rng.uniform(-1, 1, (steps + 1, OBS))
    obs[:, :OBS] = rng.uniform(-1, 1, (steps + 1, OBS))
    action = np.zeros((steps, sizes[1]), "f")
    action[:, :ACTION] = rng.uniform(-1, 1, (steps, ACTION))
    count = np.arange(steps)
    done = count % 5 == 4
    obs = np.where(done[:, None], obs[:-1], final[:-1])  # a new one only after an end
    terminated = done & (count % 2 == 0)
    made = Transition(action, rewards_of(steps, seed), terminated, done, final[:-1], obs)
    store = replay.init(60, jnp.asarray(final[-1]), sizes[1], HORIZON)
    return add_all(store, made) if steps else store


def rewards_of(steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(1000 + seed).normal(size=steps).astype("f")


def random_batch(seed: int, steps: int) -> dict[str, np.ndarray]:
    """Segments of which the second is cut off after a step and the third terminates with its last;
    what lies past an end says that the environment terminated, as an old slot may."""
    rng = np.random.default_rng(seed)
    mask, continues = np.ones((2, steps, BATCH))
    mask[1:, 1], continues[1:, 1], continues[-1, 2] = 0, 0, 0
    return {
        "obs": rng.normal(size=(steps + 1, BATCH, OBS)),
        "action": rng.uniform(-1, 1, (steps, BATCH, ACTION)),
        "reward": 2 * rng.normal(size=(steps, BATCH)),
        "continues": continues,
        "mask": mask,
        "weight": rng.uniform(0.3, 1, BATCH),
        "index": np.arange(BATCH),
    }


# The networks, once more in NumPy


def np_layer(p: Any, x: np.ndarray, act: Any = ref.elu) -> np.ndarray:
    return act(ref.layer_norm(1.0, 0.0, ref.affine(p, x), 1e-5))


def np_mlp(p: Any, x: np.ndarray, act: Any = ref.elu) -> np.ndarray:
    return ref.affine(p["out"], np_layer(p["mid"], np_layer(p["in"], x, act), act))


def np_encode(p: Any, obs: np.ndarray) -> np.ndarray:
    return ref.elu(ref.layer_norm(1.0, 0.0, np_mlp(p["encoder"]["state"], obs), 1e-5))


def np_both(p: Any, z: np.ndarray, a: np.ndarray) -> np.ndarray:
    embedded = ref.elu(ref.affine(p["encoder"]["action"], a))
    return np_mlp(p["encoder"]["both"], np.concatenate([z, embedded], -1))


def np_critics(p: Any, both: np.ndarray) -> np.ndarray:
    found = []
    for k in range(2):
        q = jax.tree.map(lambda x, k=k: x[k], p["critics"])
        x = np_layer(q["out"], np_layer(q["mid"], np_layer(q["in"], both)))
        found.append(ref.affine(q["head"], x)[..., 0])
    return np.stack(found)


def np_raw(p: Any, z: np.ndarray) -> np.ndarray:
    return np_mlp(p["policy"], z, lambda x: np.maximum(x, 0))


def constant_critics(params: Any, values: tuple[float, float]) -> Any:
    """Parameters whose critics are constant."""
    params = jax.tree.map(np.array, params)
    head = params["critics"]["head"]
    params["critics"]["head"] = {"w": 0 * head["w"], "b": np.array(values, "f")[:, None]}
    return params


def np_encoder_loss(p: Any, target: Any, batch: Any, own: Any, ends: bool) -> dict[str, Any]:
    """All losses, one step after the other."""
    z, found = np_encode(p, batch["obs"][0]), {n: 0.0 for n in ("d", "r", "e", "c", "total")}
    for t in range(HORIZON):
        head = ref.affine(p["encoder"]["head"], np_both(p, z, batch["action"][t]))
        z, logits, done = head[:, :4], head[:, 4:69], head[:, 69]
        goal = np_encode(target, batch["obs"][t + 1])
        d = np.mean((z - goal) ** 2, -1)
        r = np.log(np.exp(logits).sum(-1)) - np.sum(batch["two_hot"][t] * logits, -1)
        e = (done - (batch["continues"][t] == 0)) ** 2 * ends
        lengths = np.outer(np.linalg.norm(z, axis=-1), np.linalg.norm(goal, axis=-1))
        cosine = z @ goal.T / lengths / 0.1
        c = np.log(np.exp(cosine).sum(-1)) - np.diag(cosine)
        total = 1.0 * d + 0.1 * r + own.done_weight * e + own.contrast_weight * c
        for name, x in zip(found, (d, r, e, c, batch["weight"] * total), strict=True):
            found[name] += np.mean(x[batch["mask"][t] > 0]) * batch["mask"][t].mean()
    return found


def adam_w(part: Any, loss: Any, moments: dict, count: int, rate: float, clip: float) -> Any:
    """Parameters after a step of AdamW that decays matrices."""
    grads, _ = ref.clip_by_norm(ref.leaves(ref.gradient(loss, part)), clip)

    def moved(tree: Any, prefix: str = "") -> Any:
        if isinstance(tree, dict):
            return {k: moved(v, f"{prefix}.{k}" if prefix else k) for k, v in tree.items()}
        m, v = moments.get(prefix, (0.0, 0.0))
        change, *moments[prefix] = ref.adam(grads[prefix], m, v, count, rate)
        decay = 0.1 if prefix.endswith("w") else 0.0
        return tree + change - rate * decay * tree

    return moved(part)


def np_target(state: Any, batch: Any, eps: np.ndarray, scale: tuple[float, float]) -> np.ndarray:
    """Segment by segment, until it ends."""
    y = np.zeros(BATCH)
    for b in range(BATCH):
        total, factor = 0.0, 1.0
        for t in range(STEPS):
            if batch["mask"][t, b]:
                total += factor * batch["reward"][t, b]
                factor *= 0.9 * batch["continues"][t, b]
        z = np_encode(state, batch["obs"][-1, b])
        action = np.tanh(np_raw(state, z)) + np.clip(0.2 * eps[b], -0.3, 0.3)
        q = np_critics(state, np_both(state, z, np.clip(action, -1, 1)))
        y[b] = (total + factor * scale[1] * q.min()) / scale[0]
    return y
