"""What the host tells the device, as one array a step: every transfer costs about as much as a
small compiled call, however little it carries."""

from typing import Any, NamedTuple

import numpy as np

from ace.method.types import Transition


class Message(NamedTuple):
    """One lane after a step: what happened, and what is to be done next."""

    transition: Transition  # the last step; its `obs` is the one to act on
    first: Any  # whether an episode begins with that observation
    agent_step: Any
    active: Any  # whether the lane learns


class Question(NamedTuple):
    """One episode of an evaluation that needs an action."""

    obs: Any  # [O]
    episode: Any  # its number in its lane
    eval_step: Any  # agent step of the episode
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
