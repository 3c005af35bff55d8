"""`ace merge` puts the results of several machines together, all of them or none; results that a
plain copy has destroyed are noticed by whoever reads them."""

import shutil
from pathlib import Path

import pytest

from ace import cli
from ace.bench.results import add_program, read_suite, read_table, task_path
from ace.bench.scores import read
from tests.bench.made import make_row, make_suite

TASK = "dmc/hopper-hop"


def machine(folder: Path, name: str, seeds: tuple[int, ...], more: float = 0.0) -> Path:
    """The results of one program on a machine of its own."""
    suite = folder / name / "smoke"
    lanes = [{"agent": "ace", "task": TASK, "seed": seed} for seed in seeds]
    table = {seed: {1000: make_row(seed + more), 2000: make_row(seed + 1.0)} for seed in seeds}
    add_program(suite, {"id": f"p-{name}", "lanes": lanes}, {("ace", TASK): table})
    return suite


def merge(capsys, *folders: Path) -> tuple[int, str]:
    """Exit status of the command, and what it prints."""
    status = 0
    try:
        cli.main(["merge", *map(str, folders)])
    except SystemExit as stopped:
        status = int(stopped.code or 0)
    shown = capsys.readouterr()
    return status, shown.out + shown.err


def files(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_seeds_of_several_machines_come_together(tmp_path, capsys) -> None:
    one, two = machine(tmp_path, "one", (0, 1)), machine(tmp_path, "two", (2, 3))
    three = machine(tmp_path, "three", (4,))
    strangers = task_path(three, "sac", TASK)  # rows that no program describes
    strangers.parent.mkdir(parents=True)
    shutil.copy(task_path(one, "ace", TASK), strangers)
    for _ in range(2):  # once more changes nothing
        status, text = merge(capsys, one, two, three)
        assert status == 0 and "note" not in text, text
        ace, sac = read_suite(one)
        programs = [s.program and s.program["id"] for s in ace.tasks[TASK].values()]
        assert programs == ["p-one", "p-one", "p-two", "p-two", "p-three"]
        assert [s.program for s in sac.tasks[TASK].values()] == [None, None]
    assert read_table(task_path(one, "ace", TASK))[3][1000]["return"] == 3.0
    status, _ = merge(capsys, tmp_path / "new" / "smoke", one)
    assert status == 0 and len(read_suite(tmp_path / "new" / "smoke")) == 2


def test_other_numbers_of_a_seed_name_both_programs_and_nothing_is_written(
    tmp_path, capsys
) -> None:
    one, good = machine(tmp_path, "one", (0, 1)), machine(tmp_path, "good", (2,))
    bad = machine(tmp_path, "bad", (1, 3), more=0.5)
    before = files(one)
    status, text = merge(capsys, one, good, bad)
    assert (
        status == 1 and "seed 1 at env step 1000 has return 1.0 of p-one and 1.5 of p-bad" in text
    )
    assert files(one) == before
    # Two that disagree with each other, and not with what is there.
    other = machine(tmp_path, "other", (2,), more=0.25)
    status, text = merge(capsys, one, good, other)
    assert status == 1 and f"2.0 of p-good in {good} and 2.25 of p-other in {other}" in text
    assert files(one) == before


def test_two_programs_of_one_name_are_not_taken_for_one(tmp_path, capsys) -> None:
    one, two = machine(tmp_path, "one", (0,)), machine(tmp_path / "far", "one", (1,))
    before = files(one)
    status, text = merge(capsys, one, two)
    assert status == 1 and f"p-one in {two} has other lanes" in text and files(one) == before


def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path, capsys) -> None:
    one, two = machine(tmp_path, "one", (0,)), machine(tmp_path, "two", (1,))
    path = two / "programs" / "p-two.json"
    path.write_text(path.read_text().replace('"p-two"', '"../../../p"'))
    status, text = merge(capsys, one, two)
    assert status == 1 and "cannot be the name of a program" in text
    assert not list(tmp_path.glob("p*.json"))


@pytest.mark.parametrize("names, why", [(("a",), "ace merge INTO FROM"), (("a", "b"), "b has no")])
def test_wrong_folders_are_refused(tmp_path, monkeypatch, capsys, names, why) -> None:
    monkeypatch.chdir(tmp_path)
    status, text = merge(capsys, *map(Path, names))
    assert status == 1 and why in text and not (tmp_path / "a").exists()


def test_seeds_that_a_copy_has_overwritten_are_noticed(tmp_path, capsys) -> None:
    one, two = machine(tmp_path, "one", (0, 1)), machine(tmp_path, "two", (2, 3))
    kept = tmp_path / "kept"
    shutil.copytree(one, kept)
    shutil.copytree(two, one, dirs_exist_ok=True)
    _, notes = read([one])
    assert [note for note in notes if "lacks seed 0, 1 of program p-one" in note] == notes != []
    status, _ = merge(capsys, one, kept)
    assert status == 0 and read([one])[1] == []
    assert len(read_suite(one)[0].tasks[TASK]) == 4


def test_a_report_shows_what_is_lost(tmp_path, monkeypatch, capsys) -> None:
    suite = make_suite(tmp_path / "smoke")
    path = task_path(suite, "one", TASK)
    path.write_text("".join(x for x in path.open() if not x.startswith("2,")))
    monkeypatch.setattr("ace.bench.figures.write", lambda *_: [])
    cli.main(["report", str(suite), "--out", str(tmp_path / "report"), "--no-anchors"])
    said = "lacks seed 2 of program p-one"
    assert said in capsys.readouterr().out
    assert said in (tmp_path / "report" / "index.html").read_text()
