"""Soft actor-critic once more, in float64 NumPy, and batches to learn from. REDQ's tests build on
it."""

from typing import Any

import numpy as np

from ace.agents.sac import SacState
from ace.method.types import Batch
from ace.settings.config import Config
from tests.agents.small import ACTION, OBS
from tests.run.helpers import leaves

Flat = dict[str, np.ndarray]


class Twin:
    """The same agent in float64 NumPy: losses written out, gradients by central differences."""

    def __init__(self, state: SacState, config: Config):
        flat = {k: np.array(v, np.float64) for k, v in leaves(state.params).items()}
        self.params: Flat = flat
        self.target: Flat = {k: v.copy() for k, v in flat.items() if "critics" in k}
        self.moments = {k: (np.zeros_like(v), np.zeros_like(v)) for k, v in flat.items()}
        self.c, self.count = config, 0

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
        own = self.c.own
        log_std = own.log_std_min + 0.5 * (own.log_std_max - own.log_std_min) * (np.tanh(raw) + 1)
        action = np.tanh(mean + np.exp(log_std) * eps)
        log = -0.5 * eps**2 - log_std - 0.5 * np.log(2 * np.pi) - np.log(1 - action**2)
        return action, log.sum(-1)

    def step(self, batch: Any, eps: np.ndarray) -> dict[str, float]:
        obs, next_obs, taken = batch.obs[0], batch.obs[1], batch.action[0]
        alpha = float(np.exp(self.params["['temperature']['log']"]))
        action, log = self.sample(self.params, next_obs, eps[0])
        ahead = np.minimum(*(self.q(self.target, k, next_obs, action) for k in (0, 1)))
        y = batch.reward[0] + self.c.learn.discount * batch.continues[0] * (ahead - alpha * log)

        def critic_loss(params: Flat) -> float:
            return sum(
                float(np.mean(batch.weight * (self.q(params, k, obs, taken) - y) ** 2))
                for k in (0, 1)
            )

        def policy_loss(params: Flat) -> float:
            action, log = self.sample(params, obs, eps[1])
            q = np.minimum(*(self.q(params, k, obs, action) for k in (0, 1)))
            return float(np.mean(alpha * log - q))

        _, log = self.sample(self.params, obs, eps[1])
        wanted = self.c.own.target_entropy * ACTION

        def temperature_loss(params: Flat) -> float:
            return float(np.exp(params["['temperature']['log']"]) * np.mean(-log - wanted))

        rates = self.c.learn.learning_rate, self.c.learn.policy_learning_rate
        self.count += 1
        found = {"target": float(y.mean()), "entropy": float(-log.mean())}
        for part, loss, rate in (
            ("critics", critic_loss, rates[0]),
            ("policy", policy_loss, rates[1]),
            ("temperature", temperature_loss, self.c.own.temperature_learning_rate),
        ):
            found[part] = loss(self.params)
            self.adam(part, loss, rate)
        if (self.count - 1) % self.c.learn.target_period == 0:
            keep = self.c.learn.target_momentum
            for name, old in self.target.items():
                self.target[name] = keep * old + (1 - keep) * self.params[name]
        return found

    def adam(self, part: str, loss: Any, rate: float, h: float = 1e-6) -> None:
        slopes = {}
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
            m, v = m / (1 - 0.9**self.count), v / (1 - 0.999**self.count)
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
