"""`ace merge`: put the results of a suite from several machines together."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from ace.bench.results import (
    ResultError,
    add_parts,
    check_suite,
    lost_seeds,
    read_parts,
    read_programs,
)
from ace.settings.words import counted


@dataclass(frozen=True)
class MergeArgs:
    """Add results of a suite from other folders. The same seed with other numbers is an error, and
    then nothing is written."""

    into: tyro.conf.Positional[Path]
    """The suite's folder that gets the results, such as results/smoke; it may be new."""
    sources: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of the same suite, such as other-machine/results/smoke."""


def merge(args: MergeArgs) -> None:
    """Add all results of the folders, or none, and say what was added."""
    if not args.sources:
        raise ResultError("name the folders to take results from: `ace merge INTO FROM ...`")
    parts = []
    for folder in args.sources:
        check_suite(folder)
        parts += read_parts(folder)
    add_parts(args.into, parts)
    curves = sum(len(table) for part in parts for table in part.tables.values())
    programs = sum(part.program is not None for part in parts)
    for note in lost_seeds(args.into, read_programs(args.into)):
        print(f"note: {note}")
    found = f"{counted(programs, 'program')} and {counted(curves, 'curve')}"
    print(f"{found} in {args.into}")
