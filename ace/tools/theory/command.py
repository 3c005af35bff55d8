"""`ace theory`: check every statement on random and on searched problems, print a table, write
theory.csv (what was checked, by horizon, discount and kind of search), dependence.csv and its
figure."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ace.run.flags import TheoryArgs
from ace.settings.config import ConfigError
from ace.tools.theory import figures, search
from ace.tools.theory.statements import STATEMENTS, Statement

HEAD = ("statement", "gamma", "MDPs", "violated", "ratio", "model", "value", "novelty")
WIDTHS = (-28, -6, 8, 9, 7, 6, 6, 8)  # negative: aligned left
FRACTIONS = {1 / 3: "1/3", 1 / 2: "1/2"}


class Row(NamedTuple):
    """A line of theory.csv."""

    statement: str
    horizon: int
    discount: float
    search: str  # random, or the kinds of error that hill climbing used
    should_hold: bool
    checked: int
    violations: int
    largest_ratio: float  # loss / bound


def theory(args: TheoryArgs) -> bool:
    """Run the command; returns whether every statement holds where it should."""
    if args.mdps < 1:
        raise ConfigError(f"--mdps is {args.mdps}; it must be at least 1")
    if args.seed < 0:
        raise ConfigError(f"--seed is {args.seed}; it must not be negative")
    if args.out.is_file():
        raise ConfigError(f"--out is {args.out}, which is a file; name a folder")
    args.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    print(line(HEAD))
    for index, statement in enumerate(STATEMENTS):
        found = list(check(statement, args.mdps, (args.seed, index)))
        rows += found
        for holds in (False, True):
            if mine := [row for row in found if row.should_hold == holds]:
                print(summary(statement, mine), flush=True)
    print(
        "ratio: largest loss / bound found, then with one kind of error alone. A statement may be\n"
        "violated only where it should fail, which is marked by *."
    )
    points = figures.dependence(args.seed)
    write_csv(args.out / "theory.csv", Row._fields, rows)
    write_csv(args.out / "dependence.csv", figures.Point._fields, points)
    figures.write(points, args.out)
    wrong = sorted({row.statement for row in rows if row.should_hold and row.violations})
    verdict = f"violated: {', '.join(wrong)}" if wrong else "every statement holds where it should"
    print(f"{verdict}; tables and figure in {args.out}")
    return not wrong


def check(statement: Statement, mdps: int, seed: Sequence[int]) -> Iterator[Row]:
    """Everything that was found about a statement; the random problems are spread over its
    horizons."""
    each = -(-mdps // len(statement.horizons))
    for horizon in statement.horizons:
        found = search.check_random(statement, horizon, (*seed, horizon, 0), each)
        found |= search.check_climbing(statement, horizon, (*seed, horizon, 1))
        for (discount, kind), count in found.items():
            yield Row(statement.name, horizon, discount, kind, statement.holds(discount), *count)


def summary(statement: Statement, rows: Sequence[Row]) -> str:
    """A line of the table, from all rows of a statement that should hold, or from all others."""
    holds = rows[0].should_hold
    limit = FRACTIONS.get(statement.holds_from)
    kinds = [[row.largest_ratio for row in rows if row.search == kind] for kind in HEAD[5:]]
    return line(
        (
            statement.name,
            f"{'>=' if holds else '<'} {limit}" if limit else "all",
            f"{sum(row.checked for row in rows):,}",
            f"{sum(row.violations for row in rows):,}{'' if holds else '*'}",
            _ratio([row.largest_ratio for row in rows]),
            *map(_ratio, kinds),
        )
    )


def line(words: Iterable[str]) -> str:
    """Words in columns."""
    made = [
        word.ljust(-width) if width < 0 else word.rjust(width)
        for word, width in zip(words, WIDTHS, strict=True)
    ]
    return "".join(made)


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows with six digits; equal numbers make equal files."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([f"{x:.6g}" if isinstance(x, float) else x for x in row])
    path.write_text(text.getvalue())


def _ratio(found: Sequence[float]) -> str:
    """The largest ratio, cut off and not rounded: 1.000 means that a bound is reached."""
    if not found:
        return "-"
    largest = max(found)
    return ">1000" if largest > 1000 else f"{int(largest * 1000 + 1e-6) / 1000:.3f}"
