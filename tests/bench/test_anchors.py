"""The published results of other methods: known aggregates, and the traps that the data set."""

import csv
import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from ace.bench import anchors, stats
from ace.settings.presets import DMC15

SCORES = anchors.final_scores()


@pytest.fixture(scope="module")
def curves() -> anchors.Curves:
    return anchors.curves(means=True)


def of(method: str) -> list[np.ndarray]:
    return [np.array([*seeds.values()]) for seeds in SCORES[method].values()]


def rounded(scores: list[np.ndarray]) -> tuple[int, ...]:
    return tuple(round(f(scores)) for f in (stats.iqm, stats.median, stats.mean))


def test_known_aggregates() -> None:
    assert set(SCORES["SR-SAC (UTD128)"]) == set(DMC15)
    assert rounded(of("SR-SAC (UTD128)")) == (740, 818, 658)
    assert set(DMC15) - set(SCORES["DR.Q"]) == {"dmc/swimmer-swimmer6"}
    assert rounded(of("DR.Q")) == (834, 853, 756)


def test_the_iqm_of_75_runs_depends_on_the_rounding_of_the_quarter() -> None:
    """Like rliable, `iqm` cuts 18 runs at each end; 743 is found where it is cut at 18.75."""
    exact = [np.repeat(task, 4) for task in of("SR-SAC (UTD128)")]
    assert round(stats.iqm(exact)) == 743


def test_all_is_finite_and_of_known_tasks(curves: anchors.Curves) -> None:
    known = {*DMC15, "dmc/acrobot-swingup_sparse"}
    for tasks in SCORES.values():
        assert set(tasks) <= known
        assert all(0 <= score <= 1000 for seeds in tasks.values() for score in seeds.values())
    for tasks in curves.values():
        assert set(tasks) <= known
        for points in (points for seeds in tasks.values() for points in seeds.values()):
            env_steps = [step for step, _ in points]
            assert env_steps == sorted(set(env_steps))
            assert all(math.isfinite(value) for _, value in points)


def test_curves_pass_through_the_final_scores(curves: anchors.Curves) -> None:
    """To one decimal, at the env step of the final score, which is not 500k for all."""
    with anchors.FINAL.open(newline="") as file:
        steps = {
            (r["method"], r["seed"]): int(r["env_steps"])
            for r in csv.DictReader(file)
            if r["task"] == "cheetah-run"
        }
    for (method, seed), step in steps.items():
        if method in curves and seed != anchors.MEAN:
            [value] = [v for s, v in curves[method]["dmc/cheetah-run"][seed] if s == step]
            assert value == pytest.approx(SCORES[method]["dmc/cheetah-run"][seed], abs=0.051)


def test_means_are_no_runs(curves: anchors.Curves) -> None:
    with_means = anchors.final_scores(means=True)
    only = {"BMPC", "BOOM", "TD-MPC2 (BMPC-repo run)"}
    assert set(with_means) - set(SCORES) == only == set(curves) - set(anchors.curves())
    assert {seed for m in only for seeds in with_means[m].values() for seed in seeds} == {"mean"}
    assert not any("mean" in seeds for tasks in SCORES.values() for seeds in tasks.values())


def test_only_runs_that_are_listed_twice_are_dropped(curves: anchors.Curves) -> None:
    """Dropped runs are copies of kept ones over the whole curve; no others are, but for zeros."""
    whole, rows = defaultdict(list), Counter()
    with anchors.CURVES.open(newline="") as file:
        for row in csv.DictReader(file):
            run = (row["method"], row["task"], row["seed"])
            whole[run].append((row["env_steps"], float(row["return"])))
            rows[*run, row["env_steps"]] += 1
    assert max(rows.values()) == 1
    copies = defaultdict(list)
    for (method, task, seed), points in whole.items():
        if any(value for _, value in points):
            copies[method, task, tuple(points)].append(seed)
    twice = {(m, t): [] for (m, t, _), seeds in copies.items() if len(seeds) > 1}
    for (method, task, _), seeds in copies.items():
        if len(seeds) > 1:
            twice[method, task].append([seed for seed in seeds if "#" not in seed])
            kept = SCORES[method][f"dmc/{task}"]
            assert set(kept) == set(curves[method][f"dmc/{task}"]) and len(kept) == 5
    assert len(twice) == 9 and all(len(pairs) == 4 for pairs in twice.values())
    assert all(len(seeds) == 1 for pairs in twice.values() for seeds in pairs)
    dropped = len(whole) - sum(len(s) for tasks in curves.values() for s in tasks.values())
    assert dropped == 36
    assert "843#2" in SCORES["TCRL"]["dmc/fish-swim"]


def test_one_method_can_be_read_alone(curves: anchors.Curves) -> None:
    assert anchors.curves("DR.Q") == {"DR.Q": curves["DR.Q"]}
    first = curves["DR.Q"]["dmc/finger-turn_hard"]["0"]
    assert first[0][0] == 0 and first[-1][0] == 1_000_000 and len(first) == 21
    with pytest.raises(ValueError, match=r"no curves of 'DRQ'; there are .*DR\.Q"):
        anchors.curves("DRQ")


def test_the_readme_names_every_source() -> None:
    sources = anchors.sources()
    assert set(sources) == set(anchors.final_scores(means=True))
    readme = (anchors.DATA / "README.md").read_text()
    for method, source in sources.items():
        [line] = [line for line in readme.splitlines() if line.startswith(f"| {method} |")]
        assert f"`{source}`" in line
        seeds = {len(seeds) for seeds in SCORES.get(method, {}).values()}
        shown = line.split("|")[3].strip()
        assert shown == (
            " to ".join(map(str, sorted({min(seeds), max(seeds)}))) if seeds else "means"
        )
