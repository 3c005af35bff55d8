"""The error of an agent's model on given segments, against NumPy."""

# pyright: reportArgumentType=false, reportCallIssue=false
# (NumPy arrays are as good as JAX's here.)

import jax
import numpy as np
import pytest

from ace.agents import ace as agent
from ace.method import model
from ace.method.types import Lane
from ace.settings.config import Config, NetConfig, PlanConfig, replace
from tests.golden import reference as ref

N, H, OBS, A = 5, 3, 4, 2
CONFIG = Config(
    precision="f32",
    net=NetConfig(latent=4, mlp=6, encoder=5, belief=3),
    plan=PlanConfig(horizon=H),
)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_error_is_the_sum_of_cosine_distances(share: float) -> None:
    """Summed over the steps, averaged over the segments; with observations as they are, and with
    those that learning sees when it normalises them."""
    rng = np.random.default_rng(0)
    config = replace(CONFIG, {"repair.normalise": share})
    params, stats = model.init(rng, config, OBS, A)
    params = jax.tree.map(lambda x: x + 0.3 * rng.standard_normal(x.shape).astype("f"), params)
    stats = jax.tree.map(lambda x: x + rng.uniform(0.1, 0.9, x.shape).astype("f"), stats)
    obs = rng.standard_normal((N, H + 1, OBS)).astype("f")
    action = rng.uniform(-1, 1, (N, H, A)).astype("f")
    lane = Lane(np.uint32(0), config, np.ones(A, bool), ())
    got = jax.jit(lambda s, o, a: agent.prediction_error(lane, s, o, a))(
        {"params": params, "stats": stats}, obs, action
    )

    p, seen, wanted = ref.float64(params), ref.float64(obs), 0.0
    if share:
        moments = ref.float64(stats["obs"])
        seen = (seen - moments["mean"]) / np.sqrt(moments["var"] + 1e-4)
    seen = seen.swapaxes(0, 1)
    z, _, _ = ref.rollout(p, {"obs": seen, "action": ref.float64(action).swapaxes(0, 1)})
    predicted = ref.batch_norm_net(p["predictor"], np.concatenate(z[1:]))[0].reshape(H, N, -1)
    for t in range(H):
        for n in range(N):
            observed = ref.encoder(p["encoder"], seen[t + 1, n])
            wanted += ref.cosine_distance(predicted[t, n], observed) / N
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
