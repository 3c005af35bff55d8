"""The example of an environment family is found by name, in this process and in workers."""

from collections.abc import Iterator

import numpy as np
import pytest

from ace import cli
from ace.agents import AGENTS
from ace.envs import (
    EnvRequest,
    EpisodeNumbers,
    TaskError,
    VectorEnv,
    get_spec,
    make,
    notes,
    register_family,
    registry,
    task_names,
)
from ace.run.record import read_csv
from tests.examples.helpers import imported

TASKS = ["corridor/short", "corridor/long"]


@pytest.fixture(autouse=True)
def own_env() -> Iterator[None]:
    """The example is there in these tests."""
    with imported("own_env", registry.FAMILIES, "corridor"):
        yield


def walk(workers: int, steps: int = 40) -> tuple[list[np.ndarray], list[dict[str, float]]]:
    """Walk down both corridors: final observations, and the numbers of finished episodes."""
    specs = [get_spec(task) for task in TASKS]
    kept, finished, seen = EpisodeNumbers(specs), [], []
    asked = [EnvRequest(task, 3, 1, f"lane {i}") for i, task in enumerate(TASKS)]
    with VectorEnv(asked, workers, 2, 1, numbers=kept.width) as env:
        env.reset()
        for _ in range(steps):
            step = env.step(np.ones((2, 1), np.float32))
            seen.append(np.concatenate([step.final_obs, step.numbers], axis=1))
            kept.add(step.numbers, np.ones(2, bool))
            ended = step.terminated | step.truncated
            finished += [kept.read(row) for row in np.flatnonzero(ended)]
            kept.reset(ended)
    return seen, finished


def test_it_is_a_family_like_any_other() -> None:
    assert set(TASKS) <= set(task_names())
    spec = get_spec("corridor/short")
    assert (spec.obs_size, spec.action_size, spec.max_episode_steps) == (2, 1, 30)
    assert not spec.assumed_limit
    assert make("corridor/short", 0, action_repeat=2).render(8, 4).shape == (4, 8, 3)
    with pytest.raises(TaskError, match="did you mean corridor/short"):
        make("corridor/shrot", 0)
    assert notes("corridor/long") == []


def test_workers_know_it_and_do_the_same() -> None:
    here, finished = walk(0)
    there, also = walk(1)
    np.testing.assert_array_equal(here, there)
    assert finished == also and len(finished) > 5
    for numbers in finished:
        assert numbers["success"] == 1 and numbers["farthest"] >= 3


def test_who_stands_still_fails() -> None:
    env = make("corridor/short", seed=0)
    env.reset()
    steps = [env.step(np.full(1, -1, np.float32)) for _ in range(30)]
    assert steps[-1].truncated and not steps[-1].terminated
    assert not any(step.numbers[0] for step in steps)


def test_its_numbers_are_columns_of_a_run(tmp_path) -> None:
    """Two agents that act at random: one may take three long steps in an episode, one none."""
    words = "corridor/short --import own_env own_agent --agent monkey --vary monkey.reach=0,1"
    words += " --preset debug --quiet --workers 1 --eval-episodes 20"
    words += " --action-repeat 10 --env-steps 500 --eval-every 500"
    with imported("own_agent", AGENTS, "monkey"):
        cli.main(["train", *words.split(), "--run", str(tmp_path / "run")])
    still, moving = read_csv(tmp_path / "run" / "eval.csv")
    assert (still["success"], still["episode_length"], still["return"]) == (0, 30, -30)
    assert 0 < still["farthest"] < 1  # the floor is slippery
    assert 0 < moving["success"] < 1 and moving["episode_length"] < 30
    assert moving["success"] == pytest.approx(round(20 * moving["success"]) / 20)
    assert moving["farthest"] > 3 * moving["success"]


def test_names_that_are_taken_are_refused() -> None:
    register_family("corridor", "own_env")  # once more, as an import under the same name does
    for name, module in (("corridor", "other"), ("dmc", "other"), ("gym", "other")):
        with pytest.raises(TaskError, match=f"'{name}' of other is taken by .*choose another"):
            register_family(name, module)
    with pytest.raises(TaskError, match="letters, digits"):
        register_family("a/b", "other")
    with pytest.raises(TaskError, match=r"main file.*module of its own"):
        register_family("mine", "__main__")


def test_a_family_that_is_wrong_gives_one_line(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    cases = {
        "empty_family": ("", "lacks make_env; add it"),
        "torn_family": ("1 / 0", r"ZeroDivisionError: division by zero \(.*py, line 1\)"),
        "bare_family": (
            "make_env = lambda *_: object()\ntask_names = lambda: ['bare_family/x']",
            "make failed: AttributeError.*must return an ace.envs.Env",
        ),
    }
    for name, (text, message) in cases.items():
        (tmp_path / f"{name}.py").write_text(text)
        register_family(name, name)
        with pytest.raises(TaskError, match=message) as caught:
            make(f"{name}/x", 0)
        assert "\n" not in str(caught.value)
        del registry.FAMILIES[name]
