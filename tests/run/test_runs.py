"""Whole runs, small: equal runs are equal bit for bit, seeds differ everywhere, lanes may vary."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ace.engine.lanes import LaneSetup
from ace.engine.program import Program
from ace.envs import EnvSpec, VectorEnv
from ace.run import evaluate, request
from ace.settings.config import Config, replace
from ace.tools import played
from tests.run.conftest import compiled_anew
from tests.run.helpers import QUICK, leaves, same, same_rows, small_run

TASK = "probe/long"  # episodes of 1 to 12 steps, terminated and truncated
LANES = (TASK, "--seeds", "0", "1", *QUICK)


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory):
    """One run of two lanes that several tests look at. Its functions are compiled anew, and then
    used by the other runs: `traced` is how often each was traced."""
    folder = tmp_path_factory.mktemp("two") / "run"
    programs, start = [], Program.__init__

    def started(self, *args, **kwargs) -> None:
        start(self, *args, **kwargs)
        programs.append(self)

    with compiled_anew(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Program, "__init__", started)
        state, run = small_run(folder, *LANES)
    (program,) = programs
    return SimpleNamespace(state=state, run=run, folder=folder, traced=program.traces)


def test_the_same_run_twice_is_equal_bit_for_bit(two_seeds, tmp_path):
    same(small_run(tmp_path / "again", *LANES)[0], two_seeds.state)
    same_rows(tmp_path / "again", two_seeds.folder)


def test_two_seeds_differ_in_every_learned_leaf(two_seeds):
    learner, memory, store = two_seeds.state
    parts = (learner.params, learner.stats, learner.target, learner.moments.mean, memory.plan.mean)
    parts += (store.obs, store.action, store.reward, store.tree.sums)
    equal = {name: x for name, x in leaves(parts).items() if np.array_equal(*x)}
    assert np.all(equal.pop("[1]['obs']['count']") > 0)
    # Biases that a batch norm takes away again stay where they begin, at zero.
    assert sorted(equal) == ["[0]['predictor']['in']['b']", "[0]['projector']['in']['b']"]
    assert not any(x.any() for x in equal.values())


def test_every_update_was_made_and_none_skipped(two_seeds):
    state, run = two_seeds.state, two_seeds.run
    steps = run.setups[0].config.env_steps
    assert np.all(np.asarray(state.learner.update_step) == steps - 1)  # one owed at the end
    assert np.all(np.asarray(state.learner.skipped) == 0)


def test_a_run_without_a_maze_records_no_exploration(two_seeds):
    assert not list(two_seeds.folder.glob("exploration*"))
    assert "survey" not in two_seeds.traced


def test_each_function_is_traced_once(two_seeds):
    traced = two_seeds.traced
    assert set(traced) >= {"act", "add", "update", "act_eval", "act_policy", "act_seed"}
    assert set(traced.values()) == {1}


def test_no_time_is_foretold_before_learning_has_its_own_speed(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr("ace.run.record.Recorder.status", lambda self, text: said.append(text))
    _, run = small_run(tmp_path / "run", TASK, *QUICK)
    seed_steps = run.setups[0].config.seed_steps
    phases = [text for text in said if not text.startswith("compiling")]
    assert phases[:seed_steps] == ["random actions"] * seed_steps
    assert "first updates" in phases[seed_steps : seed_steps + 2]
    assert set(phases[seed_steps + 2 :]) == {""}


def test_lanes_may_vary_a_setting(tmp_path):
    state, run = small_run(tmp_path / "run", TASK, *QUICK, "--vary", "learn.td-lambda=0,0.8")
    assert run.labels == ["learn.td_lambda=0", "learn.td_lambda=0.8"]
    differs = [n for n, x in leaves(state.learner.params).items() if not np.array_equal(*x)]
    assert any("value" in n for n in differs)


def test_every_evaluation_has_starts_of_its_own(tmp_path, monkeypatch):
    """Equal for lanes of one seed, for the agent and its policy, and for `ace eval` afterwards."""
    begun: list[list[int]] = []
    reset = VectorEnv.begin_reset

    def noted(self, seeds=None):
        begun.append(list(seeds or ()))
        reset(self, seeds)

    vary = ("--vary", "learn.td-lambda=0,0.8")
    monkeypatch.setattr(VectorEnv, "begin_reset", noted)
    _, run = small_run(tmp_path / "run", TASK, *QUICK, *vary, "--eval-episodes", "2")
    evaluated = [seeds for seeds in begun if len(seeds) == 4]  # two lanes, two episodes
    agent, policy = evaluated[::2], evaluated[1::2]
    assert len(agent) > 1 and agent == policy
    assert all(seeds[:2] == seeds[2:] for seeds in agent)
    assert len({seed for seeds in agent for seed in seeds}) == 2 * len(agent)
    begun.clear()
    played.play(run.folder, 1)
    assert begun[0] == agent[-1][::2]


@pytest.mark.parametrize("mode", ["step", "block"])
def test_both_update_modes_make_the_updates_they_owe(mode, tmp_path):
    state, run = small_run(tmp_path / mode, *LANES, "--learn.update-mode", mode)
    made, steps = int(state.learner.update_step[0]), run.setups[0].config.env_steps
    assert steps - 13 <= made <= steps  # a block may still be owed for the running episode


def test_workers_change_nothing(two_seeds, tmp_path):
    state, _ = small_run(tmp_path / "run", *LANES, "--workers", "2")
    one, other = leaves(two_seeds.state), leaves(state)
    for name, leaf in one.items():
        np.testing.assert_array_equal(leaf, other[name], err_msg=name)


@pytest.mark.parametrize(
    ("length", "every", "calls"),
    [
        (1000, 20_000, 16),  # 250 rounds in 5,000 agent steps: as slow as allowed
        (1000, 10_000, 8),
        (1000, 4_000, 4),  # cannot end in time
        (None, 20_000, 8),
    ],
)
def test_evaluations_end_before_the_next_begins(monkeypatch, length, every: int, calls: int):
    monkeypatch.setattr(evaluate, "get_spec", lambda task: EnvSpec(task, 1, 1, length))
    config = replace(Config(), {"eval_every": every, "action_repeat": 4})
    program: Any = SimpleNamespace(config=config, setups=[LaneSetup(TASK, 0, config, (1, 1))])
    assert evaluate.phases(program) == calls
    if calls > 4 and length:
        assert evaluate.RESET + calls * length / 4 < every / 4


def test_an_evaluation_does_not_wait_for_its_simulators(tmp_path, monkeypatch):
    run = request.plan_run([*LANES, "--preset", "debug", "--run", str(tmp_path / "run")])
    program = Program(run.agent, run.setups)
    learner = program.acting(program.init_state(np.zeros((2, 2), np.float32), 64))
    evaluator, ready = evaluate.Evaluator(program, 1, 1), VectorEnv.ready
    try:
        expected = evaluator.run(learner, 7)
        monkeypatch.setattr(VectorEnv, "ready", lambda self: False)
        evaluator.begin(learner, 7)
        calls = evaluate.RESET + 5 * evaluator.phases
        assert [evaluator.advance() for _ in range(calls)] == [None] * calls
        assert evaluator.rounds == 0  # not even the first observations were taken
        monkeypatch.setattr(VectorEnv, "ready", ready)
        while evaluator.rounds == 0:
            assert evaluator.advance() is None
        monkeypatch.setattr(VectorEnv, "ready", lambda self: False)
        for _ in range(3 * evaluator.phases):
            evaluator.advance()
        assert evaluator.rounds == 1
        monkeypatch.setattr(VectorEnv, "ready", ready)
        assert evaluator.finish() == expected
    finally:
        evaluator.close()
