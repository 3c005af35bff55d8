"""Named numbers: from a step to the worker's arrays, and over whole episodes."""

import json
import math
from typing import Any

import numpy as np
import pytest

from ace.envs import (
    EnvError,
    EnvRequest,
    EnvSpec,
    EpisodeNumbers,
    Number,
    TaskError,
    VectorEnv,
    get_spec,
    make,
)
from ace.envs.api import ActionRepeat, Checked, StepResult
from ace.envs.numbers import RESERVED, check_numbers

HERE = "tests.envs.bad_envs"
RULES = {
    "last": lambda values: values[-1],
    "mean": lambda values: sum(values) / len(values),
    "max": max,
    "sum": sum,
}
SPECS = [
    EnvSpec("a", 1, 1, 9, numbers=(Number("success"), Number("near", "mean"))),
    EnvSpec("b", 1, 1, 9),
    EnvSpec("c", 1, 1, 9, numbers=(Number("most", "max"), Number("paid", "sum"), Number("x"))),
    EnvSpec("d", 1, 1, 9, numbers=(Number("success", "max"),)),
]


class Scripted:
    """Gives the numbers that it is told to give."""

    def __init__(self, *steps: tuple[Any, ...], names: tuple[Number, ...] = (Number("one"),)):
        self.spec = EnvSpec("scripted", 1, 1, 9, numbers=names)
        self.steps = iter(steps)

    def reset(self, seed: int | None = None) -> np.ndarray:
        return np.zeros(1, np.float32)

    def step(self, action: np.ndarray) -> StepResult:
        return StepResult(np.zeros(1, np.float32), 0.0, False, False, next(self.steps))

    def render(self, width: int = 320, height: int = 240) -> np.ndarray:
        return np.zeros((height, width, 3), np.uint8)

    def close(self) -> None:
        pass


def test_episode_numbers_are_those_of_each_episode_alone() -> None:
    rng = np.random.default_rng(0)
    kept = EpisodeNumbers(SPECS)
    assert kept.width == 3
    assert kept.names == ("success", "near", "most", "paid", "x")
    running: list[list[np.ndarray]] = [[] for _ in SPECS]
    ends = 0
    for _ in range(300):
        numbers = rng.normal(size=(4, 3)).astype(np.float32)
        for row, spec in enumerate(SPECS):
            numbers[row, len(spec.numbers) :] = np.nan
        active = rng.random(4) < 0.8
        failed = active & (rng.random(4) < 0.05)
        numbers[failed] = np.nan
        kept.add(numbers, active)
        for row in np.flatnonzero(active & ~failed):
            running[row].append(numbers[row].astype(np.float64))
        if rng.random() < 0.3:  # as it goes through a checkpoint
            text = json.dumps(kept.state(), allow_nan=False)
            kept = EpisodeNumbers(SPECS)
            kept.load(json.loads(text))
        for row, spec in enumerate(SPECS):
            found = kept.read(row)
            assert list(found) == [number.name for number in spec.numbers]
            for column, (name, over) in enumerate(spec.numbers):
                values = [step[column] for step in running[row]]
                expected = RULES[over](values) if values else math.nan
                assert found[name] == pytest.approx(expected, nan_ok=True)
        done = rng.random(4) < 0.1
        ends += done.sum()
        kept.reset(done if rng.random() < 0.5 else np.flatnonzero(done).tolist())
        for row in np.flatnonzero(done):
            running[row] = []
    assert ends > 50
    kept.reset()
    assert math.isnan(kept.read(0)["near"])


def test_a_first_value_below_zero_can_be_the_largest() -> None:
    kept = EpisodeNumbers([SPECS[3]])
    for value in (-5.0, -3.0, -4.0):
        kept.add(np.array([[value]], np.float32), np.ones(1, bool))
    assert kept.read(0) == {"success": -3.0}


def test_wrong_shapes_and_states_are_refused() -> None:
    kept = EpisodeNumbers(SPECS)
    with pytest.raises(ValueError, match=r"numbers=EpisodeNumbers.width"):
        kept.add(np.zeros((4, 2), np.float32), np.ones(4, bool))
    for state in ([], [[1, [0.0]]] * 4, [[0, []]] * 5):
        with pytest.raises(ValueError, match="those of other tasks"):
            kept.load(state)


def test_no_numbers_at_all() -> None:
    kept = EpisodeNumbers([SPECS[1]] * 2)
    kept.add(np.zeros((2, 0), np.float32), np.ones(2, bool))
    assert (kept.width, kept.names, kept.read(1)) == (0, (), {})
    kept.load(json.loads(json.dumps(kept.state())))


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([Number("two words")], "letters, digits"),
        ([Number("return")], "column of every run"),
        ([Number("won"), Number("x"), Number("won", "max")], "2 times: declare it once"),
        ([Number("won", "median")], "one of last, mean, max, sum"),  # type: ignore[arg-type]
        *[([Number(name)], "choose another name") for name in RESERVED],
    ],
)
def test_names_that_cannot_be_columns_are_refused(numbers: list[Number], message: str) -> None:
    with pytest.raises(TaskError, match=f"task 'mine'.*{numbers[0].name}.*{message}"):
        check_numbers(EnvSpec("mine", 1, 1, 9, numbers=tuple(numbers)))


def test_every_task_is_checked_when_it_is_made() -> None:
    with pytest.raises(TaskError, match="'env_step', which is a column"):
        make(f"{HERE}:ColumnNumber", 0)
    with pytest.raises(TaskError, match=r"metadata\['numbers'\] = .*write a dictionary"):
        make(f"{HERE}:ListedNumbers", 0)


def test_action_repeat_combines_by_the_rule() -> None:
    env = make(f"{HERE}:Numbered", 0, action_repeat=3)
    assert env.spec.numbers[1] == Number("average", "mean")
    env.reset()
    action = np.zeros(2, np.float32)
    assert env.step(action).numbers == (3, 2, 3, 6)
    assert env.step(action).numbers == (5, 4.5, 5, 9)  # the episode ends after five
    falling = ActionRepeat(Scripted((3.0,), (1.0,), names=(Number("top", "max"),)), 2)
    assert falling.step(action).numbers == (3.0,)


def test_numbers_are_found_below_wrappers() -> None:
    assert get_spec(f"{HERE}:numbered_inside").numbers == get_spec(f"{HERE}:Numbered").numbers


@pytest.mark.parametrize("repeat", [1, 2])
@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([(), (1.0,)], r"a step has 0 numbers, the spec declares 1 \(one\)"),
        ([(1.0, 2.0), (1.0,)], "a step has 2 numbers"),
        ([(np.nan,), (1.0,)], "number 'one' is nan"),
        ([(-np.inf,), (1.0,)], "number 'one' is -inf"),
        ([(1e39,), (1.0,)], "number 'one' is 1e"),  # not finite as float32
    ],
)
def test_wrong_numbers_are_refused(repeat: int, steps: list, message: str) -> None:
    env = Checked(ActionRepeat(Scripted(*steps), repeat))
    with pytest.raises(EnvError, match=message):
        env.step(np.zeros(1, np.float32))


def test_numbers_that_are_not_declared_are_refused() -> None:
    with pytest.raises(EnvError, match=r"a step has 1 numbers, the spec declares 0 \(none\)"):
        Checked(Scripted((1.0,), names=())).step(np.zeros(1, np.float32))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MissingNumber", "lacks the number 'success'.*at every step"),
        ("WordNumber", "number 'success' is 'yes', expected one number"),
    ],
)
def test_an_info_without_the_number_is_an_error(name: str, message: str) -> None:
    env = make(f"{HERE}:{name}", 0)
    env.reset()
    with pytest.raises(EnvError, match=message):
        env.step(np.zeros(2, np.float32))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_numbers_come_through_the_pool(workers: int) -> None:
    tasks = (f"{HERE}:Numbered", "probe/point", f"{HERE}:NanNumber")
    asked = [EnvRequest(task, 0, 1, f"lane {i}") for i, task in enumerate(tasks)]
    with VectorEnv(asked, workers, 2, 2, numbers=4) as env:
        env.reset()
        steps = [env.step(np.zeros((3, 2), np.float32)) for _ in range(7)]
    nan = np.nan
    for i, step in enumerate(steps):
        assert step.numbers.dtype == np.float32
        told = [nan if i in (2, 5) else 1.0, nan, nan, nan]  # it breaks in every third step
        expected = [[i % 5 + 1] * 4, [nan] * 4, told]
        np.testing.assert_array_equal(step.numbers, expected)
        assert [fault.row for fault in step.faults] == ([2] if i in (2, 5) else [])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_worker_that_dies_leaves_no_numbers(workers: int) -> None:
    asked = [EnvRequest(f"{HERE}:{name}", 0, 1, name) for name in ("Numbered", "Die")]
    if workers == 0:
        asked[1] = EnvRequest(f"{HERE}:NanReward", 0, 1, "lane")  # nothing can die here
    with VectorEnv(asked, workers, 2, 2, numbers=4) as env:
        env.reset()
        steps = [env.step(np.zeros((2, 2), np.float32)) for _ in range(3)]
    assert steps[0].numbers[0, 0] == 1
    assert np.isnan(steps[1].numbers[0]).all() == bool(workers)
    assert steps[2].numbers[0, 0] == (1 if workers else 3)


def test_columns_for_numbers_must_suffice_or_be_none() -> None:
    asked = [EnvRequest(f"{HERE}:Numbered", 0, 1, "lane 0")]
    with pytest.raises(TaskError, match="count of numbers is 4, more than the 3 allotted"):
        VectorEnv(asked, 0, 2, 2, numbers=3)
    with VectorEnv(asked, 0, 2, 2) as env:
        env.reset()
        assert env.step(np.zeros((1, 2), np.float32)).numbers.shape == (1, 0)


def test_the_numbers_of_reach() -> None:
    env = make("probe/reach", 0, action_repeat=2)
    first = env.reset()
    numbers = []
    for _ in range(25):
        push = np.clip(4 * first[3:] - 4 * first[1:2], -1, 1).astype(np.float32)
        result = env.step(push)
        first = result.obs
        numbers.append(result.numbers)
    assert [number.name for number in env.spec.numbers] == ["success", "near"]
    assert result.truncated and numbers[-1] == (1.0, 1.0)
    assert numbers[0] != (1.0, 1.0)
