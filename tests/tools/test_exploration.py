"""The figure of exploration, from recorded files that are made by hand."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from ace.envs.maze.grid import read_grid
from ace.run.explore import COLUMNS, places
from ace.tools import exploration

HEAD = ",".join(COLUMNS) + "\n"


def recorded(
    folder: Path, tasks: list[str], steps: list[int], label: str = "", seeds: Sequence[int] = (0, 1)
) -> Path:
    """A run folder with these seeds of every task, of which all rows and files are made up."""
    (folder / "exploration").mkdir(parents=True)
    lines, lanes = [], [(task, seed) for task in tasks for seed in seeds]
    described = [{"label": label} for _ in lanes]
    (folder / "config.json").write_text(json.dumps({"lanes": described}))
    for index, step in enumerate(steps):
        arrays = {}
        for lane, (task, seed) in enumerate(lanes):
            lines.append(f"{lane},{seed},{task},{step},0.{index + 1},0.5,{3 - index},{index + 3}")
            at = places(read_grid(task.removeprefix("maze/")))
            arrays[f"lane-{lane}.place"] = at
            arrays[f"lane-{lane}.value"] = at[:, 0]
            arrays[f"lane-{lane}.trace"] = at[index : index + 3]
        save_file(arrays, folder / "exploration" / f"{step}.safetensors")
    (folder / "exploration.csv").write_text(HEAD + "\n".join(lines) + "\n")
    return folder


def test_the_figure_shows_every_run(tmp_path: Path) -> None:
    """One row of panels per run makes the figure that much higher."""
    one = recorded(tmp_path / "one", ["maze/umaze"], [100, 200])
    other = recorded(tmp_path / "other", ["maze/umaze"], [100, 200, 300], "novelty_weight=0")
    assert list(exploration.read_groups([one, other])) == ["one", "other novelty_weight=0"]
    heights = []
    for runs in ([one], [one, other]):
        outs = [tmp_path / f"figure{len(runs)}{kind}" for kind in (".png", ".pdf")]
        assert exploration.draw(runs, outs)
        heights.append(Image.open(outs[0]).height)
        assert outs[1].read_bytes().startswith(b"%PDF")
    assert heights[1] - heights[0] == pytest.approx(150 * (1.6 + 0.3), abs=1)


def test_several_tasks_and_equal_names_are_told_apart(tmp_path: Path) -> None:
    both = recorded(tmp_path / "a" / "run", ["maze/umaze", "maze/large"], [100])
    alike = recorded(tmp_path / "b" / "run", ["maze/umaze"], [100])
    names = list(exploration.read_groups([both, alike]))
    assert names == [f"{both} maze/umaze", f"{both} maze/large", f"{alike} maze/umaze"]
    assert [row["lane"] for row in exploration.read_groups([both])["run maze/large"].first] == [2]


def test_the_programs_of_a_suite_are_joined_by_agent(tmp_path: Path) -> None:
    """Agent `ace` has seeds in two programs; another suite has its own."""
    parts = [
        recorded(tmp_path / "maze" / program / "run", ["maze/umaze"], [100], agent, seeds)
        for program, agent, seeds in (
            ("p1", "ace", (0, 1)),
            ("p2", "ace", (2,)),
            ("p3", "icem", (0,)),
        )
    ]
    groups = exploration.read_groups(parts)
    assert {name: [row["seed"] for row in g.rows] for name, g in groups.items()} == {
        "ace": [0, 1, 2],
        "icem": [0],
    }
    parts.append(recorded(tmp_path / "other" / "p1" / "run", ["maze/umaze"], [100], "ace"))
    assert sorted(exploration.read_groups(parts)) == [
        f"{tmp_path / 'maze'} ace",
        f"{tmp_path / 'other'} ace",
        "icem",
    ]


def test_runs_without_mazes_have_no_figure(tmp_path: Path) -> None:
    assert not exploration.draw([tmp_path], [tmp_path / "figure.png"])
    assert not (tmp_path / "figure.png").exists()


def test_a_few_points_in_time() -> None:
    assert exploration.times([6]) == [6]
    assert exploration.times([6, 12, 18]) == [6, 12, 18]
    assert exploration.times(list(range(6, 126, 6))) == [30, 60, 90, 120]


def test_values_lie_where_their_places_are() -> None:
    """Cell (1, 1) reaches from 0.3 to 1.3 along both axes: places 0.425, 0.675, 0.925 and 1.175."""
    grid = read_grid("umaze")
    at = np.array([[0.425, 0.425], [0.425, 1.175], [2.925, 0.675]], np.float32)
    picture = exploration.image(grid, at, np.array([1.0, 2.0, 3.0]))
    assert picture.shape == (20, 20)
    assert picture[4, 4] == 1 and picture[4, 7] == 2 and picture[14, 5] == 3
    assert np.isfinite(picture).sum() == 3
    everywhere = exploration.image(grid, places(grid), np.zeros(16 * 7))
    free = np.kron(grid.numbers >= 0, np.ones((4, 4), bool))
    assert np.array_equal(np.isfinite(everywhere), free)
