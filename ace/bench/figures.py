"""The figures of a report as PNG and PDF, from the same numbers as its tables."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ace.bench.scores import SCORINGS, Entry
from ace.bench.summary import STATISTICS
from ace.settings.words import counted
from ace.tools import plots

Numbers = Mapping[str, Any]
STYLE: dict[Any, Any] = plots.STYLE | {
    "text.parse_math": False,  # a task name with a dollar sign is not a formula
    "pdf.fonttype": 42,
}
COLUMNS = 3  # panels in a row


def write(data: Numbers, out: Path) -> list[Path]:
    """Draw everything that has numbers; both ways of scoring where they differ."""
    import matplotlib

    made: dict[str, Callable[[], Any]] = {}
    for scoring in SCORINGS:
        end = "" if scoring == "last" else "-last3"
        made[f"aggregates{end}"] = lambda s=scoring: _aggregates(data, s)
        made[f"profiles{end}"] = lambda s=scoring: _profiles(data, s)
        made[f"improvement{end}"] = lambda s=scoring: _improvement(data, s)
        made[f"efficiency{end}"] = lambda s=scoring: _overall(data, s, "env_step")
        made[f"wall-clock{end}"] = lambda s=scoring: _overall(data, s, "wall")
        made[f"curves{end}"] = lambda s=scoring: _curves(data, s)
    for column in data["columns"]:
        for scoring, name in column_figures(column).items():
            made[name] = lambda c=column, s=scoring: _column(data, c, s)
    written = []
    with matplotlib.rc_context(STYLE):
        for name, draw in made.items():
            paths = [out / f"{name}.png", out / f"{name}.pdf"]
            if (figure := draw()) is None:
                # An older report's figure would show other numbers than the new tables.
                for path in paths:
                    path.unlink(missing_ok=True)
                continue
            for path in paths:
                _save(figure, path)
                figure.set_layout_engine("none")  # keep the places that the first drawing found
            written += paths
    return written


def column_figures(column: str) -> dict[str, str]:
    """The file names, without their endings, of a column's figures by scoring."""
    name = f"curves-{quote(column, safe='')}"
    return {scoring: name if scoring == "last" else f"{name}-{scoring}" for scoring in SCORINGS}


def learning_curves(entries: Sequence[Entry], out: Path) -> None:
    """Draw runs over each other: mean over seeds and 95 % interval, one panel per task."""
    import matplotlib

    from ace.bench.curves import task_curves
    from ace.bench.scores import Table, Task

    names = list(dict.fromkeys(task for entry in entries for task in entry.tasks))
    tasks = [Task(name, None, "return", None) for name in names]
    table = Table(list(entries), tasks, {entry.name: {} for entry in entries}, 1000.0, 2000)
    data = {
        "methods": [{"name": e.name, "kind": "ours", "shown": True} for e in entries],
        "tasks": [task._asdict() for task in tasks],
        "curves": {entry.name: task_curves(table, entry) for entry in entries},
    }
    with matplotlib.rc_context(STYLE):
        out.parent.mkdir(parents=True, exist_ok=True)
        _save(_curves(data, "last"), out)


def _styles(data: Numbers) -> dict[str, dict[str, Any]]:
    """How each shown method is drawn; colours are given as in the page."""
    found, counts = {}, {"ours": 0, "public": 0, "paper": 0}
    for method in data["methods"]:
        index = counts[method["kind"]]
        counts[method["kind"]] += 1
        if not method["shown"]:
            continue
        if method["kind"] == "ours":
            dash = "-" if index < len(plots.COLOURS) else "--"
            colour = plots.COLOURS[index % len(plots.COLOURS)]
            found[method["name"]] = {"color": colour, "linewidth": 2, "ls": dash}
        elif method["kind"] == "public":
            colour = plots.SOFT[index % len(plots.SOFT)]
            found[method["name"]] = {"color": colour, "linewidth": 1.3, "ls": "--"}
        else:
            dots = {"color": "black", "linewidth": 1.2, "ls": ":", "marker": "o", "markersize": 3}
            found[method["name"]] = dots
    return found


def _panels(count: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """A figure with room for a legend below, and its panels."""
    from matplotlib.figure import Figure

    columns = min(count, COLUMNS)
    lines = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * lines + 0.4), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for unused in panels[count:]:
        unused.set_visible(False)
    return figure, panels[:count]


def _legend(figure: Any, styles: Mapping[str, dict[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=name, **style) for name, style in styles.items()]
    # About one name per two inches fits; a legend that is too wide would shrink the panels.
    longest = max((len(name) for name in styles), default=1)
    columns = max(1, int(figure.get_figwidth() / (0.5 + 0.075 * longest)))
    lines = -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + 0.17 * lines)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8)


def _curves(data: Numbers, scoring: str) -> Any:
    styles, tasks = _styles(data), data["tasks"]
    figure, panels = _panels(len(tasks), 3.6, 2.7)
    used = {}
    for axis, task in zip(panels, tasks, strict=True):
        axis.set_title(task["name"], loc="left", fontweight="bold")
        found = {n: data["curves"].get(n, {}).get(task["name"], {}).get(scoring) for n in styles}
        lines = {name: line for name, line in found.items() if line}
        right = max((x["env_step"][-1] for x in lines.values() if "seeds" in x), default=None)
        for name, line in lines.items():
            used[name] = styles[name]
            shown = line if "seeds" in line else {**line, "low": None}
            _line(axis, _cropped(shown, "env_step", right), "env_step", styles[name])
        _limits(axis, right)
        if counts := sorted({len(line["seeds"]) for line in lines.values() if "seeds" in line}):
            least = f"{counts[0]} to " if len(counts) > 1 else ""
            plots.say_seeds(axis, least + counted(counts[-1], "seed"))
        axis.set_xlabel("env steps")
        axis.set_ylabel(task["column"])
    _legend(figure, used)
    return figure


def _column(data: Numbers, column: str, scoring: str) -> Any:
    """The curves of a column, on the tasks that have one."""
    found = data["columns"][column]
    every = found["curves"].values()
    tasks = [
        task
        for task in found["tasks"]
        if any(scoring in by_task.get(task["name"], {}) for by_task in every)
    ]
    return _curves({**data, **found, "tasks": tasks}, scoring) if tasks else None


def _overall(data: Numbers, scoring: str, key: str) -> Any:
    """IQM over all tasks as a function of env steps or of wall-clock."""
    found = {}
    for name, style in _styles(data).items():
        line = data["aggregate_curves"].get(name, {}).get(scoring)
        if line and line.get(key):
            found[name] = (line, style)
    if not found:
        return None
    figure, (axis,) = _panels(1, 5.4, 3.4)
    labels = {}
    right = max((line[key][-1] for line, _ in found.values() if "low" in line), default=None)
    for name, (line, style) in found.items():
        _line(axis, _cropped(line, key, right), key, style)
        share = "" if line["tasks"] == line["of"] else f" ({line['tasks']} of {line['of']} tasks)"
        labels[name + share] = style
    _limits(axis, right, seconds=key == "wall")
    axis.set_xlabel("env steps" if key == "env_step" else "wall-clock of the program")
    axis.set_ylabel("IQM")
    _legend(figure, labels)
    return figure


def _profiles(data: Numbers, scoring: str) -> Any:
    found = {
        name: (data["profiles"][name][scoring], style)
        for name, style in _styles(data).items()
        if scoring in data["profiles"].get(name, {})
    }
    if not found:
        return None
    figure, (axis,) = _panels(1, 5.4, 3.4)
    for line, style in found.values():
        _line(axis, {"x": data["profiles"]["scores"], **line}, "x", style)
    axis.set_xlim(0, data["unit"])
    axis.set_ylim(0, 1.02)
    axis.set_xlabel("score")
    axis.set_ylabel("fraction of runs above")
    _legend(figure, {name: style for name, (_, style) in found.items()})
    return figure


def _aggregates(data: Numbers, scoring: str) -> Any:
    """A panel per statistic, a row per method."""
    from matplotlib.figure import Figure

    rows = {}
    for name, style in _styles(data).items():
        if found := data["aggregates"].get(name, {}).get(scoring):
            of = data["aggregates"][name]["of"]
            share = "" if found["tasks"] == of else f" ({found['tasks']} of {of} tasks)"
            rows[name + share] = (found, style["color"], not share)
    if not rows:
        return None
    width = _beside_names(rows, 7.5, least=10.5)
    figure = Figure(figsize=(width, 0.8 + 0.3 * len(rows)), layout="constrained")
    panels = figure.subplots(1, len(STATISTICS), sharey=True)
    for axis, (key, title) in zip(panels, STATISTICS.items(), strict=True):
        axis.set_title(title, loc="left", fontweight="bold")
        for place, (found, colour, whole) in enumerate(rows.values()):
            if mark := found.get(key):
                _mark(axis, mark, place, colour, whole)
        _rows(axis, list(rows))
        axis.locator_params(axis="x", nbins=4)
    return figure


def _improvement(data: Numbers, scoring: str) -> Any:
    """A row per pair of methods: how probably a run of the first beats one of the second."""
    from matplotlib.figure import Figure

    styles = _styles(data)
    pairs = [pair for pair in data["improvement"][scoring] if pair["y"] in styles]
    if not pairs:
        return None
    names = [f"{pair['x']} > {pair['y']}" for pair in pairs]
    width = _beside_names(names, 3.0, least=5.4)
    figure = Figure(figsize=(width, 0.9 + 0.3 * len(pairs)), layout="constrained")
    axis = figure.subplots()
    axis.axvline(0.5, color="#999999", linewidth=1)
    for place, pair in enumerate(pairs):
        _mark(axis, pair, place, styles[pair["x"]]["color"])
    _rows(axis, names)
    axis.set_xlim(-0.02, 1.02)
    axis.set_xlabel("probability of improvement")
    return figure


def _beside_names(names: Iterable[str], panels: float, least: float) -> float:
    """The width in inches of a figure whose rows have names beside panels of some width."""
    return max(least, panels + 0.075 * max(map(len, names)))


def _rows(axis: Any, names: Sequence[str]) -> None:
    """A named row for each mark, the first on top."""
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)


def _mark(axis: Any, found: Numbers, place: int, colour: str, filled: bool = True) -> None:
    """A value with its interval, in a row."""
    if found["low"] is not None:
        # Other caps would lengthen the line, and so the interval.
        bar: Any = {"alpha": 0.4, "linewidth": 6, "solid_capstyle": "butt"}
        axis.plot([found["low"], found["high"]], [place] * 2, color=colour, **bar)
    inside = colour if filled else "white"
    axis.plot(found["value"], place, "o", color=colour, markersize=5, mfc=inside)


def _cropped(line: Numbers, key: str, right: float | None) -> Numbers:
    """A line up to where ours end, so that the height of the panel suits what is seen."""
    keep = sum(1 for x in line[key] if right is None or x <= right)
    return {k: line[k][:keep] if line.get(k) else None for k in (key, "value", "low", "high")}


def _line(axis: Any, line: Numbers, key: str, style: dict[str, Any]) -> None:
    axis.plot(line[key], line["value"], **style)
    if line.get("low"):
        band = {"color": style["color"], "alpha": 0.15, "linewidth": 0}
        axis.fill_between(line[key], line["low"], line["high"], **band)


def _limits(axis: Any, right: float | None, seconds: bool = False) -> None:
    """Start at zero where the data allow it, and end where our own curves do."""
    axis.set_xlim(0, right or None)
    if axis.dataLim.ymin >= 0:
        axis.set_ylim(bottom=0)
    axis.locator_params(axis="x", nbins=5)
    text = _time if seconds else plots.steps_text
    axis.xaxis.set_major_formatter(lambda value, _: text(value))


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.3g} h" if seconds >= 7200 else f"{seconds / 60:.3g} min"


def _save(figure: Any, path: Path) -> None:
    """Write the whole file or none. Without dates, so that equal numbers make equal files."""
    content = io.BytesIO()
    kind = path.suffix.removeprefix(".")
    nothing = {"Software": None} if kind == "png" else {"CreationDate": None}
    figure.savefig(content, format=kind, dpi=150, metadata=nothing)
    path.write_bytes(content.getvalue())
