"""TCRL (https://arxiv.org/abs/2306.09466), the form without a planner: an encoder that learns by
predicting its own next latents and the rewards, and TD3 on its latents, which never changes it.
Networks and numbers are those of the public code (zhaoyi11/tcrl); docs/agents.md lists them and
what differs here. Encoder, dynamics and reward are the MLPs of TD-MPC."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ace import replay
from ace.agents import told
from ace.agents.contract import OFF_POLICY, Agent, Sizes
from ace.agents.tdmpc import time_weights
from ace.agents.told import cast
from ace.method import losses, nets, targets
from ace.method.learner import adam_init, move_target, optimise
from ace.method.model import action_normal, join, perturb, smallest
from ace.method.types import Batch, Lane, Metrics, Params
from ace.settings import keys
from ace.settings.config import Config, ConfigError, Ramp, settings

PARTS = (("encoder", "dynamics", "reward"), ("value",), ("policy",))  # an optimiser for each
TARGETS = ("encoder", "value")
ACTING = ("encoder", "value", "policy")


@settings
@dataclass(frozen=True)
class TcrlConfig:
    """Settings of TCRL besides the common ones."""

    n_step: int = 3
    """Rewards in the value target, before it bootstraps; at most `plan.horizon`."""


class TcrlState(NamedTuple):
    """All that learning changes."""

    params: Params
    target: Params  # moving averages of encoder and critics
    opt: tuple[Any, ...]  # in the order of PARTS
    update_step: jax.Array
    skipped: jax.Array  # updates left out because a gradient was not finite


def check(config: Config) -> None:
    """Refuse a target that needs more than a segment."""
    steps, most = config.own.n_step, config.plan.horizon
    if not 1 <= steps <= most:
        raise ConfigError(f"tcrl.n_step is {steps}; it must be from 1 to plan.horizon ({most})")


def take(params: Params, names: tuple[str, ...]) -> Params:
    """The networks of these names."""
    return {name: params[name] for name in names}


def init(config: Config, seed: int, sizes: Sizes) -> TcrlState:
    """A fresh agent."""
    rng = np.random.default_rng(keys.host_seed(seed, "init"))
    params = new(rng, config, *sizes)
    opt = adam_init(config.learn, *(take(params, names) for names in PARTS))
    none: Any = np.zeros((), np.int32)
    return TcrlState(params, take(params, TARGETS), opt, none, none)


def new(rng: nets.Rng, config: Config, obs: int, action: int) -> Params:
    """Orthogonal weights and zero biases, as NumPy arrays; both critics share their first layer."""
    n = config.net
    norm = {"norm": nets.norm_init(n.mlp)}
    critics = [told.mlp_init(rng, n.latent + action, n.mlp, 1) for _ in range(2)]
    heads = [take(critic, ("mid", "out")) for critic in critics]
    return {
        "encoder": told.mlp_init(rng, obs, n.encoder, n.latent),
        "dynamics": told.mlp_init(rng, n.latent + action, n.mlp, n.latent),
        "reward": told.mlp_init(rng, n.latent + action, n.mlp, 1),
        "value": {"in": critics[0]["in"]} | norm | jax.tree.map(lambda *q: np.stack(q), *heads),
        "policy": told.mlp_init(rng, n.latent, n.mlp, action) | norm,
    }


def critics(params: Params, z: jax.Array, action: jax.Array) -> jax.Array:
    """Q1 and Q2 of (z, a): [2, ...], float32; a layer norm and a tanh after the common layer."""
    p = params["value"]
    x = nets.dense_layer_norm(p["in"], p["norm"], join(z, action), "tanh")
    return jax.vmap(lambda mid, out: nets.dense_head(mid, None, out, x))(p["mid"], p["out"])


def policy(params: Params, z: jax.Array) -> jax.Array:
    """mu(z) in [-1, 1]: [..., A], float32; a layer norm and a tanh after the first layer."""
    p = params["policy"]
    x = nets.dense_layer_norm(p["in"], p["norm"], z, "tanh")
    return nets.tanh(nets.dense_out(p["mid"], p["out"], x))


def noise_of(config: Config, agent_step: jax.Array) -> jax.Array:
    """The standard deviation of the policy's noise: it falls along the ramp."""
    return config.plan.std_ramp.at(config.plan.min_std, agent_step, config.seed_steps)


def noisy(
    config: Config, params: Params, z: jax.Array, eps: jax.Array, std: jax.Array
) -> jax.Array:
    """The policy's action with clipped noise, as targets and the policy's loss have it."""
    return perturb(dataclasses.replace(config.learn, smoothing_std=std), policy(params, z), eps)


def act(
    lane: Lane,
    acting: Params,
    memory: tuple,
    obs: jax.Array,
    first: jax.Array,
    agent_step: jax.Array,
    key: jax.Array,
    train: bool,
) -> tuple[jax.Array, tuple]:
    """The policy's action; in training with noise that only the bounds of actions clip."""
    action = act_policy(lane, acting, obs)
    if train:
        std = noise_of(lane.config, agent_step)
        free = dataclasses.replace(
            lane.config.learn, smoothing_std=std, smoothing_clip=jnp.float32(math.inf)
        )
        action = perturb(free, action, action_normal(key, (), lane.action_mask))
    return action, memory


def act_policy(lane: Lane, acting: Params, obs: jax.Array) -> jax.Array:
    """The policy's mean action for an observation [..., O]."""
    params = cast(lane.config, acting)
    return policy(params, told.encode(params, obs)) * lane.action_mask


def value(lane: Lane, acting: Params, obs: jax.Array, action: jax.Array) -> jax.Array:
    """What the smaller critic expects from observations [..., O] and actions [..., A]: [...]."""
    params = cast(lane.config, acting)
    return smallest(critics(params, told.encode(params, obs), action))


def update(
    lane: Lane, state: TcrlState, store: replay.Replay, agent_step: jax.Array, active: jax.Array
) -> tuple[TcrlState, replay.Replay, Metrics]:
    """Sample and learn; a lane that is not active stays as it is. No priority is ever written, so
    that all segments are equally likely."""
    c = lane.config
    key = keys.key(lane.seed, "update", state.update_step)
    batch = replay.sample(
        store, c.replay, jax.random.fold_in(key, 0), c.learn.batch, c.plan.horizon
    )
    eps = action_normal(jax.random.fold_in(key, 1), (2, c.learn.batch), lane.action_mask)
    state, metrics = learn(lane, state, batch, eps, noise_of(c, agent_step), active)
    return state, store, metrics


def learn(
    lane: Lane, state: TcrlState, batch: Batch, eps: jax.Array, std: jax.Array, active: jax.Array
) -> tuple[TcrlState, Metrics]:
    """One gradient step of encoder and model, then of the critics on the new encoder's latents,
    then of the policy through them. eps [2, B, A] times `std` is the policy's noise in the target
    and in its own loss.

    A part whose gradient is not finite stays unchanged, and so do those that come after it.
    """
    config, rates = lane.config, lane.config.learn
    free = dataclasses.replace(rates, grad_clip=jnp.float32(math.inf), weight_decay=0.0)
    old = [take(state.params, names) for names in PARTS]

    target_z = told.encode(cast(config, state.target), batch.obs)[1:]
    grads, aux = jax.grad(model_loss, has_aux=True)(old[0], config, batch, target_z)
    grads = jax.tree.map(lambda g: g / config.plan.horizon, grads)
    model, model_opt, norm, moved = optimise(
        rates, rates.learning_rate, grads, state.opt[0], old[0], active
    )

    encoder = cast(config, model)
    z, z_end = (told.encode(encoder, batch.obs[t]) for t in (0, config.own.n_step))
    y = target_of(config, state, batch, z_end, eps[0], std)
    (value_loss, q), grads = jax.value_and_grad(value_loss_of, has_aux=True)(
        old[1], config, z, batch.action[0], y
    )
    new_value, value_opt, value_norm, moved = optimise(
        free, rates.learning_rate, grads, state.opt[1], old[1], moved
    )
    policy_loss, grads = jax.value_and_grad(policy_loss_of)(
        old[2], config, new_value, z, eps[1], std
    )
    new_policy, policy_opt, policy_norm, _ = optimise(
        free, rates.policy_learning_rate, grads, state.opt[2], old[2], moved
    )

    new_params, before = model | new_value | new_policy, state
    finite = jnp.isfinite(norm) & jnp.isfinite(value_norm) & jnp.isfinite(policy_norm)
    state = TcrlState(
        params=new_params,
        target=move_target(rates, before.update_step, before.target, new_params, moved),
        opt=(model_opt, value_opt, policy_opt),
        update_step=before.update_step + active,
        skipped=before.skipped + (active & ~finite),
    )
    metrics = {
        **aux,
        "value_loss": value_loss,
        "policy_loss": policy_loss,
        "q": q,
        "target": y.mean(),
        "noise": std,
        "grad_norm": norm,
        "value_grad_norm": value_norm,
        "policy_grad_norm": policy_norm,
        "skipped_updates": before.skipped.astype(jnp.float32),
    }
    return state, metrics


def model_loss(
    part: Params, config: Config, batch: Batch, target_z: jax.Array
) -> tuple[jax.Array, Metrics]:
    """Cosine and reward losses along the rollout from z_0 = h(s_0), with rho^t; each is capped per
    segment."""
    learn, params = config.learn, cast(config, part)
    z = told.imagine(params, told.encode(params, batch.obs[0]), batch.action)
    weight = time_weights(config, batch.mask)
    c = losses.similarity(z[1:], target_z, weight)
    r = losses.reward(told.reward(params, z[:-1], batch.action), batch.reward, weight)
    capped = jnp.mean(r > learn.loss_clip)
    c, r = (jnp.minimum(x, learn.loss_clip) for x in (c, r))
    total = learn.similarity_weight * c + learn.reward_weight * r
    return total.mean(), {"consistency_loss": c.mean(), "reward_loss": r.mean(), "capped": capped}


def target_of(
    config: Config,
    state: TcrlState,
    batch: Batch,
    z_end: jax.Array,
    eps: jax.Array,
    std: jax.Array,
) -> jax.Array:
    """y = r_0 + ... + gamma^(n-1) r_(n-1) + gamma^n min Q'(z_n, pi(z_n)): [B].

    A segment that ends early repeats its last observation, so its target has fewer rewards and
    bootstraps from there, or not at all if the environment terminated.
    """
    steps = config.own.n_step
    frozen = cast(config, take(state.target, ("value",)) | take(state.params, ("policy",)))
    end = smallest(critics(frozen, z_end, noisy(config, frozen, z_end, eps, std)))
    return targets.lambda_targets(
        batch.reward[:steps],
        jnp.broadcast_to(end, (steps, *end.shape)),
        batch.continues[:steps],
        batch.mask[:steps],
        config.learn.discount,
        1.0,
    )[0]


def value_loss_of(
    part: Params, config: Config, z: jax.Array, action: jax.Array, y: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Squared errors of both critics, and their mean value."""
    q = critics(cast(config, part), z, action)
    return jnp.mean(jnp.square(q - y).sum(0)), q.mean()


def policy_loss_of(
    part: Params, config: Config, value: Params, z: jax.Array, eps: jax.Array, std: jax.Array
) -> jax.Array:
    """Minus the smaller critic at the policy's noisy action."""
    action = noisy(config, cast(config, part), z, eps, std)
    return -smallest(critics(cast(config, value), z, action)).mean()


def footprint(config: Config, sizes: Sizes) -> dict[str, int]:
    """Bytes that a lane needs at least."""
    n, (obs, action) = config.net, sizes
    both = n.latent + action
    encoder = n.encoder * (obs + n.encoder + n.latent)
    model = n.mlp * (2 * both + 2 * n.mlp + n.latent + 1)
    critics = n.mlp * (both + 2 * n.mlp + 2)
    policy = n.mlp * (both + n.mlp)
    rows = config.learn.batch * (config.plan.horizon + 1)
    number = 2 if config.precision == "bf16" else 4
    return {
        "the networks with their optimiser (net.*)": 4
        * (3 * (model + policy) + 4 * (encoder + critics)),
        "the activations of an update (learn.batch, plan.horizon, net.*)": 4
        * number
        * rows
        * (n.latent + n.mlp),
        "the replayed observations of an update (learn.batch)": 4 * rows * (obs + action),
    }


# Groups of the public runs: most tasks have the medium schedule of the noise, _EASY the short one,
# humanoids and dogs (_HARD) the long one. Public schedules count episodes of 500 agent steps; with
# action repeat 8 an episode has 125, so _LONG_REPEAT's schedules are a quarter as long.
_EASY = (
    *("ball_in_cup-catch", "cartpole-balance", "cartpole-swingup", "finger-spin", "hopper-stand"),
    *("pendulum-swingup", "walker-stand", "walker-walk"),
)
_HARD = {"net.latent": 100, "plan.min_std": 0.2, "plan.std_ramp.duration": 250_000.0}
_LONG_REPEAT = {"action_repeat": 8, "seed_steps": 1_250, "plan.std_ramp.duration": 6_250.0}


def task_defaults(task: str) -> Mapping[str, Any]:
    """What the public runs set per task of the control suite."""
    family, _, name = task.partition("/")
    if family != "dmc":
        return {}
    found = {"action_repeat": 2, "plan.std_ramp.duration": 75_000.0}
    if name in _EASY:
        return found | {"plan.std_ramp.duration": 25_000.0}
    if name == "cartpole-balance_sparse":
        return found | _LONG_REPEAT
    if name.startswith("humanoid-"):
        return found | _HARD | {"own.n_step": 1}
    return found | (_HARD if name.startswith("dog-") else {})


AGENT = Agent(
    init=init,
    pad=told.pad,
    act=act,
    update=update,
    metrics=(
        "consistency_loss",
        "reward_loss",
        "value_loss",
        "policy_loss",
        "q",
        "target",
        "noise",
        "grad_norm",
        "value_grad_norm",
        "policy_grad_norm",
        "capped",
        "skipped_updates",
    ),
    act_policy=act_policy,
    value=value,
    plays=("policy",),
    check=check,
    segment=lambda config: config.plan.horizon,
    acting_part=lambda state: take(state.params, ACTING),
    footprint=footprint,
    settings=TcrlConfig,
    sections=(
        *(f"net.{name}" for name in ("latent", "mlp", "encoder")),
        *(f"plan.{name}" for name in ("horizon", "min_std", "std_ramp")),
        *OFF_POLICY,
        *(f"learn.{name}" for name in ("time_decay", "loss_clip")),
        *(f"learn.{name}" for name in ("similarity_weight", "reward_weight", "smoothing_clip")),
        *(f"learn.{name}" for name in ("target_momentum", "target_period")),
        *(f"replay.{name}" for name in ("capacity", "hindsight")),
    ),
    defaults={  # of the public runs, where they differ from ACE's
        "precision": "f32",
        "net.latent": 50,
        "net.encoder": 512,
        "plan.horizon": 5,
        "plan.min_std": 0.1,
        "plan.std_ramp": Ramp(1.0, 25_000.0),
        "learn.learning_rate": 3e-4,
        "learn.policy_learning_rate": 3e-4,
        "learn.weight_decay": 1e-6,
        "learn.time_decay": 0.9,
        "learn.similarity_weight": 1.0,
        "learn.reward_weight": 1.0,
        "learn.target_momentum": 0.995,
        "learn.target_period": 1,
        "learn.update_every": 2,
        "learn.seed_updates": 0.0,
        "replay.hindsight": 0.0,
    },
    task_defaults=task_defaults,
)
