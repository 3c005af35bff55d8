"""Evaluation episodes on the device: what their players keep there between the steps."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ace.engine import transfer
from ace.engine.messages import Question, blank_question
from ace.engine.packing import Packed, Packing


class Player:
    """The agents of all lanes, or their policies alone, in evaluation episodes that are played side
    by side."""

    def __init__(
        self,
        lane: Packed,
        act: Callable,
        value: Callable,
        memory: Packed | None,
        pack: Callable[[Any], Packed],
        question: Packing,
        shape: tuple[int, int, int],
    ):
        """`memory` is that of an episode's first step, or None if `act` needs none; `shape` is that
        of the observations [L, E, O]."""
        self._lane, self._act, self._value = lane, act, value
        self._first_memory, self._pack, self._question = memory, pack, question
        self.lanes, self.episodes, _ = shape
        self._numbers = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape[:2])
        self._blank = question.pack(blank_question(shape[2], *shape[:2])).small
        self._inbox = transfer.Inbox(self._blank)

    @functools.cached_property
    def _value_inbox(self) -> transfer.Inbox:
        """An inbox of its own: in the other one, a question would wait for the plan before it."""
        return transfer.Inbox(self._blank)

    def begin(self, acting: Any, agent_step: int) -> None:
        """Begin new episodes with the acting part of learners of this agent step: a tree."""
        self._acting, self._agent_step = self._pack(jax.device_put(acting)), agent_step
        self._memory = jax.device_put(self._first_memory)

    def act(self, obs: np.ndarray, count: int) -> jax.Array:
        """Actions [L, E, A] for the observations [L, E, O] of step `count` of the episodes."""
        question = self._ask(self._inbox, obs, count)
        if self._memory is None:
            return self._act(self._lane, self._acting, question)
        action, self._memory = self._act(self._lane, self._acting, self._memory, question)
        return action

    def value(self, obs: np.ndarray, count: int, action: np.ndarray) -> jax.Array:
        """The discounted return [L, E] that the critics expect from observations and actions."""
        question = self._ask(self._value_inbox, obs, count)
        return self._value(self._lane, self._acting, question, action)

    def _ask(self, inbox: transfer.Inbox, obs: np.ndarray, count: int) -> Packed:
        """Copy the observations of a step to the device."""
        steps = (
            np.full((self.lanes, self.episodes), n, np.int32) for n in (count, self._agent_step)
        )
        packed = self._question.pack(Question(obs, self._numbers, *steps))
        return packed._replace(small=inbox.put(packed.small))
