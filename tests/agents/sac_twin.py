"""SAC and REDQ once more, in float64 NumPy, and settings and batches of their tests."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ace.agents.sac import SacState
from ace.method.types import Batch
from ace.settings.config import Config
from tests.agents.small import ACTION, OBS
from tests.run.helpers import leaves

Flat = dict[str, np.ndarray]
SMALL = {  # the common settings of both agents
    "net.mlp": 4,
    "learn.batch": 5,
    "learn.discount": 0.9,
    "learn.learning_rate": 0.01,
    "learn.policy_learning_rate": 0.02,
    "learn.target_momentum": 0.8,
    "own.temperature_learning_rate": 0.03,
}


class Twin:
    """The same agent in float64 NumPy: losses written out, gradients by central differences."""

    def __init__(self, state: SacState, config: Config):
        flat = {k: np.array(v, np.float64) for k, v in leaves(state.params).items()}
        self.params: Flat = flat
        self.target: Flat = {k: v.copy() for k, v in flat.items() if "critics" in k}
        self.moments = {k: (np.zeros_like(v), np.zeros_like(v)) for k, v in flat.items()}
        self.c = config
        self.counts = {"critics": 0, "policy": 0, "temperature": 0}  # steps of each optimiser

    def q(self, params: Flat, k: int, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
        def p(layer: str, leaf: str = "w") -> np.ndarray:
            return params[f"['critics']['{layer}']['{leaf}']"][k]

        x = np.concatenate([obs, action], -1) @ np.concatenate([p("obs"), p("action")])
        x = np.maximum(x + p("obs", "b"), 0)
        x = np.maximum(x @ p("mid") + p("mid", "b"), 0)
        return (x @ p("out") + p("out", "b"))[:, 0]

    def sample(self, params: Flat, obs: np.ndarray, eps: np.ndarray):
        def p(layer: str, leaf: str = "w") -> np.ndarray:
            return params[f"['policy']['{layer}']['{leaf}']"]

        x = np.maximum(obs @ p("in") + p("in", "b"), 0)
        x = np.maximum(x @ p("mid") + p("mid", "b"), 0)
        mean, raw = (x @ p(head) + p(head, "b") for head in ("mean", "log_std"))
        low, high = self.c.own.log_std_min, self.c.own.log_std_max
        log_std = low + 0.5 * (high - low) * (np.tanh(raw) + 1)
        if self.c.own.log_std_bounds == "clip":
            log_std = np.minimum(np.maximum(raw, low), high)
        action = np.tanh(mean + np.exp(log_std) * eps)
        log = -0.5 * eps**2 - log_std - 0.5 * np.log(2 * np.pi) - np.log(1 - action**2)
        return action, log.sum(-1)

    def step(
        self, batch: Any, eps: np.ndarray, chosen: Sequence[int] | None = None
    ) -> dict[str, float]:
        """One update with `chosen` critics in the target, all if None; the metrics it must tell."""
        own, rates, critics = self.c.own, self.c.learn, range(self.c.own.critics)
        obs, next_obs, taken = batch.obs[0], batch.obs[1], batch.action[0]
        alpha = float(np.exp(self.params["['temperature']['log']"]))
        action, log = self.sample(self.params, next_obs, eps[0])
        ahead = np.min([self.q(self.target, k, next_obs, action) for k in chosen or critics], 0)
        y = batch.reward[0] + rates.discount * batch.continues[0] * (ahead - alpha * log)

        def critic_loss(params: Flat) -> float:
            errors = [(self.q(params, k, obs, taken) - y) ** 2 for k in critics]
            return float(np.mean(batch.weight * np.sum(errors, 0)))

        def policy_loss(params: Flat) -> float:
            action, log = self.sample(params, obs, eps[1])
            q = [self.q(params, k, obs, action) for k in critics]
            best = np.min(q, 0) if own.policy_value == "min" else sum(q) / len(q)
            return float(np.mean(alpha * log - best))

        _, log = self.sample(self.params, obs, eps[1])

        def temperature_loss(params: Flat) -> float:
            wanted = own.target_entropy * ACTION
            return float(np.exp(params["['temperature']['log']"]) * np.mean(-log - wanted))

        found = {"target": float(y.mean()), "critic_loss": critic_loss(self.params)}
        self.adam("critics", critic_loss, rates.learning_rate)
        made = self.counts["critics"]
        if made % own.policy_delay == 0:
            found |= {"policy_loss": policy_loss(self.params), "entropy": float(-log.mean())}
            found["temperature_loss"] = temperature_loss(self.params)
            self.adam("policy", policy_loss, rates.policy_learning_rate)
            self.adam("temperature", temperature_loss, own.temperature_learning_rate)
        if (made - 1) % rates.target_period == 0:
            for name, old in self.target.items():
                new = self.params[name]
                self.target[name] = rates.target_momentum * old + (1 - rates.target_momentum) * new
        return found

    def adam(self, part: str, loss: Any, rate: float, h: float = 1e-6) -> None:
        slopes = {}
        self.counts[part] += 1
        for name, x in self.params.items():
            if part in name:
                slopes[name] = np.zeros_like(x)
                for at in np.ndindex(x.shape):
                    kept, ends = x[at], []
                    for side in (h, -h):
                        x[at] = kept + side
                        ends.append(loss(self.params))
                    x[at] = kept
                    slopes[name][at] = (ends[0] - ends[1]) / (2 * h)
        for name, slope in slopes.items():
            m, v = self.moments[name]
            m, v = 0.9 * m + 0.1 * slope, 0.999 * v + 0.001 * slope**2
            self.moments[name] = m, v
            m, v = m / (1 - 0.9 ** self.counts[part]), v / (1 - 0.999 ** self.counts[part])
            self.params[name] = np.array(self.params[name] - rate * m / (np.sqrt(v) + 1e-8))


def random_batch(seed: int) -> Batch:
    rng: Any = np.random.default_rng(seed)
    found: dict[str, Any] = dict(
        obs=rng.normal(size=(2, 5, OBS)),
        action=rng.uniform(-1, 1, (1, 5, ACTION)),
        reward=rng.normal(size=(1, 5)),
        continues=np.array([[1.0, 0.0, 1.0, 0.0, 1.0]]),
        mask=np.ones((1, 5)),
        weight=rng.uniform(0.5, 1, 5),
        index=np.arange(5),
    )
    return Batch(**found)
