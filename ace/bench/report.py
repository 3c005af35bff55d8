"""`ace report` and `ace plot`: from result files and run folders to numbers, tables, figures and a
page."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from ace.bench import tables
from ace.bench.curves import column_names, suite_columns
from ace.bench.page import finite, page
from ace.bench.results import COLUMNS, ResultError, write_text
from ace.bench.scores import Entry, read
from ace.bench.summary import summarise

Numbers = Mapping[str, Any]


@dataclass(frozen=True)
class ReportArgs:
    """Aggregates, tables, curves and a page from results, beside the paper's and public ones."""

    results: tyro.conf.Positional[tuple[Path, ...]]
    """Folders with results: results/SUITE, results/SUITE/AGENT, or runs."""
    out: Path = Path("report")
    """Folder for everything that is written; files of an earlier report are replaced."""
    at: int | None = None
    """Env step of the scores; by default the last one that all seeds of a task share."""
    anchors: bool = True
    """Show the paper's numbers and public results of other methods too."""
    columns: tuple[str, ...] = ()
    """Columns of the results to draw as curves too, such as value_bias value_bias_std; by default
    those of the suite."""
    title: str = ""
    """Heading of the page; by default the names of the suites."""


@dataclass(frozen=True)
class PlotArgs:
    """Draw learning curves with intervals from run folders; for mazes also exploration.png."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs; each is a line per varied setting, each task a panel."""
    out: Path = Path("curves.png")
    """The figure to write; its ending says the format: .png or .pdf."""


def report(args: ReportArgs) -> list[Path]:
    """Write a report and say where it is."""
    if args.at is not None and args.at <= 0:
        raise ResultError(f"--at is {args.at}; give an env step, such as 500000")
    if args.out.exists() and not args.out.is_dir():
        raise ResultError(f"--out {args.out} is a file; give a folder")
    entries, notes = read(args.results)
    known = column_names(entries)
    if unknown := [column for column in args.columns if column not in known]:
        raise ResultError(f"no column {unknown[0]!r} to draw; there are: {', '.join(known)}")
    columns = list(dict.fromkeys(args.columns)) or [x for x in suite_columns(entries) if x in known]
    data = summarise(entries, notes, at=args.at, anchors=args.anchors, columns=columns)
    written = write(data, args.out, args.title or _title(entries))
    for note in data["notes"]:
        print(f"note: {note}")
    scored = {task["column"] for task in data["tasks"]}
    further = [column for column in known if column not in (*COLUMNS, *scored)]
    if further and not columns:
        print(f"not drawn, but could be: --columns {' '.join(further)}")
    print(f"report in {args.out}: open {args.out / 'index.html'}")
    return written


def write(data: Numbers, out: Path, title: str) -> list[Path]:
    """Write all files of a report into a folder."""
    from ace.bench import figures

    out.mkdir(parents=True, exist_ok=True)
    _remove_columns(out)
    texts = {"index.html": page(data, title), "summary.json": _summary(data, title)}
    for name, found in tables.grids(data).items():
        texts[f"{name}.md"] = tables.markdown(found)
        texts[f"{name}.tex"] = tables.latex(found)
    texts |= tables.csv_files(data)
    for name, text in texts.items():
        write_text(out / name, text)
    return [out / name for name in texts] + figures.write(data, out)


def _remove_columns(out: Path) -> None:
    """Remove what an earlier report drew of columns: this one may draw others, or none."""
    from ace.bench import figures

    path = out / "columns.csv"
    if not path.exists():
        return
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        columns = {row.get("column") or "" for row in csv.DictReader(file)}
    for column in columns:
        for name in figures.column_figures(column).values():
            for ending in (".png", ".pdf"):
                (out / f"{name}{ending}").unlink(missing_ok=True)
    path.unlink()


def _summary(data: Numbers, title: str) -> str:
    """The numbers without the curves of single tasks, which are in curves.csv and columns.csv."""
    kept = {key: value for key, value in data.items() if key not in ("curves", "columns")}
    return json.dumps(finite({"title": title, **kept}), indent=1, allow_nan=False) + "\n"


def _title(entries: Sequence[Entry]) -> str:
    suites = dict.fromkeys(Path(entry.source).parent.name for entry in entries)
    return "Results: " + ", ".join(suites)


def plot(args: PlotArgs) -> Path:
    """Draw the evaluations of runs and say where the figure is."""
    from ace.bench import figures
    from ace.tools import exploration

    if not args.runs:
        raise ResultError("name at least one run folder, such as runs/cheetah-run-default")
    for run in args.runs:
        if not (run / "eval.csv").is_file():
            raise ResultError(f"{run} is no run folder: it has no eval.csv")
    if args.out.suffix not in (".png", ".pdf"):
        raise ResultError(f"--out is {args.out}; its name must end in .png or .pdf")
    entries, notes = read(args.runs)
    figures.learning_curves(entries, args.out)
    for note in notes:
        print(f"note: {note}")
    print(f"curves in {args.out}")
    mazes = [args.out.with_name(f"exploration{ending}") for ending in (".png", ".pdf")]
    if exploration.draw(args.runs, mazes):
        print(f"exploration of the mazes in {mazes[0]} and {mazes[1]}")
    return args.out
