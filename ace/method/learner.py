"""One gradient step of one lane (Algorithm 2): latents, novelty, targets, the model's and critics'
step, the policy's step, the target network."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ace.method import losses, model, nets, targets
from ace.method.model import cast
from ace.method.replaceable import replaceable
from ace.method.types import Batch, Lane, LearnerState, Metrics, Params
from ace.settings import keys
from ace.settings.config import Config, LearnConfig


def init(config: Config, seed: int, sizes: tuple[int, int]) -> LearnerState:
    """The learner of one lane for (observation, action) sizes.

    The arrays are mostly NumPy: dispatching many small operations to a device takes longer.
    """
    rng = np.random.default_rng(keys.host_seed(seed, "init"))
    params, stats = model.init(rng, config, *sizes)
    return LearnerState(
        params=params,
        stats=stats,
        target={name: params[name] for name in ("encoder", "value")},
        opt=adam_init(config.learn, *split(params)),
        moments=targets.init_moments(),
        update_step=jnp.zeros((), jnp.int32),
        skipped=jnp.zeros((), jnp.int32),
    )


def pad(config: Config, state: LearnerState, sizes: tuple[int, int]) -> LearnerState:
    """The same learner for larger observations and actions, whose new entries are always zero."""
    return nets.pad(state, model.axes(config), dict(zip(("obs", "action"), sizes, strict=True)))


def split(params: Params) -> tuple[Params, Params]:
    """Model (encoder, dynamics, heads, critics) and policy parameters."""
    return {k: v for k, v in params.items() if k != "policy"}, {"policy": params["policy"]}


def adam(
    learn: LearnConfig, rate: jax.Array | float = 0.0, decays: Any = None
) -> optax.GradientTransformation:
    """AdamW after clipping by the global norm (3.5); `decays` marks the weights that decay."""
    decay = optax.stateless(
        lambda changes, params: jax.tree.map(
            lambda c, p, d: c + jnp.where(d, learn.weight_decay, 0.0) * p, changes, params, decays
        )
    )
    return optax.chain(
        optax.clip_by_global_norm(learn.grad_clip),  # type: ignore[arg-type]
        optax.scale_by_adam(learn.beta1, learn.beta2, 1e-8),
        decay,
        optax.scale_by_learning_rate(rate),
    )


def adam_init(learn: LearnConfig, *parts: Params) -> tuple[Any, ...]:
    """The optimiser of each part before its first step, as NumPy arrays."""
    empty = jax.eval_shape(lambda parts: tuple(map(adam(learn).init, parts)), parts)
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), empty)


def matrices(params: Params) -> Params:
    """True for the weights that decay; biases and norms do not."""
    return jax.tree_util.tree_map_with_path(lambda path, _: nets.is_matrix(path), params)


class Latents(NamedTuple):
    """Encodings of the observed segment that need no gradient."""

    online: jax.Array  # [H+1, B, latent]
    target: jax.Array  # [H, B, latent] target encodings of the next observations


def update(
    lane: Lane, state: LearnerState, batch: Batch, agent_step: jax.Array, active: jax.Array
) -> tuple[LearnerState, jax.Array, Metrics]:
    """One update; returns the new state, the priorities of the segments and metrics.

    A lane that is not active stays unchanged. If the model's gradient is not finite, only the
    counters change; if the policy's is not, the policy stays unchanged.
    """
    config, learn = lane.config, lane.config.learn
    obs_moments = model.fold_obs(state.stats["obs"], batch.obs[0])
    batch = batch._replace(obs=model.normalise(config, {"obs": obs_moments}, batch.obs))
    key = keys.key(lane.seed, "update", state.update_step)
    eps = model.action_normal(
        jax.random.fold_in(key, 1), (3, config.plan.horizon + 1, learn.batch), lane.action_mask
    )
    params, target = cast(config, state.params), cast(config, state.target)

    # Both encoders see the whole segment; the target's first latent is not needed.
    latents = Latents(model.encode(params, batch.obs), model.encode(target, batch.obs)[1:])
    novelty, found, novelty_stats = novelty_of(config, params, state, latents, batch)
    weight = learn.novelty_ramp.at(learn.novelty_weight, agent_step, config.seed_steps)
    joint = batch.reward + weight * novelty
    next_action = model.noisy_policy(params, learn, latents.online[1:], eps[0, 1:])
    next_value = model.value(target, latents.online[1:], next_action).min(0)
    y = targets.lambda_targets(
        joint, next_value, batch.continues, batch.mask, learn.discount, learn.td_lambda
    )

    model_params, policy_params = split(state.params)
    running = {"external": batch.reward, "novelty": weight * novelty, "joint": joint}
    batch = batch._replace(reward=running[config.plan.running_reward])  # of plans (D10)
    grads, aux = jax.grad(model_loss, has_aux=True)(
        model_params, config, batch, latents.target, jax.lax.stop_gradient(y)
    )
    grads = jax.tree.map(lambda g: g / config.plan.horizon, grads)
    new_model, model_opt, norm, moved = optimise(
        learn, learn.learning_rate, grads, state.opt[0], model_params, active
    )
    policy_grads, policy_aux = jax.grad(policy_loss_of, has_aux=True)(
        policy_params, lane, new_model, aux["z"], latents.online, batch, eps[1:]
    )
    turn = moved & (state.update_step % config.parity.policy_delay == 0)
    new_policy, policy_opt, policy_norm, _ = optimise(
        learn, learn.policy_learning_rate, policy_grads, state.opt[1], policy_params, turn
    )

    new_params = new_model | new_policy
    stats = fold_stats(state.stats, novelty_stats, aux["stats"], learn.batch)
    stats |= {"obs": obs_moments}
    stats, moments = where_tree(moved, (stats, found), (state.stats, state.moments))
    left_out = (active & ~jnp.isfinite(norm)) | (turn & ~jnp.isfinite(policy_norm))
    new_state = LearnerState(
        new_params,
        stats,
        move_target(learn, state.update_step, state.target, new_params, moved),
        (model_opt, policy_opt),
        moments,
        state.update_step + active,
        state.skipped + left_out,
    )
    metrics = {name: aux[name] for name in ("similarity_loss", "reward_loss", "value_loss", "q")}
    metrics |= {
        "target": y.mean(),
        "novelty": jnp.sum(novelty * batch.mask) / batch.mask.sum(),
        "novelty_error": found.mean,
        "novelty_weight": weight,
        "grad_norm": norm,
        "policy_grad_norm": policy_norm,
        "capped": aux["capped"],
        "clipped": 1 - learn.grad_clip / jnp.maximum(norm, learn.grad_clip),
        "policy_clipped": 1 - learn.grad_clip / jnp.maximum(policy_norm, learn.grad_clip),
        "latent_gap": latent_gap(config, params, state.stats, aux["b"], aux["z"][:2]),
        "skipped_updates": state.skipped.astype(jnp.float32),
        **policy_aux,
    }
    return new_state, aux["priority"], metrics


def novelty_of(
    config: Config, params: Params, state: LearnerState, latents: Latents, batch: Batch
) -> tuple[jax.Array, Any, Params]:
    """r^i of every step, from its one-step prediction error."""
    error, stats = one_step_error(config, params, latents, batch.action)
    moments = targets.merge_moments(state.moments, error, batch.mask, config.learn)
    novelty = targets.novelty_reward(error, batch.mask, moments, config.learn)
    return novelty, moments, stats if config.parity.novelty_updates_stats else {}


def one_step_error(
    config: Config, params: Params, latents: Latents, action: jax.Array
) -> tuple[jax.Array, Params]:
    """The prediction error of every step from the real latent and a zero belief (4.1), and the
    batch-norm statistics of the pass."""
    z = latents.online[:-1]
    b = model.believe(params, z, action, None)
    change, projector = model.project_train(params, b)
    z_next = model.add_to(config, z, change)
    prediction, predictor = model.predict_train(params, z_next)
    error = targets.similarity_error(prediction, latents.target)
    return error, {"projector": projector, "predictor": predictor}


def fold_stats(running: Params, novelty: Params, rollout: Params, rows: int) -> Params:
    """Running batch-norm statistics after the passes of one update, in their order (3.7)."""
    horizon = rollout["projector"]["mean"].shape[0]
    for passed in (novelty, rollout):
        for name, batches in passed.items():
            count = rows * horizon // batches["mean"].shape[0] if name == "predictor" else rows
            running = running | {name: nets.update_stats(running[name], batches, count)}
    steps = nets.update_step_stats(running["steps"], rollout["projector"], rows)
    return running | {"steps": steps}


def latent_gap(
    config: Config, params: Params, stats: Params, b: jax.Array, z: jax.Array
) -> jax.Array:
    """How far latents after one step, the second of z [2, B, latent], move if the projector uses a
    plan's statistics instead of the batch's: root mean square, relative to their deviation over the
    batch."""
    norm = jax.tree.map(lambda x: x[0], model.planning_norms(config, params, stats))
    planned = model.add_to(config, z[0], model.project(params, norm, b))
    z, planned = (x.astype(jnp.float32) for x in (z[1], planned))
    return jnp.sqrt(jnp.square(planned - z).mean() / (z.var(0).mean() + 1e-12))


def model_loss(
    model_params: Params, config: Config, batch: Batch, target_z: jax.Array, y: jax.Array
) -> tuple[jax.Array, dict]:
    """Similarity, reward and value losses along an H-step rollout from z_0 = h(s_0) (3.2)."""
    learn, parity = config.learn, config.parity
    params = cast(config, model_params)
    z, b, stats = rollout(config, params, batch)

    flat = z[1:].reshape(-1, z.shape[-1])
    prediction, predictor = model.predict_train(params, flat)
    r = model.reward(params, z[:-1], b[:-1], batch.action, b[1:])
    q = model.value(params, z[:-1], batch.action)

    rho = learn.time_decay ** jnp.arange(config.plan.horizon, dtype=jnp.float32)[:, None]
    value_weight = rho * batch.mask
    model_weight = value_weight if parity.model_time_decay else batch.mask
    s = losses.similarity(prediction.reshape(target_z.shape), target_z, model_weight)
    e = losses.reward(r, batch.reward, model_weight)
    v, absolute = losses.value(q, y, value_weight, config.repair.value_huber)
    capped = jnp.mean(v > learn.loss_clip)
    s, e, v = (jnp.minimum(x, learn.loss_clip) for x in (s, e, v))
    total = learn.similarity_weight * s + learn.reward_weight * e + learn.value_weight * v

    importance = batch.weight
    if parity.importance == "batch_mean":
        importance = jnp.full_like(importance, importance.mean())
    elif parity.importance == "none":
        importance = jnp.ones_like(importance)
    aux = {
        "z": z,
        "b": b[1],
        "capped": capped,
        "stats": {"projector": stats, "predictor": jax.tree.map(lambda x: x[None], predictor)},
        "priority": jnp.minimum(absolute, learn.loss_clip),
        "similarity_loss": s.mean(),
        "reward_loss": e.mean(),
        "value_loss": v.mean(),
        "q": q.mean(),
    }
    return jnp.mean(importance * total), aux


def rollout(config: Config, params: Params, batch: Batch) -> tuple[jax.Array, jax.Array, Params]:
    """Latents z [H+1, B, .] and beliefs b [H+1, B, .] under the stored actions, and statistics."""
    z0 = model.encode(params, batch.obs[0])

    def step(carry: tuple, action: jax.Array) -> tuple[tuple, tuple]:
        z, b = carry
        b = model.believe(params, z, action, b)
        change, stats = model.project_train(params, b)
        z = model.add_to(config, z, change)
        return (z, b), (z, b, stats)

    _, (z, b, stats) = nets.scan(step, (z0, model.no_belief(params, z0)), batch.action)
    b0 = jnp.zeros_like(b[:1])
    return jnp.concatenate([z0[None], z]), jnp.concatenate([b0, b]), stats


def policy_loss_of(
    policy_params: Params,
    lane: Lane,
    new_model: Params,
    z: jax.Array,
    online: jax.Array,
    batch: Batch,
    eps: jax.Array,
) -> tuple[jax.Array, Metrics]:
    """Deterministic policy gradient through the updated critics on detached latents (3.4)."""
    config, learn, repair = lane.config, lane.config.learn, lane.config.repair
    params = cast(config, policy_params)
    critics = cast(config, {"value": new_model["value"]})
    z = jax.lax.stop_gradient(z)
    raw = model.raw_policy(params, z)
    mean = nets.tanh(raw)
    value = model.between(
        model.value(critics, z, model.perturb(learn, mean, eps[0])), repair.pessimism
    )
    weight = jnp.concatenate([jnp.ones_like(batch.mask[:1]), batch.mask])
    weight *= repair.policy_decay ** jnp.arange(len(weight), dtype=weight.dtype)[:, None]
    scale = jnp.maximum(jnp.abs(jax.lax.stop_gradient(value)).mean(), 1.0) ** repair.policy_scale
    loss = losses.policy(value, weight) / scale
    count = lane.action_mask.sum()
    loss += repair.action_penalty * jnp.sum(
        jnp.mean(jnp.square(raw * lane.action_mask).sum(-1) * weight, -1) / count
    )
    if config.parity.bc_weight:
        imitation = model.noisy_policy(params, learn, online[:-1], eps[1, 1:])
        # Section 3.4 averages the critics over the H+1 latents and multiplies everything by H.
        loss *= config.plan.horizon / (config.plan.horizon + 1)
        square = jnp.square(imitation - batch.action).sum(-1) / count
        loss += config.parity.bc_weight * config.plan.horizon * jnp.mean(square * batch.mask)
    saturated = (jnp.abs(mean) > 0.99) * lane.action_mask
    return loss, {"policy_loss": loss, "saturated": saturated.sum(-1).mean() / count}


@replaceable
def optimise(
    learn: LearnConfig, rate: Any, grads: Params, opt: Any, params: Params, active: jax.Array
) -> tuple[Params, Any, jax.Array, jax.Array]:
    """Parameters and optimiser after a step, the gradient's norm, and whether the step was made: it
    is skipped if the lane is not active or the gradient not finite."""
    optimiser: Any = adam(learn, rate, matrices(params))
    changes, new_opt = optimiser.update(grads, opt, params)
    norm = optax.tree.norm(grads)
    moved = active & jnp.isfinite(norm)
    new: Any = optax.apply_updates(params, changes)
    new, opt = where_tree(moved, (new, new_opt), (params, opt))
    return new, opt, norm, moved


@replaceable
def move_target(
    learn: LearnConfig, update_step: jax.Array, target: Params, params: Params, moved: jax.Array
) -> Params:
    """Exponential moving average of encoder and critics, every `target_period` updates (3.6)."""
    turn = moved & (update_step % learn.target_period == 0)
    keep = jnp.where(turn, learn.target_momentum, 1.0)
    new = {name: params[name] for name in target}
    return jax.tree.map(lambda t, p: keep * t + (1 - keep) * p, target, new)


def where_tree(pick: jax.Array, new: Any, old: Any) -> Any:
    """The new tree where `pick` is true, else the old one."""
    return jax.tree.map(lambda a, b: jnp.where(pick, a, b), new, old)
