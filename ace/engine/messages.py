"""What the host sends to the device, as one array per step: every transfer costs about as much as
a small compiled call, however small the array."""

from typing import Any, NamedTuple

import numpy as np

from ace.method.types import Transition


class Message(NamedTuple):
    """What the device needs to know about one lane after a step."""

    transition: Transition  # the last step; its `obs` is the one to act on
    first: Any  # whether an episode begins with that observation
    agent_step: Any
    active: Any  # whether the lane learns


class Question(NamedTuple):
    """One episode of an evaluation that needs an action."""

    obs: Any  # [O]
    episode: Any  # its index in the lane
    eval_step: Any  # agent steps since the episode began
    agent_step: Any  # of the agent that is evaluated


def blank_message(obs_size: int, action_size: int, *lead: int) -> Message:
    """A message of zeros with any leading axes."""
    obs, action = np.zeros((*lead, obs_size), "f"), np.zeros((*lead, action_size), "f")
    number, flag = np.zeros(lead, "f"), np.zeros(lead, bool)
    transition = Transition(action, number, flag, flag, obs, obs)
    return Message(transition, flag, np.zeros(lead, np.int32), flag)


def blank_question(obs_size: int, *lead: int) -> Question:
    """A question of zeros with any leading axes."""
    count = np.zeros(lead, np.int32)
    return Question(np.zeros((*lead, obs_size), "f"), count, count, count)
