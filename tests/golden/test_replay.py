"""Prioritised segment replay against brute force and against a plain list of episodes (3.1)."""

# pyright: reportArgumentType=false, reportCallIssue=false
# (NumPy arrays are as good as JAX's here.)

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ace import replay
from ace.method.types import Transition
from ace.settings.config import ReplayConfig

LEAVES = 5000  # three levels of the tree
set_leaves = jax.jit(replay.set_leaves)
draw_leaves = jax.jit(replay.draw_leaves)
set_priorities = jax.jit(replay.set_priorities)
totals = jax.jit(lambda tree: (replay.total(tree), replay.largest(tree)))


def filled(values: np.ndarray) -> replay.Tree:
    index = jnp.arange(len(values))
    return set_leaves(
        replay.build_tree(jnp.zeros(len(values))), index, jnp.asarray(values, jnp.float32)
    )


@settings(max_examples=15, deadline=None, database=None)
@given(st.integers(0, 2**31), st.integers(1, 40))
def test_tree_equals_brute_force_after_updates_with_duplicates(seed: int, spread: int) -> None:
    rng = np.random.default_rng(seed)
    plain, tree = np.zeros(LEAVES), replay.build_tree(jnp.zeros(LEAVES))
    for _ in range(6):
        # A narrow range of leaves makes duplicates and shared ancestors common.
        index = (rng.integers(0, LEAVES) + rng.integers(0, spread, 16)) % LEAVES
        value = np.where(rng.random(16) < 0.2, 0.0, rng.gamma(1.0, 5.0, 16)).astype(np.float32)
        tree = set_leaves(tree, jnp.asarray(index), jnp.asarray(value))
        for i in set(index):
            plain[i] = max(value[index == i])  # the larger of two values for one leaf
        total, largest = totals(tree)
        np.testing.assert_allclose(total, plain.sum(), rtol=1e-5)
        assert largest == plain.max().astype(np.float32)
    for level, size in zip(tree.sums, (1, 64, 64 * 64), strict=True):
        padded = np.pad(plain, (0, -LEAVES % size)).reshape(-1, size).sum(1)
        np.testing.assert_allclose(level[: len(padded)], padded, rtol=1e-5, atol=1e-6)
        assert not np.any(level[len(padded) :])


def test_draws_follow_the_leaves_and_never_take_an_empty_one() -> None:
    rng = np.random.default_rng(0)
    weights = rng.gamma(0.5, 1.0, 300)
    weights[rng.random(300) < 0.4] = 0.0
    weights[[0, 299]] = 0.0  # rounding must not fall off either end
    grid = (np.arange(6000) + 0.5) / 6000
    drawn = draw_leaves(filled(weights), jnp.asarray(grid, jnp.float32))
    counts = np.bincount(np.asarray(drawn), minlength=300)
    assert not np.any(counts[weights == 0])
    # An even grid puts as many points into an interval as it has room for, give or take one.
    assert np.abs(counts - 6000 * weights / weights.sum()).max() <= 1.5


def test_extreme_draws_stay_inside() -> None:
    weights = np.zeros(200)
    weights[[70, 71, 130]] = [1e-6, 3.0, 1e-6]
    ends = jnp.array([0.0, np.nextafter(np.float32(1), np.float32(0)), 0.5])
    assert set(np.asarray(draw_leaves(filled(weights), ends)).tolist()) <= {70, 71, 130}


class Journal:
    """A replay whose every number tells where it came from, beside plain lists of episodes."""

    def __init__(self, capacity: int, horizon: int):
        self.capacity, self.horizon = capacity, horizon
        self.episodes: list[list[bool]] = [[]]  # of each step, whether it terminated
        self.starts: list[int] = [0]  # of each episode, its first slot in an endless store
        self.ended = 0
        self.store = replay.init(capacity, jnp.array([0.0, 0.0]), 1, horizon)

    def step(self, done: bool, terminated: bool) -> None:
        episode, t = len(self.episodes) - 1, len(self.episodes[-1])
        self.episodes[-1].append(terminated)
        new = [episode + 1.0, 0.0] if done else [float(episode), t + 1.0]
        step = Transition(
            action=np.array([episode + t / 100], np.float32),
            reward=np.float32(1000 * episode + t),
            terminated=np.bool_(terminated),
            done=np.bool_(done),
            final_obs=np.array([episode, t + 1], np.float32),
            obs=np.array(new, np.float32),
        )
        self.store = add(self.store, step)
        if done:
            self.ended = len(self.episodes)
            self.starts.append(self.starts[-1] + t + 2)  # one more slot for the last observation
            self.episodes.append([])

    def eligible(self) -> set[tuple[int, int]]:
        """(episode, t) of every start: complete segments, and every step of an ended episode."""
        now = self.starts[-1] + len(self.episodes[-1])
        found = set()
        for episode, steps in enumerate(self.episodes):
            over, length = episode < self.ended, len(steps)
            last = length - 1 if over else length - self.horizon
            for t in range(last + 1):
                if length and self.starts[episode] + t > now - self.capacity:
                    found.add((episode, t))
        return found

    def stored_starts(self) -> set[tuple[int, int]]:
        slots = np.flatnonzero(np.asarray(self.store.tree.sums[0]))
        return {(int(e), int(t)) for e, t in np.asarray(self.store.obs)[slots]}


add = jax.jit(replay.add)
sample = jax.jit(replay.sample, static_argnums=(3, 4))


def check_segments(journal: Journal, key: int) -> set[tuple[int, int]]:
    """Every sampled segment is a piece of one episode; returns the steps that were seen."""
    batch = sample(journal.store, ReplayConfig(), jax.random.key(key), 128, journal.horizon)
    batch = jax.tree.map(np.asarray, batch)
    seen = set()
    for column in range(128):
        episode, t = (int(v) for v in batch.obs[0, column])
        steps = journal.episodes[episode]
        over = episode < journal.ended
        assert (episode, t) in journal.eligible()
        for k in range(journal.horizon):
            real = t + k < len(steps)
            assert real or over  # only what would lie past an end is masked
            assert batch.mask[k, column] == real
            if not real:
                assert batch.reward[k, column] == 0 and batch.action[k, column, 0] == 0
                assert tuple(batch.obs[k + 1, column]) == (episode, len(steps))
                continue
            assert tuple(batch.obs[k, column]) == (episode, t + k)
            assert tuple(batch.obs[k + 1, column]) == (episode, t + k + 1)
            assert batch.reward[k, column] == 1000 * episode + t + k
            assert batch.action[k, column, 0] == np.float32(episode + (t + k) / 100)
            assert batch.continues[k, column] == 1 - steps[t + k]
            seen.add((episode, t + k))
    return seen


@pytest.mark.parametrize("capacity, horizon", [(17, 3), (29, 5)])
def test_segments_are_pieces_of_stored_episodes(capacity: int, horizon: int) -> None:
    rng = np.random.default_rng(capacity)
    journal, key = Journal(capacity, horizon), 0
    for _ in range(14):
        length = int(rng.choice([1, 2, 3, horizon - 1, horizon, horizon + 1, 9, capacity + 4]))
        for t in range(length):
            done = t == length - 1
            journal.step(done, bool(done and rng.random() < 0.5))
            eligible = journal.eligible()
            assert journal.stored_starts() == eligible
            if eligible and rng.random() < 0.3:
                key += 1
                check_segments(journal, key)
        # The last transition of the episode that just ended is always part of some segment.
        seen = set().union(*(check_segments(journal, 1000 + key + i) for i in range(2)))
        assert (journal.ended - 1, length - 1) in seen


@settings(max_examples=10, deadline=None, database=None)
@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=8))
def test_starts_of_any_episodes(episodes: list[tuple[int, bool]]) -> None:
    journal = Journal(17, 3)
    for length, terminated in episodes:
        for t in range(length):
            journal.step(t == length - 1, terminated and t == length - 1)
        assert journal.stored_starts() == journal.eligible()
    check_segments(journal, 0)


drop = jax.jit(replay.drop)


@pytest.mark.parametrize("length", [0, 1, 4, 9])
def test_dropping_an_episode_leaves_the_store_as_before_it(length: int) -> None:
    journal = Journal(64, 3)
    for steps in (5, 2, 7):
        for t in range(steps):
            journal.step(t == steps - 1, False)
    before = journal.store
    for _ in range(length):
        journal.step(False, False)
    assert jax.tree.all(jax.tree.map(np.array_equal, journal.store, drop(journal.store, False)))
    after = drop(journal.store, True)
    newest = journal.store.obs[journal.store.cursor]
    expected = before._replace(obs=before.obs.at[before.cursor].set(newest))
    for name, one, other in zip(replay.Replay._fields, expected, after, strict=True):
        jax.tree.map(functools.partial(np.testing.assert_array_equal, err_msg=name), one, other)


@pytest.mark.parametrize("lost", [1, 6, 16, 25])
def test_dropping_an_episode_from_a_full_ring(lost: int) -> None:
    journal = Journal(17, 3)
    for steps in (9, 4, 6):
        for t in range(steps):
            journal.step(t == steps - 1, False)
    for _ in range(lost):
        journal.step(False, False)
    kept = {(e, t) for e, t in journal.eligible() if e < journal.ended}
    journal.store = drop(journal.store, True)
    assert journal.stored_starts() == kept
    journal.starts[-1] = int(journal.store.cursor)  # the ring begins a round at any place
    for _ in range(8):  # and it goes on as if nothing had been
        journal.step(False, False)
    fresh = {(e, t) for e, t in journal.stored_starts() if e == journal.ended}
    assert fresh == {(3, lost + t) for t in range(6)}
    assert int(journal.store.stored) <= 17


def journal_of(steps: int) -> Journal:
    journal = Journal(64, 2)
    for _ in range(steps):
        journal.step(False, False)
    return journal


def test_importance_weights_and_frequencies() -> None:
    journal = journal_of(7)  # six starts, slots 0 to 5
    priority = np.array([0.5, 1.0, 2.0, 4.0, 8.0, 0.1], np.float32)
    config = ReplayConfig(priority_power=0.6, importance_power=0.4, priority_floor=0.01)
    index = jnp.arange(6)
    store = set_priorities(journal.store, config, index, jnp.asarray(priority), jnp.bool_(True))
    p = (priority.astype(float) + 0.01) ** 0.6
    p /= p.sum()
    batch = sample(store, config, jax.random.key(0), 4096, 2)
    drawn = np.asarray(batch.index)
    counts = np.bincount(drawn, minlength=6)
    chi_square = np.sum((counts - 4096 * p) ** 2 / (4096 * p))
    assert chi_square < 25.7  # five degrees of freedom, one in ten thousand
    n = 8  # slots in use: seven steps and the observation to act on
    weights = (n * p[drawn]) ** -0.4
    np.testing.assert_allclose(batch.weight, weights / weights.max(), rtol=1e-4)
    flat = sample(store, ReplayConfig(importance_power=0.0), jax.random.key(0), 4096, 2)
    np.testing.assert_allclose(flat.weight, 1.0)


def test_priorities_are_floored_raised_and_left_alone_when_inactive_or_not_finite() -> None:
    store = journal_of(5).store
    config = ReplayConfig(priority_power=0.5, priority_floor=0.25)
    write = functools.partial(set_priorities, store, config, jnp.array([0, 2, 3]))
    new = write(jnp.array([0.0, 2.0, np.nan]), jnp.bool_(True)).tree.sums[0]
    np.testing.assert_allclose(new[:4], [0.5, 1.0, 1.5, 1.0])  # roots of 0.25 and 2.25
    same = write(jnp.array([9.0, 9.0, 9.0]), jnp.bool_(False)).tree.sums[0]
    np.testing.assert_array_equal(same, store.tree.sums[0])


def test_new_segments_get_the_largest_present_priority() -> None:
    journal = journal_of(3)
    assert set(np.asarray(journal.store.tree.sums[0][:2]).tolist()) == {1.0}  # the first ones
    config = ReplayConfig(priority_power=1.0, priority_floor=0.0)
    for high, low in ((7.0, 3.0), (2.0, 0.5)):  # up, and down again
        index = np.flatnonzero(np.asarray(journal.store.tree.sums[0]))
        index = jnp.asarray(np.resize(index, 8))
        value = jnp.where(index == 0, high, low)
        journal.store = set_priorities(journal.store, config, index, value, jnp.bool_(True))
        slot = int(journal.store.cursor) - 1
        journal.step(False, False)
        assert journal.store.tree.sums[0][slot] == high


def test_capacity_holds_a_whole_run() -> None:
    for steps, length in ((100, 7), (100, 100), (99, 100), (10, 1)):
        ends = steps // length
        # Every step, a final observation per finished episode, and the one to act on.
        assert replay.capacity_for(steps, length, True) >= steps + ends + 1
    assert replay.capacity_for(50, None, False) >= 50 + 50 + 1


def test_segments_longer_than_the_replay_was_made_for_are_refused() -> None:
    """Their last steps would be slots that nothing was stored in yet."""
    store = journal_of(3).store
    assert replay.sample(store, ReplayConfig(), jax.random.key(0), 4, 2).mask.shape == (2, 4)
    with pytest.raises(ValueError, match="let the agent's `segment` return at least 4"):
        replay.sample(store, ReplayConfig(), jax.random.key(0), 4, 4)
