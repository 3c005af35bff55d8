"""What a run tells of its learning: updates that were owed, the critics' bias, `ace diagnose`."""

import numpy as np
import pytest

from ace import cli
from ace.engine.player import Player
from ace.run import evaluate
from ace.run.record import read_csv
from ace.settings.config import ConfigError
from ace.tools import diagnose
from tests.run.helpers import QUICK, SHORT_FLAGS, small_run

SHARES = (0.0, 0.5)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A run of a task with one step and reward 1, whose critics expect 3 of everything."""
    folder = tmp_path_factory.mktemp("told") / "run"
    asked = []

    def value(player, obs, count, action):
        asked.append(action.shape)
        return np.full(action.shape[:2], 3.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Player, "value", value)
        varied = ("--vary", "learn.seed-updates=0,0.5")
        state, run = small_run(folder, "tests.envs.bad_envs:Sure", *SHORT_FLAGS, *varied)
    return folder, state, run, asked


def test_a_share_of_the_updates_is_made_after_the_seed_phase(ran):
    _, state, run, _ = ran
    config = run.setups[0].config
    all_made = config.env_steps - 1  # one is owed at the end
    expected = [all_made - round((1 - share) * config.seed_steps) for share in SHARES]
    assert state.learner.update_step.tolist() == expected


def test_an_evaluation_compares_the_critics_with_its_returns(ran):
    folder, _, _, asked = ran
    rows = read_csv(folder / "eval.csv")
    assert [(r["value_bias"], r["value_bias_std"]) for r in rows] == [(0.2, 0.0)] * len(rows)
    assert len(asked) == len(rows) / len(SHARES) and asked[0][0] == len(SHARES)


def test_the_policy_may_play_on_when_all_episodes_of_the_agent_have_ended(tmp_path, monkeypatch):
    """Values went on being asked for, and could not be compared: the run ended in a traceback."""

    def act(player, obs, count):
        acts = player._first_memory is not None
        return np.full((*obs.shape[:2], 2), 1.0 if acts else -1.0, "f")

    monkeypatch.setattr(Player, "act", act)
    monkeypatch.setattr(Player, "value", lambda player, obs, count, action: np.ones(obs.shape[:2]))
    small_run(tmp_path / "run", "tests.envs.bad_envs:Early", *QUICK, "--eval-episodes", "2")
    row = read_csv(tmp_path / "run" / "eval.csv")[-1]
    assert (row["return"], row["policy_return"], row["episode_length"]) == (4.0, -10.0, 2.0)
    assert row["value_bias"] == pytest.approx(((1 - 3.98) + (1 - 2)) / 10 / 2, abs=1e-4)


def test_the_bias_of_critics_by_hand():
    values = np.array([[20.0, 3.0], [1.0, 9.0], [7.0, 7.0]])
    rewards = np.array([[16.0, 0.0], [0.0, 8.0], [4.0, 0.0], [8.0, 0.0]])
    running = np.array([[True, True], [True, True], [True, False]])
    # With discount 0.5: 16 + 0 + 1 + 1 = 18, 4, 8 and 4, 8; those below 10 are divided by 10.
    errors = [(20 - 18) / 18, (1 - 4) / 10, (7 - 8) / 10, (3 - 4) / 10, (9 - 8) / 10]
    found = evaluate.value_bias(values, rewards, running, 0.5)
    np.testing.assert_allclose(found, (np.mean(errors), np.std(errors)))


def test_the_diagnosis_of_a_run(ran, capsys, monkeypatch):
    folder = ran[0]
    monkeypatch.setenv("COLUMNS", "160")
    cli.main(["diagnose", str(folder), "--episodes", "1"])
    out = " ".join(capsys.readouterr().out.split())
    for word in (
        "bad_envs:Sure",
        "latent gap",
        "value bias",
        "planner - policy",
        "1 new episodes",
    ):
        assert word in out
    cli.main(["diagnose", str(folder), "--episodes", "0"])
    assert "new episodes" not in capsys.readouterr().out
    with pytest.raises(ConfigError, match="at least 0"):
        diagnose.diagnose(folder, -1)


def test_a_run_without_its_rows_is_not_called_healthy(ran, tmp_path):
    (tmp_path / "config.json").write_text((ran[0] / "config.json").read_text())
    with pytest.raises(ConfigError, match=r"has no train.csv, which is what `ace diagnose` reads"):
        diagnose.diagnose(tmp_path, 0)
