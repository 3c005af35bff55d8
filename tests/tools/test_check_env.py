"""`ace check-env` says what is right and wrong about a task, and ends with 1 if something is."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ace import cli
from ace.envs import EnvRequest, EnvSpec, Goal, VectorEnv, get_spec, registry
from ace.envs.probe import near
from ace.tools import check_env
from ace.tools.check_env import Finding, Trial, check
from tests.envs.bad_envs import Counter

BAD = "tests.envs.bad_envs"
EXAMPLES = Path(__file__).parents[2] / "examples"


class Deaf(Counter):
    """Hears only its first action."""

    def reward(self, action: Any) -> float:
        """Leave out the second action."""
        return float(action[0])


def made(**columns: Any) -> Trial:
    """Four steps in which nothing happens, except what is given."""
    trial = Trial(
        starts=np.arange(10.0).reshape(5, 2),
        obs=np.arange(8.0).reshape(4, 2),
        reward=np.arange(4.0),
        terminated=np.zeros(4, bool),
        truncated=np.zeros(4, bool),
        numbers=np.zeros((4, 0)),
    )
    return trial._replace(**{name: np.asarray(value) for name, value in columns.items()})


def spec(**fields: Any) -> EnvSpec:
    return EnvSpec(**({"task": "probe/point", "obs_size": 2, "action_size": 2} | fields))


def kinds(findings: Any) -> list[str]:
    return [finding.kind for finding in findings]


def of(findings: list[Finding], about: str) -> str:
    return " | ".join(f"{f.kind}: {f.text}" for f in findings if f.about == about)


# Whole tasks, in a worker


def test_a_maze() -> None:
    found = list(check("maze/umaze", 1300, 0))
    assert "problem" not in kinds(found)
    assert of(found, "observations").startswith("ok: size 4, all finite; from ")
    assert of(found, "actions") == "ok: size 2, bounds [-1, 1]; action repeat 2"
    assert of(found, "episodes") == (
        "ok: limit of 600 env steps, all of this length;"
        " of 2 played 0 terminated and 2 truncated, after 600 to 600"
    )
    assert of(found, "rewards").startswith("note: always 0 ")
    assert of(found, "coverage").startswith("ok: named number, last of an episode; from 0.")
    assert of(found, "seeds").startswith("ok: one seed repeats its episodes, another gives other")
    assert "env steps per second" in of(found, "speed")
    assert not of(found, "goal")


def test_a_task_with_a_goal() -> None:
    found = list(check("probe/reach", 120, 3))
    assert "problem" not in kinds(found)
    assert of(found, "goal").split(" | ") == [
        "ok: achieved at (0, 1), desired at (2, 3), error at (3, 4)",
        "ok: its rule gives the rewards of all 120 env steps",
    ]
    assert "mean of an episode" in of(found, "near") and "last of" in of(found, "success")


def test_a_task_that_never_changes() -> None:
    found = list(check("probe/constant", 20, 0))
    assert "problem" not in kinds(found)
    assert "note: entry 0 never changed" in of(found, "observations")
    assert "note: entry 0 had no effect" in of(found, "actions")
    assert "note: all terminated exactly at the limit" in of(found, "episodes")
    assert "another seed gives the same, so nothing is random" in of(found, "seeds")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("NanObs", "env step 3: .*failed in step: observation has 2 non-finite entries"),
        ("CrashAtReset", r"failed in reset: OSError: no model file \(.*bad_envs.py, line"),
        ("Die", r"env step 2: .* died \(exit code 7\)"),
    ],
)
def test_a_task_that_cannot_be_played(name: str, text: str) -> None:
    *_, last = check(f"{BAD}:{name}", 20, 0)
    assert (last.kind, last.about) == ("problem", "play")
    assert re.search(text, last.text)
    assert last.text.endswith(
        "Correct the environment: a run drops such an episode, and stops if it recurs."
    )


def test_a_task_that_ignores_its_seed() -> None:
    found = list(check(f"{BAD}:Forgetful", 20, 0))
    assert of(found, "seeds").startswith("problem: one seed and the same actions gave different")
    assert kinds(found).count("problem") == 1
    assert "effects not tested" in of(found, "actions")
    assert "declares no time limit: its episodes are cut after 1,000" in of(found, "episodes")


def test_a_task_that_cannot_be_made_is_explained() -> None:
    with pytest.raises(ValueError, match="only continuous Box actions"):
        list(check(f"{BAD}:Discrete", 20, 0))


# Single findings


def test_actions_without_effect_are_found() -> None:
    actions = np.full((12, 2), 0.5, np.float32)
    for name, idle in ((f"{__name__}:Deaf", [1]), (f"{BAD}:Counter", []), ("probe/long", [0, 1])):
        with VectorEnv([EnvRequest(name, 0, 1, "env")], 0, 2, 2) as envs:
            assert check_env.idle_actions(envs, 0, actions) == idle


def test_bounds_are_those_that_were_declared() -> None:
    def text(spec: EnvSpec) -> str:
        return next(check_env.about_actions(spec, True, [])).text

    assert text(spec(max_episode_steps=5)) == "size 2, bounds [-1, 1]; action repeat 1"
    scaled = get_spec(f"{BAD}:Scaled")
    assert "bounds [0, 10] at entry 0; [-4, -2] at entry 1;" in text(scaled)
    wide = spec(max_episode_steps=5, action_bounds=((-2.0, -2.0), (3.0, 3.0)))
    assert "bounds [-2, 3];" in text(wide)


@pytest.mark.parametrize(
    ("limit", "fixed", "trial", "expected"),
    [
        (2, False, made(truncated=[0, 1, 0, 1]), ["ok"]),
        (9, False, made(terminated=[0, 1, 0, 0]), ["ok"]),
        (9, False, made(), ["ok", "note: none ended in 4 env steps: look further with --steps 18"]),
        (2, False, made(truncated=[0, 0, 1, 0]), ["ok", "problem: one went on past its limit"]),
        (2, False, made(truncated=[1, 0, 0, 0]), ["ok", "problem: one went on past its limit"]),
        (3, True, made(truncated=[0, 1, 0, 0]), ["ok", "problem: one ended after 2 env steps"]),
        (2, True, made(terminated=[0, 1, 0, 1]), ["ok", "note: all terminated exactly at the"]),
    ],
)
def test_ends_of_episodes(limit: int, fixed: bool, trial: Trial, expected: list[str]) -> None:
    trial = trial._replace(
        terminated=trial.terminated.astype(bool), truncated=trial.truncated.astype(bool)
    )
    found = check_env.about_episodes(spec(max_episode_steps=limit, fixed_length=fixed), trial)
    lines = [f"{f.kind}: {f.text}" for f in found]
    assert len(lines) == len(expected)
    assert all(line.startswith(words) for line, words in zip(lines, expected, strict=True))


def test_ends_are_counted_by_kind() -> None:
    trial = made(terminated=[True, False, False, False], truncated=[False, False, True, False])
    first, *_ = check_env.about_episodes(spec(max_episode_steps=2), trial)
    assert "of 2 played 1 terminated and 1 truncated, after 1 to 2" in first.text


def test_observations_that_are_useless_or_large() -> None:
    starts, obs = np.zeros((5, 5)), np.zeros((4, 5))
    starts[1, 0], obs[2, 3], obs[0, 4] = 1, -5e3, 2
    found = list(check_env.about_observations(made(starts=starts, obs=obs)))
    assert found[0].text == "size 5, all finite; from -5e+03 to 2, mean -111"
    assert found[1].text.startswith("entries 1-2 never changed")
    assert found[2].text.startswith("entry 3 beyond 1000") and len(found) == 3


def test_a_goal_that_is_declared_wrongly() -> None:
    """Position, goal and error of three steps; the point is near in the second alone."""
    obs = np.array([[0.0, 1.0, 1.0], [0.95, 1.0, 0.05], [0.5, 1.0, 0.5]])
    goal = Goal(achieved=(0, 1), desired=(1, 2), error=(2, 3), rule=near)
    task = spec(max_episode_steps=5, goal=goal)
    right = made(obs=obs, reward=[-1, 0, -1])
    assert kinds(check_env.about_goal(task, right)) == ["ok", "ok"]
    _, rule = check_env.about_goal(task, made(obs=obs, reward=[-1, 0, 0]))
    assert (
        rule.kind == "problem" and "in 1 of 3 env steps, as -1 instead of 0 in step 3" in rule.text
    )
    obs[0, 2] = -1
    *_, error = check_env.about_goal(task, right._replace(obs=obs))
    assert (
        error.kind == "problem" and "error, at (2, 3), is not desired minus achieved" in error.text
    )


# The command


def test_the_command(capsys) -> None:
    cli.main(["check-env", "probe/action", "--steps", "30"])
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "probe/action" and last.startswith("0 problems, ")
    with pytest.raises(SystemExit) as stopped:
        cli.main(["check-env", f"{BAD}:Crash"])
    shown = capsys.readouterr().out
    assert stopped.value.code == 1 and "KeyError: 'the joint is missing'" in shown
    assert shown.splitlines()[-1] == "1 problem, 0 notes"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["probe/pont"], "did you mean probe/point"),
        (["probe/point", "--steps", "0"], "--steps must lie in 1..10000000"),
        (["probe/point", "--steps", "100000000"], "--steps must lie in 1..10000000"),
        (["probe/point", "--seed", "-1"], "--seed in 0.."),
        ([], "TASK is missing"),
    ],
)
def test_a_wrong_command(argv: list[str], words: str, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["check-env", *argv])
    error = capsys.readouterr().err
    assert stopped.value.code == 1 and words in error and error.count("\n") == 1


def test_a_family_of_the_user(capsys, monkeypatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    registry.register_family("corridor", "own_env")  # the import does it only once in a process
    try:
        cli.main(["check-env", "corridor/short", "--import", "own_env", "--steps", "60"])
    finally:
        del registry.FAMILIES["corridor"]
    shown = capsys.readouterr().out
    assert "farthest" in shown and "0 problems" in shown


def test_jax_is_not_needed() -> None:
    code = (
        "import sys; from ace import cli; cli.main(['check-env', 'probe/point', '--steps', '5']);"
        "print('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
