"""What a run on the mazes records about exploration: by hand, against the simulators' own counts,
and again after a run was broken off."""

import csv
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from ace import replay
from ace.agents import AGENTS, Agent
from ace.engine.program import Program
from ace.envs.maze import point
from ace.envs.maze.grid import read_grid
from ace.envs.maze.navigator import make_test_set
from ace.envs.registry import get_spec
from ace.method.types import Transition
from ace.run import explore, request
from ace.run.explore import Explorer
from tests.run.helpers import QUICK, broken_off, small_run

EVERY, LENGTH = 30, 120  # agent steps of two env steps, between evaluations and in an episode
RUN = ("maze/umaze", "--seeds", "6", "7", "--env-steps", "180", "--eval-episodes", "2", *QUICK)
RUN += ("--eval-every", str(2 * EVERY))
FREE = {(1, 1), (1, 2), (1, 3), (2, 3), (3, 1), (3, 2), (3, 3)}  # of the umaze


def rows_of(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(open(folder / "exploration.csv")))


def share(obs: np.ndarray) -> float:
    """Coverage of the umaze, cell by cell."""
    cells = {(round(float(x) + 0.2), round(float(y) + 0.2)) for x, y in obs.reshape(-1, 4)[:, :2]}
    return len(cells & FREE) / len(FREE)


@pytest.fixture(scope="module")
def short_episodes():
    """Evaluations play whole episodes, and most of a run's time is theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(point, "EPISODE", 2 * LENGTH)
        get_spec.cache_clear()
        yield
    get_spec.cache_clear()


@pytest.fixture(scope="module")
def whole(tmp_path_factory, short_episodes):
    """A run of two lanes, evaluated at agent steps 30, 60 and 90, and what evaluations saw."""
    folder = tmp_path_factory.mktemp("maze") / "run"
    seen, record = [], Explorer.record

    def recording(self, evaluated, now, state, evaluator) -> None:
        seen.append(evaluator.seen)
        record(self, evaluated, now, state, evaluator)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Explorer, "record", recording)
        state, _ = small_run(folder, *RUN)
    return SimpleNamespace(folder=folder, state=state, seen=seen, rows=rows_of(folder))


def test_training_is_counted_up_to_the_evaluation(whole) -> None:
    """No episode of 120 agent steps ends here, so slot n of the replay is agent step n."""
    assert [(r["lane"], r["env_step"]) for r in whole.rows] == [
        (lane, env_step) for env_step in ("60", "120", "180") for lane in ("0", "1")
    ]
    for row in whole.rows:
        lane, end = int(row["lane"]), int(row["env_step"]) // 2
        obs = np.asarray(whole.state.replay.obs[lane])
        assert float(row["train_coverage"]) == share(obs[: end + 1])
        trace = load_file(whole.folder / "exploration" / f"{2 * end}.safetensors")
        begin = 0 if end == EVERY else end - EVERY + 1
        np.testing.assert_array_equal(trace[f"lane-{lane}.trace"], obs[begin : end + 1, :2])


def test_an_evaluation_counts_the_cells_of_all_its_episodes(whole) -> None:
    """The episodes' own coverage, which the simulators count, checks what was kept of them."""
    means = [float(r["coverage"]) for r in csv.DictReader(open(whole.folder / "eval.csv"))]
    for row, mean in zip(whole.rows, means, strict=True):
        seen = whole.seen[int(row["env_step"]) // (2 * EVERY) - 1]
        assert seen.shape == (LENGTH + 1, 2, 2, 4)
        mine = seen[:, int(row["lane"])]
        assert float(row["eval_coverage"]) == share(mine)
        assert np.mean([share(mine[:, e]) for e in range(2)]) == pytest.approx(mean)
    assert any(float(r["eval_coverage"]) > m + 0.01 for r, m in zip(whole.rows, means, strict=True))


def test_errors_are_summed_over_the_evaluations(whole) -> None:
    for lane in "01":
        mine = [row for row in whole.rows if row["lane"] == lane]
        errors = [float(row["model_error"]) for row in mine]
        assert all(0 < error < 4 * 2 for error in errors)  # 2 - 2 cos over a horizon of 2
        np.testing.assert_allclose([float(r["cumulative_error"]) for r in mine], np.cumsum(errors))
    assert len({row["model_error"] for row in whole.rows}) == 6


def test_a_broken_run_records_the_same(whole, tmp_path) -> None:
    """Broken off with an evaluation recorded that must be made again; then with one that must not,
    in the middle of the next."""
    folder = tmp_path / "run"
    for saves, kill in (({25}, 65), ({70}, 75)):
        with broken_off(saves, kill):
            small_run(folder, *RUN)
    (folder / "exploration" / "9999.safetensors").write_bytes(b"of a time that did not come")
    small_run(folder, *RUN)
    for path in (whole.folder / "exploration.csv", *(whole.folder / "exploration").iterdir()):
        assert (folder / path.relative_to(whole.folder)).read_bytes() == path.read_bytes()
    assert {p.name for p in (folder / "exploration").iterdir()} == {
        f"{env_step}.safetensors" for env_step in (60, 120, 180)
    }


def test_other_tasks_have_no_maze() -> None:
    named = {name: explore.layout_of(name) for name in ("maze/large", "maze/mine", "probe/large")}
    assert named == {"maze/large": "large", "maze/mine": None, "probe/large": None}


@pytest.mark.parametrize("capacity", [20, 5])
def test_the_replay_in_order_of_time(capacity: int) -> None:
    """Episodes of three steps; observation t is made after t steps, a reset's is t + 0.5. The ring
    of five slots has forgotten all but the newest five."""
    store = replay.init(capacity, np.zeros(1, np.float32), 1)  # type: ignore[arg-type]
    for t in range(1, 8):
        done = t % 3 == 0
        new = (np.full(1, x, np.float32) for x in (t, t + 0.5 * done))
        step = Transition(np.zeros(1, np.float32), 0.0, False, np.array(done), *new)
        store = replay.add(store, step)
    parts = jax.device_get((store.obs, store.final, store.cursor, store.stored))
    obs, steps = explore.stored_path(*parts, now=7)
    everything = [0, 1, 2, 3, 3.5, 4, 5, 6, 6.5, 7]
    kept = everything[-capacity:]
    assert obs[:, 0].tolist() == kept and steps.tolist() == [int(x) for x in kept]


def test_maps_average_a_value_over_velocities(monkeypatch) -> None:
    """10 x + y + vx^2 + vx + action of a place: over rest and 8 directions of speeds 0.5 and 2 the
    mean of vx^2 is 4 (0.25 + 4) / 17 = 1 and that of vx 0; the policy acts with 0.5 and 0.5."""
    agent = Agent(
        init=lambda config, seed, sizes: {"w": np.ones(1, np.float32)},
        pad=lambda config, state, sizes: state,
        act=lambda *args: (args[3][:2], ()),
        update=lambda lane, state, store, agent_step, active: (state, store, {}),
        metrics=(),
        act_policy=lambda lane, acting, obs: 0.5 * jax.numpy.ones((*obs.shape[:-1], 2)),
        value=lambda lane, acting, obs, action: (
            10 * obs[..., 0] + obs[..., 1] + obs[..., 2] ** 2 + obs[..., 2] + action.sum(-1)
        ),
        prediction_error=lambda lane, acting, obs, action: (obs[:, 1:, :2] * action).sum(),
        segment=lambda config: 2,  # it does not plan: plan.horizon means nothing
    )
    monkeypatch.setitem(AGENTS, "by-hand", agent)
    lanes = ["maze/umaze", "maze/medium", "--preset", "debug", "--quiet"]
    program = Program("by-hand", request.plan_run(lanes).setups)
    grids = {0: read_grid("umaze"), 1: read_grid("medium")}
    acting = {"w": np.ones((2, 1), np.float32)}
    values, errors = program.survey(acting, explore.make_survey(program, grids))
    assert values is not None and errors is not None
    for lane, grid in grids.items():
        places = explore.places(grid)
        assert len(places) == 16 * grid.count and len(np.unique(places, axis=0)) == len(places)
        assert np.array_equal(grid.cell_of(places), np.repeat(np.arange(grid.count), 16))
        wanted = 10 * places[:, 0] + places[:, 1] + 2
        np.testing.assert_allclose(values[lane, : len(places)], wanted, rtol=1e-4, atol=1e-4)
        data = make_test_set(grid.name, 1600, 2, 0, 2)
        wanted = (data["obs"][:, 1:, :2] * data["action"]).sum(dtype=np.float64)
        np.testing.assert_allclose(errors[lane], wanted, rtol=1e-3)
    # The corner place of the first cell, whose centre is (0.8, 0.8).
    np.testing.assert_allclose(explore.places(grids[0])[0], [0.425, 0.425])
