"""Time limits that are assumed, and what a run says about its task at the start."""

import numpy as np
import pytest

from ace.envs import advice, get_spec, make, notes
from ace.envs.registry import DEFAULT_LIMIT

HERE = "tests.envs.bad_envs"
NO_LIMIT = "declares no time limit: its episodes are cut after 1,000 environment steps; wrap it"
NOT_REPEATED = "does not repeat its episodes under a seed: its runs cannot be repeated or resumed"


@pytest.mark.parametrize("repeat", [1, 7])
def test_a_task_without_end_is_truncated_after_so_many_env_steps(repeat: int) -> None:
    env = make(f"{HERE}:Endless", 0, action_repeat=repeat)
    assert env.spec.assumed_limit and env.spec.max_episode_steps == DEFAULT_LIMIT == 1000
    for _ in range(2):
        env.reset()
        steps = -(-1000 // repeat)
        results = [env.step(np.zeros(2, np.float32)) for _ in range(steps)]
        assert [r.truncated for r in results] == [False] * (steps - 1) + [True]
        assert results[-1].obs[1] == 1000 and not results[-1].terminated


def test_a_task_that_ends_with_the_last_step_is_not_truncated() -> None:
    from ace.envs.api import TimeLimit
    from ace.envs.gym import make_imported

    env = TimeLimit(make_imported(f"{HERE}:Counter", 0), 5)
    env.reset()
    results = [env.step(np.zeros(2, np.float32)) for _ in range(5)]
    assert results[-1].terminated and not results[-1].truncated


def test_limits_of_the_task_itself_are_kept() -> None:
    spec = get_spec(f"{HERE}:limited")  # not registered: gymnasium has no spec of it
    assert spec.max_episode_steps == 1500 and not spec.assumed_limit
    assert not get_spec("gym/Pendulum-v1").assumed_limit
    assert not get_spec("probe/point").assumed_limit


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Counter", [NO_LIMIT]),
        ("limited", []),
        ("Forgetful", [NO_LIMIT, NOT_REPEATED]),
        ("SlipsLater", [NO_LIMIT, NOT_REPEATED]),
        ("Drifts", [NO_LIMIT, NOT_REPEATED]),
        ("Crash", [NO_LIMIT]),  # nothing is known: the run itself will tell
        ("CrashAtReset", [NO_LIMIT]),
        ("Die", [NO_LIMIT]),
    ],
)
def test_notes(name: str, expected: list[str]) -> None:
    found = notes(f"{HERE}:{name}")
    assert len(found) == len(expected)
    for line, words in zip(found, expected, strict=True):
        assert line.startswith(f"task {HERE}:{name} ") and words in line and "\n" not in line


def test_notes_are_made_once_and_only_where_they_are_needed(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(advice, "repeats_itself", lambda task: bool(asked.append(task)))
    advice._notes.cache_clear()
    assert notes("dmc/pendulum-swingup") == notes("probe/long") == []
    first = notes("gym/Pendulum-v1")
    first.clear()  # the caller's own list
    assert len(notes("gym/Pendulum-v1")) == 1
    assert asked == ["gym/Pendulum-v1"]
    advice._notes.cache_clear()
