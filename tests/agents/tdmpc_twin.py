"""TD-MPC once more, in float64 NumPy: its networks, and updates whose gradients are central
differences; and segments to learn from."""

from typing import Any

import jax
import numpy as np

from ace.agents.tdmpc import TdmpcState
from ace.settings.config import Config
from tests.agents.small import ACTION, OBS
from tests.golden import reference as ref

HORIZON, BATCH = 3, 4


def random_batch(seed: int) -> dict[str, np.ndarray]:
    """Segments of which one ends after a step and another terminates at its end."""
    rng = np.random.default_rng(seed)
    mask, continues = np.ones((2, HORIZON, BATCH))
    mask[1:, 1], continues[-1, 2] = 0, 0
    return {
        "obs": rng.normal(size=(HORIZON + 1, BATCH, OBS)),
        "action": rng.uniform(-1, 1, (HORIZON, BATCH, ACTION)),
        "reward": rng.normal(size=(HORIZON, BATCH)),
        "continues": continues,
        "mask": mask,
        "weight": rng.uniform(0.3, 1, BATCH),
        "index": np.arange(BATCH),
    }


def np_encode(p: Any, obs: np.ndarray) -> np.ndarray:
    return ref.affine(p["encoder"]["out"], ref.elu(ref.affine(p["encoder"]["in"], obs)))


def np_move(p: Any, z: np.ndarray, a: np.ndarray) -> np.ndarray:
    return ref.head(p["dynamics"], np.concatenate([z, a], -1))


def np_reward(p: Any, z: np.ndarray, a: np.ndarray) -> np.ndarray:
    return ref.head(p["reward"], np.concatenate([z, a], -1))[..., 0]


def np_critics(p: Any, z: np.ndarray, a: np.ndarray) -> list[np.ndarray]:
    found = []
    for k in range(2):
        q = jax.tree.map(lambda x, k=k: x[k], p["value"])
        x = ref.affine(q["in"], np.concatenate([z, a], -1))
        x = np.tanh(ref.layer_norm(q["norm"]["scale"], q["norm"]["bias"], x, 1e-5))
        found.append(ref.affine(q["out"], ref.elu(ref.affine(q["mid"], x)))[..., 0])
    return found


def np_policy(p: Any, z: np.ndarray, eps: np.ndarray) -> np.ndarray:
    noisy = np.tanh(ref.head(p["policy"], z)) + np.clip(0.05 * eps, -0.3, 0.3)
    return np.clip(noisy, -1 + 1e-6, 1 - 1e-6)


class Twin:
    """The same agent in float64 NumPy, with gradients by central differences. Its rates and weights
    are written out: they are those of `SMALL` in `test_tdmpc.py`."""

    def __init__(self, state: TdmpcState, config: Config):
        self.params, self.target = ref.float64(state.params), ref.float64(state.target)
        self.c, self.count, self.moments = config.learn, 0, {}

    def losses(self, p: Any, batch: Any, eps: np.ndarray) -> dict[str, Any]:
        now, rho = self.params, self.c.time_decay
        z = np_encode(p, batch["obs"][0])
        zs, found = [z], {n: np.zeros(BATCH) for n in ("consistency", "reward", "value", "l1")}
        for t in range(HORIZON):
            after = batch["obs"][t + 1]
            weight = rho**t * batch["mask"][t]
            z_next = np_encode(now, after)
            ahead = np.minimum(*np_critics(self.target, z_next, np_policy(now, z_next, eps[t + 1])))
            y = batch["reward"][t] + self.c.discount * batch["continues"][t] * ahead
            for q in np_critics(p, z, batch["action"][t]):
                found["value"] += weight * (q - y) ** 2
                found["l1"] += weight * np.abs(q - y)
            error = np_reward(p, z, batch["action"][t]) - batch["reward"][t]
            found["reward"] += weight * error**2
            z = np_move(p, z, batch["action"][t])
            apart = z - np_encode(self.target, after)
            found["consistency"] += weight * np.mean(apart**2, -1)
            zs.append(z)
        total = 2.0 * found["consistency"] + 0.5 * found["reward"] + 0.1 * found["value"]
        return found | {"total": np.mean(batch["weight"] * total) / HORIZON, "z": zs}

    def policy_loss(self, p: Any, model: Any, zs: list, mask: np.ndarray, eps: Any) -> float:
        total, alive = 0.0, np.concatenate([np.ones((1, BATCH)), mask])
        for t, z in enumerate(zs):
            q = np.minimum(*np_critics(model, z, np_policy(p, z, eps[t])))
            total -= self.c.time_decay**t * np.mean(q * alive[t])
        return total

    def step(self, batch: Any, eps: np.ndarray) -> dict[str, Any]:
        self.count += 1
        found = self.losses(self.params, batch, eps[0])
        part = {k: v for k, v in self.params.items() if k != "policy"}
        part = self.adam(part, lambda p: self.losses(p, batch, eps[0])["total"], 0.01)
        pi = {"policy": self.params["policy"]}
        rest = (part, found["z"], batch["mask"], eps[1])
        found["policy"] = self.policy_loss(pi, *rest)
        self.params = part | self.adam(pi, lambda p: self.policy_loss(p, *rest), 0.02)
        if self.count % 2 == 1:
            self.target = jax.tree.map(
                lambda t, p: 0.8 * t + 0.2 * p,
                self.target,
                {k: self.params[k] for k in self.target},
            )
        return found

    def adam(self, part: Any, loss: Any, rate: float) -> Any:
        grads, _ = ref.clip_by_norm(ref.leaves(ref.gradient(loss, part)), self.c.grad_clip)
        changes = {}
        for name, g in grads.items():
            m, v = self.moments.get(name, (0.0, 0.0))
            changes[name], m, v = ref.adam(g, m, v, self.count, rate)
            self.moments[name] = m, v

        def moved(tree: Any, prefix: str = "") -> Any:
            if not isinstance(tree, dict):
                return tree + changes[prefix]
            return {k: moved(v, f"{prefix}.{k}" if prefix else k) for k, v in tree.items()}

        return moved(part)
