"""Figures and videos: the interval's arithmetic, curve alignment, and files worth looking at."""

import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from ace.run.record import LaneInfo, Recorder
from ace.tools import plots


def image_colours(path) -> int:
    from PIL import Image

    return len(Image.open(path).convert("RGB").getcolors(1 << 20) or [])


def test_bootstrap_interval_of_three_seeds():
    # All 27 resamples of {0, 0, 9}: mean 0 has probability 8/27, mean 9 has 1/27 = 3.7 %. Hence
    # a 95 % interval is (0, 9), and an 80 % interval (0, 6) as mean >= 6 has 7/27 > 10 %.
    values = np.array([[0.0], [0.0], [9.0]])
    means = [sum(pick) // 3 for pick in itertools.product([0, 0, 9], repeat=3)]
    assert means.count(9) == 1 and means.count(0) == 8
    low, high = plots.bootstrap_interval(values)
    assert (low.item(), high.item()) == (0, 9)
    low, high = plots.bootstrap_interval(values, level=0.8)
    assert (low.item(), high.item()) == (0, 6)


def test_bootstrap_interval_is_per_point_and_repeatable():
    values = np.random.default_rng(1).normal(size=(5, 7))
    low, high = plots.bootstrap_interval(values)
    assert low.shape == high.shape == (7,)
    assert np.all(low < values.mean(axis=0)) and np.all(values.mean(axis=0) < high)
    np.testing.assert_array_equal(low, plots.bootstrap_interval(values)[0])
    constant_low, constant_high = plots.bootstrap_interval(np.ones((1, 3)))
    np.testing.assert_allclose([constant_low, constant_high], 1)


def row(seed: int, env_step: int, value: float) -> dict[str, float]:
    return {"seed": seed, "env_step": env_step, "return": value}


def test_align_reads_seeds_at_shared_steps():
    rows = [row(0, 0, 0), row(0, 10, 10), row(0, 20, 20), row(1, 5, 1), row(1, 15, 3)]
    rows += [row(1, 15, 5), row(1, 18, float("nan"))]  # a repeated step and a gap
    steps, values = plots.align(rows)
    np.testing.assert_array_equal(steps, [5, 10, 15])
    np.testing.assert_allclose(values, [[5, 10, 15], [1, 3, 5]])


@pytest.mark.parametrize("seeds", [1, 3])
def test_learning_curve_writes_a_picture(tmp_path, seeds):
    lanes = [LaneInfo(lane, lane % seeds, f"toy/{lane // seeds}", "") for lane in range(2 * seeds)]
    with Recorder(tmp_path, lanes, 1000, quiet=True) as record:
        for info in lanes:
            for env_step in (0, 500, 1000):
                record.evaluation(info.lane, env_step, env_step + info.seed, None, 10)
                record.episode(info.lane, env_step, env_step - 5.0, 10, {})
    plots.learning_curve(tmp_path, tmp_path / "curve.png")
    assert image_colours(tmp_path / "curve.png") > 20


def test_learning_curve_separates_settings(tmp_path):
    lanes = [LaneInfo(lane, lane // 2, "toy/chain", "") for lane in range(4)]
    with Recorder(tmp_path, lanes, 1000, quiet=True) as record:
        for lane, env_step in itertools.product(range(4), (0, 1000)):
            record.evaluation(lane, env_step, env_step * (lane % 2), 1.0, 10)
    plots.learning_curve(tmp_path, tmp_path / "one.png")
    labels = {lane: f"x={lane % 2}" for lane in range(4)}
    plots.learning_curve(tmp_path, tmp_path / "two.png", labels)
    assert image_colours(tmp_path / "two.png") > 20
    assert (tmp_path / "one.png").read_bytes() != (tmp_path / "two.png").read_bytes()


def legend_box(figure) -> tuple[Any, Any]:
    """Boxes of the figure's legend and of the figure."""
    figure.draw_without_rendering()
    return figure.legends[0].get_window_extent(), figure.bbox


@pytest.mark.parametrize("settings", [1, 9])
@pytest.mark.parametrize("words", [1, 12])
def test_the_legend_of_varied_settings_lies_inside_the_figure(
    tmp_path, monkeypatch, settings, words
):
    drawn = []
    monkeypatch.setattr(plots, "_write_png", lambda figure, out: drawn.append(figure))
    lanes = [LaneInfo(lane, 0, "toy/chain", "") for lane in range(settings)]
    with Recorder(tmp_path, lanes, 1000, quiet=True) as record:
        for lane, env_step in itertools.product(range(settings), (0, 1000)):
            record.evaluation(lane, env_step, lane, 1.0, 10)
    labels = {lane: " ".join([f"x={lane}"] * words) for lane in range(settings)}
    plots.learning_curve(tmp_path, tmp_path / "curve.png", labels)
    legend, figure = legend_box(drawn[0])
    assert legend.x0 >= 0 and legend.y0 >= 0
    assert legend.x1 <= figure.x1 and legend.y1 <= figure.y1
    assert len(drawn[0].legends[0].get_texts()) == settings + 1
    panel = drawn[0].axes[0].get_window_extent()
    assert panel.y0 >= legend.y1 and panel.height > 150  # pixels at 100 dpi: still a picture


def test_a_short_legend_is_one_row(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "_write_png", lambda figure, out: drawn.append(figure))
    with Recorder(tmp_path, [LaneInfo(lane, 0, "a", "") for lane in range(2)], 10, True) as record:
        for lane, env_step in itertools.product(range(2), (0, 10)):
            record.evaluation(lane, env_step, env_step, None, 10)
    plots.learning_curve(tmp_path, tmp_path / "two.png", {0: "one", 1: "two"})
    plots.learning_curve(tmp_path, tmp_path / "one.png", {0: "one", 1: "one"})
    (two, figure), (one, _) = map(legend_box, drawn)
    assert two.height == pytest.approx(one.height) and two.width > one.width
    assert figure.height == pytest.approx(345)  # 3.1 inches of panel and 0.35 of legend
    assert {text.get_text() for text in drawn[0].legends[0].get_texts()} == {"one", "two"}


def test_learning_curve_without_evaluations_says_so(tmp_path):
    (tmp_path / "eval.csv").write_text("lane,task\n")
    with pytest.raises(ValueError, match="no evaluations"):
        plots.learning_curve(tmp_path, tmp_path / "curve.png")


@pytest.mark.filterwarnings("ignore:os.fork")  # the reader's; the writer keeps its own quiet
def test_save_video_writes_a_playable_file(tmp_path):
    imageio = pytest.importorskip("imageio.v2")
    pytest.importorskip("imageio_ffmpeg")
    frames = [np.full((64, 64, 3), 10 * index, np.uint8) for index in range(8)]
    plots.save_video(frames, tmp_path / "episode.mp4", fps=20)
    with imageio.get_reader(tmp_path / "episode.mp4") as reader:
        read = [np.asarray(frame) for frame in reader]
    assert len(read) == 8 and abs(float(read[-1].mean()) - 70) < 5


def test_importing_plots_does_not_import_drawing_packages():
    code = "import sys, ace.tools.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
