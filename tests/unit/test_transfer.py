"""Arrays that the host writes again and again, against what was sent."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ace.engine.transfer import Inbox, memory


def test_every_array_arrives_though_the_place_is_the_same() -> None:
    rng = np.random.default_rng(0)
    sent = rng.integers(0, 2**32, (50, 2, 5), dtype=np.uint32)
    inbox = Inbox(sent[0])
    used = jax.jit(lambda x: x + np.uint32(1))
    got = [used(inbox.put(x)) for x in sent]
    for x, y in zip(sent, got, strict=True):
        np.testing.assert_array_equal(y, x + np.uint32(1))


def test_nothing_is_written_before_the_last_copy_is_made(monkeypatch) -> None:
    """On a CPU a copy is made at once, so only the order can be seen."""
    inbox, order = Inbox(np.zeros(2)), []
    place: Any = SimpleNamespace(block_until_ready=lambda: order.append("waited"))
    monkeypatch.setattr(inbox, "_place", place)
    monkeypatch.setattr(inbox, "_numbers", Written(order))
    monkeypatch.setattr(inbox, "_copy", lambda place, sent: order.append("copied"))
    inbox.put(np.ones(2))
    assert order == ["waited", "written", "copied"]


class Written:
    """Says when it is written to."""

    def __init__(self, order: list[str]):
        self.order = order

    def __setitem__(self, where: Any, new: Any) -> None:
        self.order.append("written")


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
