"""The named numbers of running episodes: one value per number and episode, updated at every step by
the rule in the task's spec."""

import math
from collections.abc import Sequence
from typing import Any, SupportsIndex, get_args

import numpy as np

from ace.envs.api import EnvSpec, Over, TaskError

# Columns that train.csv and eval.csv always have.
RESERVED = (
    "lane",
    "seed",
    "task",
    "env_step",
    "return",
    "policy_return",
    "train_return",
    "episode_length",
    "wall_time",
    "value_bias",
    "value_bias_std",
    "faults",
)
RULES = get_args(Over)


def check_numbers(spec: EnvSpec) -> None:
    """Raise TaskError unless the numbers that a task declares can be columns of a CSV file."""
    names = [number.name for number in spec.numbers]
    for number in spec.numbers:
        which = f"task '{spec.task}' declares the number {number.name!r}"
        if not (isinstance(number.name, str) and number.name.isidentifier()):
            raise TaskError(f"{which}: name it with letters, digits and _")
        if number.name in RESERVED:
            raise TaskError(f"{which}, which is a column of every run: choose another name")
        if names.count(number.name) > 1:
            raise TaskError(f"{which} {names.count(number.name)} times: declare it once")
        if number.over not in RULES:
            raise TaskError(f"{which} over {number.over!r}: choose one of {', '.join(RULES)}")


class EpisodeNumbers:
    """The numbers of N running episodes, one per row; tasks of different rows may differ."""

    def __init__(self, specs: Sequence[EnvSpec]) -> None:
        self._declared = [spec.numbers for spec in specs]
        names = [number.name for numbers in self._declared for number in numbers]
        self.names = tuple(dict.fromkeys(names))  # of all rows, each once
        self.width = max(map(len, self._declared), default=0)  # K, the columns that `add` takes
        shape = len(specs), self.width
        self._is = {rule: np.zeros(shape, bool) for rule in RULES}
        for row, numbers in enumerate(self._declared):
            for column, number in enumerate(numbers):
                self._is[number.over][row, column] = True
        self._values = np.zeros(shape)  # the sum for `mean` and `sum`, else the value itself
        self._steps = np.zeros(len(specs), int)

    def add(self, numbers: np.ndarray, running: np.ndarray) -> None:
        """Add one step, numbers [N, K], of the rows that are `running`, bool [N].

        A row of NaN made no step: its environment failed.
        """
        if numbers.shape != self._values.shape:
            raise ValueError(
                f"numbers have shape {numbers.shape}, expected {self._values.shape}; make the"
                " VectorEnv with numbers=EpisodeNumbers.width"
            )
        if not self.width:
            return
        made = running & ~np.isnan(numbers).all(axis=1)
        first = made & (self._steps == 0)
        old, new = self._values, numbers.astype(np.float64)
        adds = self._is["sum"] | self._is["mean"]
        larger = self._is["max"] & ~first[:, None]
        values = np.where(adds, old + new, np.where(larger, np.maximum(old, new), new))
        declared = adds | self._is["max"] | self._is["last"]
        self._values = np.where(made[:, None] & declared, values, old)
        self._steps += made

    def read(self, row: SupportsIndex) -> dict[str, float]:
        """The value of each number over the episode so far; NaN before its first step."""
        steps = int(self._steps[row])
        found = {}
        for column, number in enumerate(self._declared[row]):
            value = float(self._values[row, column]) if steps else math.nan
            found[number.name] = value / steps if steps and number.over == "mean" else value
        return found

    def reset(self, rows: Sequence[int] | np.ndarray | None = None) -> None:
        """Begin new episodes in some rows (indices, or bool [N]), or in all."""
        chosen = slice(None) if rows is None else np.asarray(rows)
        if not isinstance(chosen, slice) and chosen.size == 0:
            return  # an empty list becomes a float array, which cannot index
        self._values[chosen] = 0.0
        self._steps[chosen] = 0

    def state(self) -> list[Any]:
        """All that `load` needs, for JSON: one [steps, values] per row, without NaN."""
        return [
            [int(steps), values[: len(numbers)].tolist()]
            for steps, values, numbers in zip(
                self._steps, self._values, self._declared, strict=True
            )
        ]

    def load(self, state: Sequence[Any]) -> None:
        """Restore what `state` returned."""
        if [len(values) for _, values in state] != [len(numbers) for numbers in self._declared]:
            raise ValueError(
                "the saved numbers of running episodes are those of other tasks; continue with"
                " the environments that the run was started with"
            )
        self.reset()
        for row, (steps, values) in enumerate(state):
            self._steps[row] = steps
            self._values[row, : len(values)] = values
