"""A small learner, a batch for it, and its update once more in NumPy: what the tests of updates
share."""

# pyright: reportArgumentType=false, reportCallIssue=false
# (NumPy arrays are as good as JAX's here.)

import functools

import jax
import jax.numpy as jnp
import numpy as np

from ace.method import learner
from ace.method.types import Batch, Lane, LearnerState, Moments
from ace.settings.config import Config, LearnConfig, NetConfig, PlanConfig, replace
from tests.golden import reference as ref

H, B, OBS, A = 2, 3, 3, 2
STEP = 30  # half way up the novelty ramp: weight 0.2
CONFIG = Config(
    seed_steps=10,
    precision="f32",
    net=NetConfig(latent=4, mlp=5, encoder=5, belief=3),
    plan=PlanConfig(horizon=H, population=8, elites=2, iterations=1),
    learn=LearnConfig(
        batch=B,
        smoothing_std=0.0,  # no policy noise: the update is a function of the batch alone
        td_lambda=0.3,
        discount=0.9,
        novelty_weight=0.4,
        grad_clip=0.05,
        learning_rate=2e-3,
        policy_learning_rate=3e-3,
    ),
)
CONFIG = replace(CONFIG, {"learn.novelty_ramp.duration": 40.0})
update = jax.jit(learner.update)


def lane_of(config: Config) -> Lane:
    return Lane(
        seed=jnp.uint32(0),
        config=jax.tree.map(jnp.float32, config),
        action_mask=jnp.ones(A, bool),
        constants=(),
    )


@functools.cache
def start(config: Config = CONFIG) -> LearnerState:
    """A learner in which nothing is zero or equal to its target."""
    state = learner.init(config, 0, (OBS, A))
    rng = np.random.default_rng(0)

    def shake(x):
        return jnp.asarray(x + 0.2 * rng.standard_normal(x.shape), jnp.float32)

    state = state._replace(
        params=jax.tree.map(shake, state.params),
        target=jax.tree.map(shake, state.target),
        stats=jax.tree.map(lambda x: jnp.abs(shake(x)), state.stats),
        moments=Moments(jnp.float32(0.5), jnp.float32(0.3), jnp.float32(2.0)),
    )
    return state


def batch_of(short: bool = False) -> Batch:
    """Three segments; one ends in a termination, and with `short` one is a step too short."""
    rng = np.random.default_rng(1)

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    obs, action, reward = draw(H + 1, B, OBS), draw(H, B, A).clip(-1, 1), draw(H, B)
    mask, continues = np.ones((H, B), np.float32), np.ones((H, B), np.float32)
    continues[1, 2] = 0
    if short:
        mask[1, 0], reward[1, 0], action[1, 0], obs[2, 0] = 0, 0, 0, obs[1, 0]
    weight = np.array([1.0, 0.3, 0.7], np.float32)
    return Batch(obs, action, reward, continues, mask, weight, np.arange(B))


class Oracle:
    """The update in NumPy, without policy noise."""

    def __init__(self, state: LearnerState, batch: Batch, residual: float = 0.0):
        self.params, self.target = ref.float64(state.params), ref.float64(state.target)
        self.batch = {k: np.asarray(v, np.float64) for k, v in batch._asdict().items()}
        self.moments = [float(x) for x in state.moments]
        self.stats = ref.float64(state.stats)
        self.c = {"rho": 0.5, "loss_clip": 1e4, "residual": residual}
        self.targets()

    def targets(self):
        """Novelty, joint reward, lambda targets."""
        p, obs, mask = self.params, self.batch["obs"], self.batch["mask"]
        online = ref.encoder(p["encoder"], obs)
        self.target_z = ref.encoder(self.target["encoder"], obs[1:])
        error = np.zeros((H, B))
        self.novelty_stats = {"projector": [], "predictor": []}
        for t in range(H):  # one step from the real latent and a zero belief, batch by batch
            x = np.concatenate([online[t], self.batch["action"][t]], -1)
            belief = ref.gru(p["cell"], x, np.zeros((B, 3)))
            z, mean, var = ref.batch_norm_net(p["projector"], belief)
            z = z + self.c["residual"] * online[t]
            self.novelty_stats["projector"].append((mean, var))
            prediction, mean, var = ref.batch_norm_net(p["predictor"], z)
            self.novelty_stats["predictor"].append((mean, var))
            error[t] = ref.cosine_distance(prediction, self.target_z[t])
        seen = error[mask > 0]
        mean, var, count = self.moments
        groups = [(count, mean, var), (1.0, seen.mean(), seen.var(ddof=1))]
        self.new_moments = ref.pooled_moments(groups)
        mean, var, _ = self.new_moments
        excess = np.maximum((error - mean) / np.sqrt(var), 0) * mask
        self.novelty = (excess / excess.max()) ** 0.6
        joint = self.batch["reward"] + 0.2 * self.novelty
        value = ref.critics(self.target["value"], online[1:], ref.policy(p["policy"], online[1:]))
        value = value.min(0)
        self.y = np.zeros((H, B))
        for i in range(B):
            n = int(mask[:, i].sum())
            columns = (joint[:n, i], value[:n, i], self.batch["continues"][:n, i])
            self.y[:n, i] = ref.lambda_return(*columns, 0.9, 0.3)

    def losses(self, params=None):
        params = self.params if params is None else params
        return ref.model_loss(params, self.batch, self.target_z, self.y, self.c)

    def model_gradient(self):
        """Of the loss over H, by finite differences."""
        model = {k: v for k, v in self.params.items() if k != "policy"}
        grads = ref.leaves(ref.gradient(lambda p: self.losses(p)["loss"], model))
        return {k: g / H for k, g in grads.items()}

    def policy_gradient(self, new_value, z):
        mask = np.concatenate([np.ones((1, B)), self.batch["mask"]])

        def loss(p):
            total = 0.0
            for t in range(H + 1):
                q = ref.critics(new_value, z[t], ref.policy(p, z[t])).min(0)
                total -= np.mean(q * mask[t])
            return total

        return loss(self.params["policy"]), ref.leaves(ref.gradient(loss, self.params["policy"]))


def split(state: LearnerState):
    return learner.split(state.params)
