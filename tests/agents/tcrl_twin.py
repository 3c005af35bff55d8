"""TCRL once more, in float64 NumPy: its networks, and updates whose gradients are central
differences; and segments to learn from, of which it knows by hand where they end."""

from typing import Any

import jax
import numpy as np

from ace.agents.tcrl import TcrlState
from ace.settings.config import Config
from tests.agents.small import ACTION, OBS
from tests.golden import reference as ref

HORIZON, BATCH = 4, 5
# Segment: its real steps, and whether the last of them terminates.
ENDS = {0: (4, False), 1: (1, False), 2: (2, True), 3: (3, True), 4: (4, True)}


def random_batch(seed: int) -> dict[str, np.ndarray]:
    """Segments of a replay: past its end a segment repeats the last observation, its actions and
    rewards are zero, and what `continues` says there is stale."""
    rng = np.random.default_rng(seed)
    found = {
        "obs": rng.normal(size=(HORIZON + 1, BATCH, OBS)),
        "action": rng.uniform(-1, 1, (HORIZON, BATCH, ACTION)),
        "reward": rng.normal(size=(HORIZON, BATCH)),
        "continues": np.ones((HORIZON, BATCH)),
        "mask": np.ones((HORIZON, BATCH)),
        "weight": np.ones(BATCH),
        "index": np.arange(BATCH),
    }
    for b, (steps, terminated) in ENDS.items():
        for name in ("action", "reward", "mask", "continues"):
            found[name][steps:, b] = 0
        found["obs"][steps:, b] = found["obs"][steps, b]
        found["continues"][steps - 1, b] = not terminated
    return found


def np_encode(p: Any, obs: np.ndarray) -> np.ndarray:
    return ref.head(p["encoder"], obs)


def np_move(p: Any, z: np.ndarray, a: np.ndarray) -> np.ndarray:
    return ref.head(p["dynamics"], np.concatenate([z, a], -1))


def np_reward(p: Any, z: np.ndarray, a: np.ndarray) -> np.ndarray:
    return ref.head(p["reward"], np.concatenate([z, a], -1))[..., 0]


def np_first(p: Any, x: np.ndarray) -> np.ndarray:
    x = ref.affine(p["in"], x)
    return np.tanh(ref.layer_norm(p["norm"]["scale"], p["norm"]["bias"], x, 1e-5))


def np_critics(p: Any, z: np.ndarray, a: np.ndarray) -> list[np.ndarray]:
    x, found = np_first(p["value"], np.concatenate([z, a], -1)), []
    for k in range(2):
        mid, out = ({n: v[k] for n, v in p["value"][m].items()} for m in ("mid", "out"))
        found.append(ref.affine(out, ref.elu(ref.affine(mid, x)))[..., 0])
    return found


def np_policy(p: Any, z: np.ndarray, noise: np.ndarray | float = 0.0) -> np.ndarray:
    p = p["policy"]
    mean = np.tanh(ref.affine(p["out"], ref.elu(ref.affine(p["mid"], np_first(p, z)))))
    return np.clip(mean + noise, -1 + 1e-6, 1 - 1e-6)


class Twin:
    """The same agent in float64 NumPy, with gradients by central differences. Its rates and weights
    are written out: they are those of `SMALL` in `test_tcrl.py`."""

    def __init__(self, state: TcrlState, config: Config):
        self.params, self.target = ref.float64(state.params), ref.float64(state.target)
        self.c, self.n, self.count, self.moments = config.learn, config.own.n_step, 0, {}

    def model_loss(self, p: Any, batch: Any) -> dict[str, Any]:
        """Segment by segment: a loop that stops at the end of the episode."""
        found = {"consistency": np.zeros(BATCH), "reward": np.zeros(BATCH)}
        for b, (steps, _) in ENDS.items():
            z = np_encode(p, batch["obs"][0, b])
            for t in range(steps):
                a, rho = batch["action"][t, b], 0.9**t
                found["reward"][b] += rho * (np_reward(p, z, a) - batch["reward"][t, b]) ** 2
                z = np_move(p, z, a)
                goal = np_encode(self.target, batch["obs"][t + 1, b])
                cosine = z @ goal / np.sqrt(z @ z) / np.sqrt(goal @ goal)
                found["consistency"][b] += rho * (2 - 2 * cosine)
        total = 1.0 * found["consistency"] + 0.7 * found["reward"]
        return found | {"total": total.mean() / HORIZON}

    def targets(self, encoder: Any, batch: Any, noise: np.ndarray) -> np.ndarray:
        """r_0 + gamma r_1 + ... to the n-th reward or the end of the episode, then the value of the
        observation there, unless the environment terminated."""
        y = np.zeros(BATCH)
        for b, (steps, terminated) in ENDS.items():
            count = min(steps, self.n)
            y[b] = sum(self.c.discount**t * batch["reward"][t, b] for t in range(count))
            if not (terminated and count == steps):
                z = np_encode(encoder, batch["obs"][count, b])
                action = np_policy(self.params, z, noise[b])
                y[b] += self.c.discount**count * min(np_critics(self.target, z, action))
        return y

    def step(self, batch: Any, eps: np.ndarray, std: float) -> dict[str, Any]:
        self.count += 1
        names = ("encoder", "dynamics", "reward")
        found = self.model_loss({k: self.params[k] for k in names}, batch)
        model = self.adam(names, lambda p: self.model_loss(p, batch)["total"], 0.01, 0.4, 0.5)
        noise = np.clip(std * eps, -0.3, 0.3)
        z, a = np_encode(model, batch["obs"][0]), batch["action"][0]
        y = self.targets(model, batch, noise[0])

        def value_loss(p: Any) -> float:
            return float(np.mean(sum((q - y) ** 2 for q in np_critics(p, z, a))))

        found |= {"target": y.mean(), "value": value_loss(self.params)}
        found["q"] = np.mean(np_critics(self.params, z, a))
        value = self.adam(("value",), value_loss, 0.01)

        # Noise and bounds shift actions; the gradient passes them by.
        shift = np_policy(self.params, z, noise[1]) - np_policy(self.params, z)

        def policy_loss(p: Any) -> float:
            q = np.minimum(*np_critics(value, z, np_policy(p, z) + shift))
            return -float(np.mean(q))

        found["policy"] = policy_loss(self.params)
        self.params = model | value | self.adam(("policy",), policy_loss, 0.02)
        self.target = jax.tree.map(
            lambda t, p: 0.8 * t + 0.2 * p, self.target, {k: self.params[k] for k in self.target}
        )
        return found

    def adam(
        self, names: Any, loss: Any, rate: float, clip: float = np.inf, decay: float = 0.0
    ) -> Any:
        part = {name: self.params[name] for name in names}
        grads, norm = ref.clip_by_norm(ref.leaves(ref.gradient(loss, part)), clip)
        self.norms = {**getattr(self, "norms", {}), names: norm}
        changes = {}
        for name, g in grads.items():
            m, v = self.moments.get(name, (0.0, 0.0))
            changes[name], m, v = ref.adam(g, m, v, self.count, rate)
            self.moments[name] = m, v
            if name.endswith(".w"):
                changes[name] = changes[name] - rate * decay * ref.leaves(part)[name]

        def moved(tree: Any, prefix: str = "") -> Any:
            if not isinstance(tree, dict):
                return tree + changes[prefix]
            return {k: moved(v, f"{prefix}.{k}" if prefix else k) for k, v in tree.items()}

        return moved(part)
