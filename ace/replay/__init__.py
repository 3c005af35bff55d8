"""Replay on the device, for one lane: a ring of steps, a tree of their priorities, and
hindsight for tasks with goals."""

from ace.replay.hindsight import Hindsight
from ace.replay.ring import (
    STEPS,
    Replay,
    add,
    capacity_for,
    drop,
    forget,
    init,
    sample,
    set_priorities,
    size_in_bytes,
    steps_in_store,
)
from ace.replay.tree import Tree, build_tree, draw_leaves, largest, set_leaves, total

__all__ = [
    "Hindsight",
    "Replay",
    "STEPS",
    "Tree",
    "add",
    "build_tree",
    "capacity_for",
    "draw_leaves",
    "drop",
    "forget",
    "init",
    "largest",
    "sample",
    "set_leaves",
    "set_priorities",
    "size_in_bytes",
    "steps_in_store",
    "total",
]
