"""The values that flow between modules. Shapes are for one lane; time comes first everywhere."""

from typing import Any, NamedTuple

import jax

from ace.settings.config import Config

Params = dict[str, Any]
Metrics = dict[str, jax.Array]


class Lane(NamedTuple):
    """What makes one lane different from its neighbours in the same program."""

    seed: jax.Array
    config: Config
    action_mask: jax.Array  # [A] 1 for real action dimensions, 0 for padding
    constants: Any  # result of `Agent.constants`, made once on the host
    obs_mask: Any = None  # [O] the same for observations


class Transition(NamedTuple):
    """One agent step of one lane, from the simulator to the replay."""

    action: Any  # [A]
    reward: Any
    terminated: Any  # the value of the next state is zero
    done: Any  # terminated or out of time
    final_obs: Any  # [O] the true next observation
    obs: Any  # [O] the one to act on next: the first of the next episode if done


class Batch(NamedTuple):
    """H-step segments; `mask` is 0 after the end of an episode shorter than H."""

    obs: jax.Array  # [H+1, B, O]
    action: jax.Array  # [H, B, A]
    reward: jax.Array  # [H, B]
    continues: jax.Array  # [H, B] 0 where the environment terminated
    mask: jax.Array  # [H, B]
    weight: jax.Array  # [B] importance weights
    index: jax.Array  # [B] replay slots of the segment starts


class Moments(NamedTuple):
    """Running mean and variance of the prediction error."""

    mean: jax.Array
    var: jax.Array
    count: jax.Array


class LearnerState(NamedTuple):
    """All that learning changes."""

    params: Params
    stats: Params  # running batch-norm statistics
    target: Params  # moving averages of encoder and critics
    opt: Any
    moments: Moments
    update_step: jax.Array
    skipped: jax.Array  # updates left out because a gradient was not finite
