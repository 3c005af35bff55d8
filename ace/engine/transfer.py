"""Arrays that pass between host and device in every step.

They lie in memory of the host that the device reads and writes by itself: a copy out of or into any
other memory goes through threads of the runtime, and takes longer than many a compiled call.
"""

import ctypes
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding


def memory(kind: str) -> SingleDeviceSharding:
    """Where an array lies: "device", or "pinned_host" for the memory that both sides know."""
    return SingleDeviceSharding(jax.devices()[0], memory_kind=kind)


class Inbox:
    """A place on the device for an array that the host writes again and again.

    Always the same place: graphs of kernels need not be changed before they are launched.
    """

    def __init__(self, like: np.ndarray):
        self._sent = jax.device_put(np.zeros_like(like), memory("pinned_host"))
        jax.block_until_ready(self._sent)  # its zeros must not come after what is written below
        # JAX has no arrays that change, but the device reads this one anew with every copy.
        size = math.prod(like.shape) * like.dtype.itemsize
        there = (ctypes.c_byte * size).from_address(self._sent.unsafe_buffer_pointer())
        self._numbers = np.ctypeslib.as_array(there).view(like.dtype).reshape(like.shape)
        self._place = jnp.zeros_like(like)
        to = memory("device")
        self._copy = jax.jit(
            lambda place, sent: jax.device_put(sent, to), donate_argnums=0, keep_unused=True
        )

    def put(self, new: np.ndarray) -> jax.Array:
        """The array on the device, in the place of the one before."""
        jax.block_until_ready(self._place)  # the last copy is made: what was sent may change
        self._numbers[...] = new
        self._place = self._copy(self._place, self._sent)
        return self._place
