"""Result files: what is written is read again, what is broken is refused, and numbers of several
programs are merged or their conflict is named."""

import json
import math
from pathlib import Path

import pytest

from ace.bench.results import (
    ResultError,
    add_program,
    read_programs,
    read_suite,
    read_table,
    task_of,
    task_path,
    write_table,
)

HEADER = "seed,env_step,return,policy_return,episode_length\n"


def row(value: float, **more: float) -> dict[str, float]:
    return {"return": value, "policy_return": math.nan, "episode_length": 1000.0, **more}


def program(name: str, *lanes: tuple[str, str, int]) -> dict:
    return {"id": name, "lanes": [{"agent": a, "task": t, "seed": s} for a, t, s in lanes]}


@pytest.mark.parametrize(
    "task", ["dmc/walker-run", "gym/Ant-v5", "my.module:make", "../..", "a b/<b>&c", "x/ü%2F."]
)
def test_every_task_has_a_file_of_its_own_below_the_suite(tmp_path, task: str) -> None:
    path = task_path(tmp_path, "ace", task)
    assert path.resolve().is_relative_to(tmp_path / "ace")
    assert task_of(tmp_path, path) == ("ace", task)


def test_tables_are_read_as_they_were_written(tmp_path) -> None:
    table = {3: {2000: row(0.1 + 0.2), 1000: row(-1e-9, success=0.5)}, 0: {1000: row(7.0)}}
    write_table(tmp_path / "x.csv", table)
    got = read_table(tmp_path / "x.csv")
    assert list(got) == [0, 3] and list(got[3]) == [1000, 2000]
    assert got[3][2000]["return"] == 0.1 + 0.2 and got[3][1000]["success"] == 0.5
    assert math.isnan(got[0][1000]["success"]) and math.isnan(got[0][1000]["policy_return"])
    first = (tmp_path / "x.csv").read_bytes()
    write_table(tmp_path / "x.csv", got)
    assert (tmp_path / "x.csv").read_bytes() == first


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "must start with seed,env_step"),
        ("a,b\n1,2\n", "must start with seed,env_step"),
        (HEADER, "no rows"),
        (HEADER + "0,1000,1.0,,1000", "cut off"),
        (HEADER + "0,1000,1.0\n", "3 fields instead of 5"),
        (HEADER + "0,1000,nan,,1000\n", "return is nan"),
        (HEADER + "0,1000,,,1000\n", "return is nan"),
        (HEADER + "0,1000,inf,,1000\n", "return is inf"),
        (HEADER + "zero,1000,1.0,,1000\n", "zero"),
        (HEADER + "-1,1000,1.0,,1000\n", "must not be negative"),
        (HEADER + "0,1000,1.0,,1000\n0,1000,2.0,,1000\n", "has two results"),
        (HEADER.replace("episode_length", "return") + "0,1000,1.0,,1000\n", "must start with"),
    ],
)
def test_broken_files_are_refused_with_a_reason(tmp_path, text: str, why: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(ResultError, match=why) as caught:
        read_table(path)
    assert str(path) in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path) -> None:
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ResultError, match="cannot be read"):
        read_table(tmp_path / "x.csv")


def test_equal_rows_twice_count_once(tmp_path) -> None:
    (tmp_path / "x.csv").write_text(HEADER + 2 * "0,1000,1.0,,1000\n")
    assert len(read_table(tmp_path / "x.csv")[0]) == 1


def test_programs_of_several_machines_are_merged(tmp_path) -> None:
    task = "dmc/walker-run"
    add_program(tmp_path, program("a", ("ace", task, 0)), {("ace", task): {0: {10: row(1)}}})
    add_program(tmp_path, program("b", ("ace", task, 1)), {("ace", task): {1: {10: row(2)}}})
    again = {("ace", task): {0: {10: row(1)}}}
    add_program(tmp_path, program("a", ("ace", task, 0)), again)  # the same once more
    [method] = read_suite(tmp_path)
    assert method.suite == tmp_path.name and list(method.tasks[task]) == [0, 1]
    one = method.tasks[task][1]
    assert one.env_step.tolist() == [10] and one.columns["return"].tolist() == [2.0]
    assert one.program and one.program["id"] == "b"
    assert [p["id"] for p in read_programs(tmp_path)] == ["a", "b"]


def test_the_same_seed_with_other_numbers_names_both_programs(tmp_path) -> None:
    key = ("ace", "probe/point")
    add_program(tmp_path, program("first", (*key, 0)), {key: {0: {10: row(1)}}})
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    both = {key: {0: {10: row(1.5)}}, ("other", "probe/point"): {0: {10: row(3)}}}
    with pytest.raises(ResultError, match=r"1(\.0)? of first and 1\.5 of second"):
        add_program(tmp_path, program("second", (*key, 0)), both)
    after = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert after == before  # nothing is half-written


@pytest.mark.parametrize(
    "rows, why",
    [
        ({0: {10: {"policy_return": 1.0}}}, "seed 0 at env step 10: return is nan"),
        ({0: {10: row(math.inf)}}, "return is inf"),
        ({0: {-10: row(1)}}, "must not be negative"),
        ({-1: {10: row(1)}}, "must not be negative"),
        ({0: {}}, "no rows"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(tmp_path, rows, why: str) -> None:
    key = ("ace", "probe/point")
    both = {("other", "probe/point"): {0: {10: row(1)}}, key: rows}
    with pytest.raises(ResultError, match=f"from new.*{why}"):
        add_program(tmp_path, program("new", (*key, 0)), both)
    assert not list(tmp_path.rglob("*.csv")) and not (tmp_path / "programs").exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"id": "x"}', '{"lanes": [{"agent": "ace"}]}'])
def test_a_broken_description_is_refused(tmp_path, text: str) -> None:
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "x.json").write_text(text)
    with pytest.raises(ResultError, match=r"x\.json"):
        read_programs(tmp_path)


def test_folders_without_results_are_refused(tmp_path) -> None:
    with pytest.raises(ResultError, match="is not a folder"):
        read_suite(tmp_path / "nothing")
    with pytest.raises(ResultError, match="has no results"):
        read_suite(tmp_path)


def test_the_results_of_this_project_can_be_read() -> None:
    root = Path(__file__).parents[2] / "results"
    suites = [folder for folder in sorted(root.iterdir()) if (folder / "programs").is_dir()]
    assert suites
    for folder in suites:
        for method in read_suite(folder):
            for seeds in method.tasks.values():
                assert all(series.program for series in seeds.values()), folder
        for path in (folder / "programs").glob("*.json"):
            assert json.loads(path.read_text())["id"] == path.stem
