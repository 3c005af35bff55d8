"""Many small arrays packed into one: dispatching a compiled call costs the host some microseconds
for every array that goes in or out, and a learner alone has more than a hundred."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ace.settings.config import ConfigError

# Most elements of a leaf that is packed, over all lanes and per lane. Larger leaves stay separate:
# to concatenate and split them would cost the device more than it saves the host.
SMALL = 2**19, 2**15
TYPES = [
    np.dtype(kind)
    for kind in (
        *(np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32),
        *(np.float16, jnp.bfloat16, np.float32),
    )
]


class Packed(NamedTuple):
    """The leaves of a tree; any leading axes are those of the tree's leaves."""

    small: Any  # uint32 [..., n]: the bits of all small leaves, concatenated; None without any
    large: tuple[Any, ...]


class Packing:
    """Converts trees of one structure to a `Packed` and back.

    Both directions work on traced arrays and, outside compiled functions, on NumPy arrays.
    """

    def __init__(self, like: Any, small: float):
        """`like` is a tree without leading axes, `small` the most elements of a leaf to pack."""
        named, self._structure = jax.tree_util.tree_flatten_with_path(like)
        self._shapes = [tuple(np.shape(x)) for _, x in named]
        self._types = [np.asarray(x).dtype if np.isscalar(x) else x.dtype for _, x in named]
        for (path, _), dtype in zip(named, self._types, strict=True):
            if dtype not in TYPES:
                name = jax.tree_util.keystr(path, simple=True, separator=".")
                raise ConfigError(
                    f"array {name!r} of the agent is {dtype}; it must be bool, float32, float16, "
                    "bfloat16 or an integer of at most 32 bits"
                )
        self._sizes = [math.prod(shape) for shape in self._shapes]
        self._small = [size <= small for size in self._sizes]

    def pack(self, tree: Any) -> Packed:
        """The same leaves in fewer arrays."""
        small, large = [], []
        for x, shape, dtype, is_small in zip(
            self._structure.flatten_up_to(tree), self._shapes, self._types, self._small, strict=True
        ):
            before = x.shape[: x.ndim - len(shape)]
            if (x.shape, x.dtype) != ((*before, *shape), dtype):
                raise TypeError(f"a leaf is {x.dtype}{x.shape}, and should be {dtype}{shape}")
            if is_small:
                small.append(_bits(x).reshape((*before, -1)))
            else:
                large.append(x)
        if not small:
            return Packed(None, tuple(large))
        join = np.concatenate if isinstance(small[0], np.ndarray) else jnp.concatenate
        return Packed(join(small, -1), tuple(large))

    def unpack(self, packed: Packed) -> Any:
        """The tree that was packed."""
        bits: Any = packed.small  # None without small leaves
        numbers = sum(n for n, small in zip(self._sizes, self._small, strict=True) if small)
        found = 0 if packed.small is None else packed.small.shape[-1]
        if found != numbers or len(packed.large) != self._small.count(False):
            raise TypeError(
                f"{found} small numbers and {len(packed.large)} large arrays, and there should be "
                f"{numbers} and {self._small.count(False)}: packed by another program"
            )
        leaves, at, large = [], 0, iter(packed.large)
        for shape, dtype, size, is_small in zip(
            self._shapes, self._types, self._sizes, self._small, strict=True
        ):
            if not is_small:
                leaves.append(next(large))
                continue
            part = bits[..., at : at + size]
            leaves.append(_value(part.reshape((*part.shape[:-1], *shape)), dtype))
            at += size
        return jax.tree.unflatten(self._structure, leaves)


def _bits(x: Any) -> Any:
    """The bits of every number as a uint32."""
    if x.dtype.kind == "b":
        return x.astype(np.uint32)
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    if isinstance(x, np.ndarray):
        return np.asarray(x, order="C").view(unsigned).astype(np.uint32, copy=False)
    return jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)


def _value(bits: Any, dtype: np.dtype) -> Any:
    if dtype.kind == "b":
        return bits != 0
    bits = bits.astype(np.dtype(f"u{dtype.itemsize}"))
    if isinstance(bits, np.ndarray):
        return np.asarray(bits, order="C").view(dtype)
    return jax.lax.bitcast_convert_type(bits, dtype)
