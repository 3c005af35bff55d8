"""The only interface through which the engine changes the method.

The method is written in plain functions. Those marked `replaceable` may have a faster form of the
same signature; the code that traces a program installs it with `replaced`, and the method itself
never asks what device it runs on.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
Table = Mapping[str, Callable[..., Any]]
# Thread-local: programs are traced in several threads at the same time.
_TABLE: ContextVar[Table | None] = ContextVar("replaced", default=None)


class Replaceable(Protocol[P, R]):
    """A function that knows its plain form."""

    plain: Callable
    name: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


def replaceable(plain: Callable[P, R]) -> Replaceable[P, R]:
    """Mark a function as one that may be replaced while a program is traced."""
    name = f"{plain.__module__.rpartition('.')[2]}.{plain.__name__}"

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (_TABLE.get() or {}).get(name, plain)(*args, **kwargs)

    found: Any = call
    found.plain, found.name = plain, name
    return found


@contextmanager
def replaced(table: Table) -> Iterator[None]:
    """Call the functions of a table, with names such as `nets.linear`, instead of plain ones."""
    before = _TABLE.set(table)
    try:
        yield
    finally:
        _TABLE.reset(before)
