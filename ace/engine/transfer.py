"""Arrays that are copied between host and device in every step.

They are in pinned host memory, which the device reads and writes directly: a copy from or to
pageable memory goes through threads of the runtime and takes longer than many a compiled call.
"""

import ctypes
import math

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding


def memory(kind: str) -> SingleDeviceSharding:
    """Where an array is placed: "device", or "pinned_host" for host memory that it can access."""
    return SingleDeviceSharding(jax.devices()[0], memory_kind=kind)


class Inbox:
    """A device buffer that the host overwrites in every step.

    Its address never changes, so captured CUDA graphs need no update before they are launched.
    """

    def __init__(self, like: np.ndarray):
        self._sent = jax.device_put(np.zeros_like(like), memory("pinned_host"))
        jax.block_until_ready(self._sent)  # its zeros must not arrive after the writes below
        # JAX arrays are immutable, but each copy reads this pinned buffer again: write into it.
        size = math.prod(like.shape) * like.dtype.itemsize
        there = (ctypes.c_byte * size).from_address(self._sent.unsafe_buffer_pointer())
        self._numbers = np.ctypeslib.as_array(there).view(like.dtype).reshape(like.shape)
        self._place = jax.device_put(np.zeros_like(like))
        to = memory("device")
        self._copy = jax.jit(
            lambda place, sent: jax.device_put(sent, to), donate_argnums=0, keep_unused=True
        )

    def put(self, new: np.ndarray) -> jax.Array:
        """The array on the device, in the buffer of the previous one."""
        jax.block_until_ready(self._place)  # the last copy is done: its source may change
        self._numbers[...] = new
        self._place = self._copy(self._place, self._sent)
        return self._place
