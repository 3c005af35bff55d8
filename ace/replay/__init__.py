"""Replay on the device, for one lane: a ring of steps, a tree of their priorities, and
hindsight for tasks with goals."""

from ace.replay.hindsight import Hindsight
from ace.replay.ring import (
    Replay,
    add,
    capacity_for,
    drop,
    init,
    sample,
    set_priorities,
    size_in_bytes,
)
from ace.replay.tree import Tree, build_tree, draw_leaves, largest, set_leaves, total

__all__ = [
    "Hindsight",
    "Replay",
    "Tree",
    "add",
    "build_tree",
    "capacity_for",
    "draw_leaves",
    "drop",
    "init",
    "largest",
    "sample",
    "set_leaves",
    "set_priorities",
    "size_in_bytes",
    "total",
]
