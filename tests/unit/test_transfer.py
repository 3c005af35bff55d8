"""Arrays that the host writes again and again, against what was sent."""

import jax
import jax.numpy as jnp
import numpy as np

from ace.transfer import Inbox, memory


def test_every_array_arrives_though_the_place_is_the_same() -> None:
    rng = np.random.default_rng(0)
    sent = rng.integers(0, 2**32, (300, 2, 5), dtype=np.uint32)
    inbox = Inbox(sent[0])
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 500, lambda i, y: jnp.roll(y, 1, -1), x))
    # Used after the next ones were sent: a copy that was read too late would show.
    used = [slow(inbox.put(x)) for x in sent]
    for x, got in zip(sent, used, strict=True):
        np.testing.assert_array_equal(got, x)  # 500 turns of five are none


def test_what_was_put_may_change_at_once() -> None:
    x = np.ones((3, 2), np.float32)
    inbox = Inbox(x)
    there = inbox.put(x)
    x[:] = 7.0
    np.testing.assert_array_equal(there, np.ones((3, 2)))


def test_two_inboxes_share_nothing() -> None:
    one, other = Inbox(np.zeros(4, np.int32)), Inbox(np.zeros(4, np.int32))
    a, b = one.put(np.arange(4, dtype=np.int32)), other.put(np.full(4, 9, np.int32))
    np.testing.assert_array_equal(a, np.arange(4))
    np.testing.assert_array_equal(b, np.full(4, 9))


def test_results_for_the_host_lie_where_it_reads_them() -> None:
    made = jax.jit(lambda x: (x + 1, x * 2), out_shardings=(memory("pinned_host"), None))
    host, device = made(jnp.arange(3.0))
    assert host.sharding.memory_kind == "pinned_host" != device.sharding.memory_kind
    np.testing.assert_array_equal(np.asarray(host), [1.0, 2.0, 3.0])
