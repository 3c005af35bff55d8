"""Where the examples lie, and how they are imported and forgotten again."""

import importlib
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@contextmanager
def imported(name: str, table: MutableMapping[str, Any], entry: str) -> Iterator[ModuleType]:
    """An example, imported by a user who stands in its folder; afterwards what it has registered in
    `table` is gone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        module = importlib.import_module(name)
        importlib.reload(module)  # registers it, also where another test has imported it before
        yield module
        del table[entry]
