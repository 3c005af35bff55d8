"""Runs with hindsight: they continue exactly, lanes with and without it share a program, and what
cannot work is refused at the start."""

from dataclasses import replace as change
from typing import Any

import numpy as np
import pytest

from ace.engine.lanes import LaneSetup, check_compatible, hindsight_of
from ace.envs import Goal, registry, relabel
from ace.envs.probe import Plane, near
from ace.replay import Hindsight
from ace.settings.config import ConfigError, replace
from ace.settings.presets import resolve
from tests.run.helpers import check_broken_run, leaves, plan, small_run

GOAL: Any = Plane.goal
SAC = ("--agent", "sac")
PAIR = ("probe/plane", *SAC, "--vary", "replay.hindsight=0,0.8", "--replay.capacity", "70")


def test_a_broken_run_ends_like_the_whole_one(tmp_path) -> None:
    whole = small_run(tmp_path / "whole", *PAIR)
    breaks = [({30}, 45), ({62, 95}, 100)]  # the ring goes round at step 68
    again = check_broken_run(whole, tmp_path / "run", breaks, *PAIR)
    assert again.replay.hindsight == whole[0].replay.hindsight == Hindsight(GOAL, relabel, 1)


def test_a_lane_beside_another_learns_what_it_learns_alone(tmp_path) -> None:
    few = ("--env-steps", "44", "--eval-every", "44", "--replay.capacity", "70")
    both, _ = small_run(tmp_path / "both", *PAIR[:-2], *few)
    alone, _ = small_run(tmp_path / "alone", "probe/plane", *SAC, "--replay.hindsight", "0.8", *few)
    together, other = leaves(both.learner), False
    for name, leaf in leaves(alone.learner).items():
        found = together[name]
        np.testing.assert_allclose(found[1], leaf[0], rtol=1e-3, atol=1e-5, err_msg=name)
        other |= not np.allclose(found[0], leaf[0], rtol=1e-2, atol=1e-4)
    assert other  # the lane without hindsight learned something else


def setup(task: str, share: float, repeat: int = 1) -> LaneSetup:
    spec = registry.get_spec(task)
    config = resolve("debug", task, spec)
    config = replace(config, {"replay.hindsight": share, "action_repeat": repeat})
    return LaneSetup(task, 0, config, (spec.obs_size, spec.action_size))


def test_lanes_that_use_hindsight_must_agree_in_their_goal() -> None:
    assert hindsight_of([setup("probe/point", 0.0), setup("probe/plane", 0.0)]) is None
    found = hindsight_of([setup("probe/point", 0.0, 3), setup("probe/plane", 0.8, 3)])
    assert found == Hindsight(GOAL, relabel, 3)
    with pytest.raises(ConfigError, match="probe/plane and probe/reach have different goals"):
        check_compatible([setup("probe/plane", 0.8), setup("probe/reach", 0.8)])
    check_compatible([setup("probe/plane", 0.8), setup("probe/reach", 0.0)])


def test_hindsight_of_a_task_without_a_goal_is_refused(tmp_path) -> None:
    message = "task probe/point declares no goal.*set --replay.hindsight 0"
    with pytest.raises(ConfigError, match=message):
        plan(tmp_path / "run", "probe/point", "--replay.hindsight", "0.8")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match=r"replay.hindsight is 1.2; it must lie between 0 and 1"):
        plan(tmp_path / "run", "probe/plane", "--replay.hindsight", "1.2")


def numpy_only(xp: Any, achieved: Any, desired: Any) -> Any:
    """A rule that forgets xp."""
    return -np.asarray(np.abs(achieved - desired))[..., 0]


def of_another_mind(xp: Any, achieved: Any, desired: Any) -> Any:
    """A rule that gives something else on the device."""
    return near(xp, achieved, desired) + (xp is not np)


@pytest.mark.parametrize(
    "rule, message",
    [(numpy_only, "fails with JAX .*test_hindsight.py, line"), (of_another_mind, "gives other")],
)
def test_a_rule_that_the_device_cannot_compute_is_refused(monkeypatch, rule, message) -> None:
    goal = Goal(achieved=(0, 1), desired=(2, 3), error=None, rule=rule)
    spec = change(registry.get_spec("probe/reach"), goal=goal)
    monkeypatch.setattr("ace.engine.lanes.get_spec", lambda task: spec)
    lane = setup("probe/reach", 0.8)._replace(task=f"made up {message}")
    with pytest.raises(ConfigError, match=f"{message}.*write it for NumPy and JAX"):
        hindsight_of([lane])
