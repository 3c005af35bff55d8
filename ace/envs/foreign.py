"""Calls functions that are written for NumPy with arrays of another library that has NumPy's names,
such as jax.numpy. NumPy lets an argument of a foreign type compute for it, and this one hands on to
the function of the same name. What needs a real NumPy array fails: writing into single entries, or
a branch on a value."""

from collections.abc import Callable
from typing import Any

import numpy as np


def call(xp: Any, function: Callable, *arrays: Any) -> Any:
    """Call a function of NumPy arrays with arrays of the library xp; gives one of those."""
    return xp.asarray(_plain(function(*(Foreign(xp, x) for x in arrays))))


class Foreign(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of the library xp that NumPy's functions and operators take for one of theirs."""

    def __init__(self, xp: Any, value: Any) -> None:
        self.xp, self.value = xp, value

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__":
            raise TypeError(f"np.{ufunc.__name__}.{method} is not known to {self.xp.__name__}")
        out = options.pop("out", None)
        found = self._wrap(getattr(self.xp, ufunc.__name__)(*_plain(inputs), **options))
        if out is None:
            return found
        (target,) = out  # x += y: the whole array is replaced
        target.value = found.value
        return target

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        home = self.xp.linalg if function.__module__ == "numpy.linalg" else self.xp
        known = getattr(home, function.__name__, None)
        if known is None:
            raise TypeError(f"{home.__name__} has no {function.__name__}")
        return self._wrap(known(*_plain(args), **_plain(options)))

    def __array__(self, *args: Any, **options: Any) -> Any:
        raise TypeError(f"this needs a NumPy array and was given one of {self.xp.__name__}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self.value, name)
        if not callable(found):
            return self._wrap(found)
        return lambda *args, **options: self._wrap(found(*_plain(args), **_plain(options)))

    def astype(self, dtype: Any) -> "Foreign":
        """The array in another type; float64 is float32, since devices have no other."""
        wide = np.issubdtype(dtype, np.floating)
        return Foreign(self.xp, self.value.astype(np.float32 if wide else dtype))

    def __getitem__(self, index: Any) -> "Foreign":
        return Foreign(self.xp, self.value[_plain(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(f"single entries of an array of {self.xp.__name__} cannot be written")

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    # While a program is traced, the library refuses to give a single value.
    def __bool__(self) -> bool:
        return bool(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def _wrap(self, found: Any) -> Any:
        return Foreign(self.xp, found) if hasattr(found, "dtype") else found


def _plain(value: Any) -> Any:
    """The value with every `Foreign` in it replaced by its array."""
    if isinstance(value, Foreign):
        return value.value
    if isinstance(value, tuple | list):
        return type(value)(_plain(x) for x in value)
    if isinstance(value, dict):
        return {name: _plain(x) for name, x in value.items()}
    return value
