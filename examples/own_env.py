"""An environment family of your own: a corridor to walk down, as the tasks `corridor/short` and
`corridor/long`. Importing this module registers them; the folder must be on PYTHONPATH, since
worker processes import it as well."""

import numpy as np

from ace.envs import EnvSpec, Number, StepResult, register_family

LENGTHS = {"short": 3.0, "long": 10.0}  # to walk, at most 0.5 per step


class Corridor:
    """Walk from 0 to the end: observes the place and what is left, and pays for every step."""

    def __init__(self, name: str, seed: int) -> None:
        self.length = LENGTHS[name]
        limit, numbers = int(10 * self.length), (Number("success"), Number("farthest", "max"))
        self.spec = EnvSpec(f"corridor/{name}", 2, 1, limit, numbers=numbers)
        self.reset(seed)

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Start at 0; all randomness comes from the seed, so that runs can be repeated."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.place, self.count = 0.0, 0
        return self._observe()

    def step(self, action: np.ndarray) -> StepResult:
        """Walk forth or back on a slippery floor; actions come in [-1, 1]."""
        self.count += 1
        walked = 0.5 * float(np.clip(action[0], -1, 1)) + 0.05 * self.rng.normal()
        self.place = max(self.place + walked, 0.0)
        there = self.place >= self.length
        late = not there and self.count == self.spec.max_episode_steps
        return StepResult(self._observe(), -1.0, there, late, (float(there), self.place))

    def render(self, width: int = 320, height: int = 240) -> np.ndarray:
        """Draw the part of the corridor that is behind in white."""
        behind = np.arange(width) < width * self.place / self.length
        return np.broadcast_to(255 * behind[:, None], (height, width, 3)).astype(np.uint8)

    def close(self) -> None:
        """Nothing to free."""

    def _observe(self) -> np.ndarray:
        return np.array([self.place, self.length - self.place], np.float32)


def make_env(name: str, seed: int, render: bool = False) -> Corridor:
    """Make the task `corridor/name`."""
    return Corridor(name, seed)


def task_names() -> list[str]:
    """List the tasks."""
    return [f"corridor/{name}" for name in LENGTHS]


register_family("corridor", __name__)
