"""The tables of a report as Markdown, LaTeX and CSV. Markdown and LaTeX are for reading and have
the methods that a reader would compare; the CSV files have every number."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ace.bench.scores import RETURN_SCALE, RETURNS, SCORINGS
from ace.bench.summary import STATISTICS

Numbers = Mapping[str, Any]
NONE = "–"
LATEX = {
    "\\": r"\textbackslash{}",
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    NONE: "--",
}


class Grid(NamedTuple):
    """A table of text: what it shows, its header, its rows."""

    caption: str
    header: list[str]
    rows: list[list[str]]


def grids(data: Numbers) -> dict[str, list[Grid]]:
    """The tables to read, by file name: one per way of scoring."""
    return {
        "aggregates": [aggregates(data, scoring) for scoring in SCORINGS],
        "tasks": [tasks(data, scoring) for scoring in SCORINGS],
        "improvement": [improvement(data, scoring) for scoring in SCORINGS],
        "efficiency": [efficiency(data, scoring) for scoring in SCORINGS],
        "programs": [programs(data)],
    }


def aggregates(data: Numbers, scoring: str) -> Grid:
    """Statistics over all tasks, methods with every task first."""
    rows = []
    for method in data["methods"]:
        found = data["aggregates"].get(method["name"], {}).get(scoring)
        if found is None:
            continue
        share = f"{found['tasks']} of {data['aggregates'][method['name']]['of']}"
        cells = [interval(found.get(key), data["unit"]) for key in STATISTICS]
        order = (method["kind"] != "ours", found["tasks"] < _scored(data), -found["iqm"]["value"])
        rows.append((order, [method["name"], share, str(found["runs"]), *cells]))
    caption = (
        f"Aggregates at {steps_of(data)} env steps ({SCORINGS[scoring]}), with 95 % stratified "
        "bootstrap intervals. Rows with fewer tasks than the others are not comparable with them."
    )
    header = ["method", "tasks", "runs", *STATISTICS.values()]
    return Grid(caption, header, [row for _, row in sorted(rows, key=lambda row: row[0])])


def tasks(data: Numbers, scoring: str) -> Grid:
    """Mean over seeds per task, a column per method."""
    shown = [m["name"] for m in data["methods"] if m["shown"] and data["scores"].get(m["name"])]
    rows = []
    for task in data["tasks"]:
        step = task["env_step"]
        row = [task["name"], NONE if step is None else f"{step:,}"]
        for name in shown:
            score = data["scores"][name].get(task["name"])
            text = interval(score and score[scoring], unit_of(task))
            if score and score[scoring] and score["seeds"]:
                text += f", {len(score['seeds'])} seed{'s' * (len(score['seeds']) > 1)}"
                text += f" at {score['env_step']:,}" if score["env_step"] != step else ""
            row.append(text)
        rows.append(row)
    caption = f"Mean over seeds ({SCORINGS[scoring]}) with 95 % bootstrap intervals."
    return Grid(caption, ["task", "env step", *shown], rows)


def improvement(data: Numbers, scoring: str) -> Grid:
    """The probability of improvement of our methods."""
    shown = {m["name"] for m in data["methods"] if m["shown"]}
    rows = [
        [pair["x"], pair["y"], interval(pair, 1.0), str(pair["tasks"])]
        for pair in data["improvement"][scoring]
        if pair["y"] in shown
    ]
    caption = (
        f"Probability that a run of x scores higher than a run of y on the same task "
        f"({SCORINGS[scoring]}), with 95 % stratified bootstrap intervals."
    )
    return Grid(caption, ["x", "y", "P(x > y)", "tasks"], rows)


def efficiency(data: Numbers, scoring: str) -> Grid:
    """Env steps until a score is reached."""
    shown = [m["name"] for m in data["methods"] if m["shown"] and m["kind"] != "paper"]
    units = {task["name"]: unit_of(task) for task in data["tasks"]}
    rows = []
    for found in (row for row in data["efficiency"] if row["scoring"] == scoring):
        for index, part in enumerate(found["parts"]):
            row = [
                found["task"],
                f"{part:.0%} of {found['best']}: "
                + number(found["scores"][index], units[found["task"]]),
            ]
            for name in shown:
                reached = found["reached"].get(name)
                row.append(NONE if reached is None else _reached(reached[index]))
            rows.append(row)
    caption = (
        "Env steps (and wall-clock, where it is known) until the mean over seeds "
        f"({SCORINGS[scoring]}) first reaches parts of the best score of our methods."
    )
    return Grid(caption, ["task", "score", *shown], rows)


def programs(data: Numbers) -> Grid:
    """What made our numbers."""
    rows = []
    for program in data["programs"].values():
        seconds, rate = program["wall_clock_s"], program["lane_steps_per_s"]
        rows.append(
            [
                f"{program['suite']}: {program['id']}",
                program["command"] or NONE,
                program["commit"] or NONE,
                program["hardware"] or NONE,
                duration(seconds) if seconds else NONE,
                str(program["lanes"] or NONE),
                f"{rate:,.0f}" if rate else NONE,
            ]
        )
    header = ["program", "command", "commit", "hardware", "wall-clock", "lanes", "lane-steps/s"]
    return Grid("Programs that made our numbers.", header, rows)


def _reached(point: Numbers) -> str:
    if point["env_step"] is None:
        return "not reached"
    seconds = point["seconds"]
    return f"{point['env_step']:,}" + (f" ({duration(seconds)})" if seconds is not None else "")


def unit_of(task: Numbers) -> float:
    """The largest possible score of a task."""
    return RETURN_SCALE if task["column"] in RETURNS else 1.0


def _scored(data: Numbers) -> int:
    return sum(1 for task in data["tasks"] if task["scale"] and task["env_step"] is not None)


def steps_of(data: Numbers) -> str:
    """The env steps of the scores, in words."""
    steps = sorted({task["env_step"] for task in data["tasks"] if task["env_step"] is not None})
    return f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,} (by task)"


def interval(found: Numbers | None, unit: float) -> str:
    """A value with its interval; `unit` is its largest possible value."""
    if found is None:
        return NONE
    text = number(found["value"], unit)
    if found["low"] is None:
        return text
    return f"{text} ({number(found['low'], unit)}, {number(found['high'], unit)})"


def number(value: float, unit: float = 1000.0) -> str:
    """A number with the digits that its noise allows."""
    return f"{value:.2f}" if unit <= 1 else f"{value:.0f}" if abs(value) >= 10 else f"{value:.1f}"


def duration(seconds: float) -> str:
    """Seconds in words."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def markdown(found: Iterable[Grid]) -> str:
    """Tables in Markdown; names cannot break out of their cell."""

    def cell(text: str) -> str:
        text = re.sub(r"([\\`*_\[\]|#~])", r"\\\1", " ".join(text.split()))
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    parts = []
    for grid in found:
        lines = [f"{cell(grid.caption)}\n", "| " + " | ".join(map(cell, grid.header)) + " |"]
        lines.append("|" + "---|" * len(grid.header))
        lines += ["| " + " | ".join(map(cell, row)) + " |" for row in grid.rows]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def plain(grid: Grid) -> str:
    """A table for a terminal."""
    rows = [grid.header, *grid.rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(grid.header))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([grid.caption, "", *(line.rstrip() for line in lines), ""])


def latex(found: Iterable[Grid]) -> str:
    """Tables in LaTeX; they need the package booktabs."""

    def cell(text: str) -> str:
        return "".join(LATEX.get(char, char) for char in " ".join(text.split()))

    parts = []
    for grid in found:
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{cell(grid.caption)}}}"]
        lines += [rf"\begin{{tabular}}{{{'l' * len(grid.header)}}}", r"\toprule"]
        lines += [" & ".join(map(cell, grid.header)) + r" \\", r"\midrule"]
        lines += [" & ".join(map(cell, row)) + r" \\" for row in grid.rows]
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def csv_files(data: Numbers) -> dict[str, str]:
    """Every number of the report, one file per kind."""
    kinds = {method["name"]: method["kind"] for method in data["methods"]}
    curve = ("method", "kind", "task", "scoring", "env_step", "wall_clock_s", "mean", "low", "high")
    files = {
        "scores.csv": _csv(
            ("method", "kind", "task", "seed", "env_step", "column", *SCORINGS),
            _score_rows(data, kinds),
        ),
        "tasks.csv": _csv(
            ("method", "kind", "task", "scoring", "env_step", "seeds", "mean", "low", "high"),
            _task_rows(data, kinds),
        ),
        "aggregates.csv": _csv(
            ("method", "kind", "scoring", "statistic", "tasks", "of", "value", "low", "high"),
            _aggregate_rows(data, kinds),
        ),
        "improvement.csv": _csv(
            ("x", "y", "scoring", "tasks", "value", "low", "high"),
            (
                (p["x"], p["y"], scoring, p["tasks"], p["value"], p["low"], p["high"])
                for scoring, pairs in data["improvement"].items()
                for p in pairs
            ),
        ),
        "efficiency.csv": _csv(
            ("task", "scoring", "part", "score", "method", "env_step", "wall_clock_s"),
            (
                (row["task"], row["scoring"], part, row["scores"][i], name, *at[i].values())
                for row in data["efficiency"]
                for i, part in enumerate(row["parts"])
                for name, at in row["reached"].items()
            ),
        ),
        "curves.csv": _csv(curve, _curve_rows(data["curves"], kinds)),
    }
    if data["columns"]:
        rows = (
            (column, *row)
            for column, found in data["columns"].items()
            for row in _curve_rows(found["curves"], kinds)
        )
        files["columns.csv"] = _csv(("column", *curve), rows)
    return files


def _score_rows(data: Numbers, kinds: Numbers) -> Iterable[Sequence]:
    for name, scores in data["scores"].items():
        for task, score in scores.items():
            for index, seed in enumerate(score["seeds"]):
                both = [score[s]["runs"][index] if score[s] else None for s in SCORINGS]
                yield name, kinds[name], task, seed, score["env_step"], score["column"], *both


def _task_rows(data: Numbers, kinds: Numbers) -> Iterable[Sequence]:
    for name, scores in data["scores"].items():
        for task, score in scores.items():
            for scoring in SCORINGS:
                if mean := score[scoring]:
                    about = (score["env_step"], len(score["seeds"]) or None)
                    ends = (mean["value"], mean["low"], mean["high"])
                    yield name, kinds[name], task, scoring, *about, *ends


def _aggregate_rows(data: Numbers, kinds: Numbers) -> Iterable[Sequence]:
    for name, found in data["aggregates"].items():
        for scoring in SCORINGS:
            for key in STATISTICS:
                if mine := (found[scoring] or {}).get(key):
                    about = (found[scoring]["tasks"], found["of"])
                    yield name, kinds[name], scoring, key, *about, *list(mine.values())


def _curve_rows(curves: Numbers, kinds: Numbers) -> Iterable[Sequence]:
    for name, by_task in curves.items():
        for task, lines in by_task.items():
            for scoring, line in lines.items():
                empty = [None] * len(line["env_step"])
                columns = [line.get(key) or empty for key in ("wall", "value", "low", "high")]
                for row in zip(line["env_step"], *columns, strict=True):
                    yield name, kinds[name], task, scoring, *row


def _csv(header: Sequence[str], rows: Iterable[Sequence]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow([f"{x:.6g}" if isinstance(x, float) else x for x in row])
    return text.getvalue()
