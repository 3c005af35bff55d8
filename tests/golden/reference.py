"""The method's formulas in float64 NumPy, to be read beside docs/algorithm.md.

Nothing here imports ace; only the names inside the parameter dictionaries are the program's.
"""

from typing import Any

import numpy as np

Tree = dict[str, Any]


def float64(tree: Any) -> Any:
    """A copy of a tree of dictionaries and arrays in double precision."""
    if isinstance(tree, dict):
        return {k: float64(v) for k, v in tree.items()}
    return np.array(tree, np.float64)


def elu(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0.0)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def affine(p, x):
    return np.einsum("...i,io->...o", x, p["w"]) + p["b"]


def layer_norm(scale, bias, x, eps):
    deviation = x - np.mean(x, axis=-1, keepdims=True)
    return scale * deviation / np.sqrt(np.var(x, axis=-1, keepdims=True) + eps) + bias


def gru(p, x, b):
    """Section 1.3, gate by gate."""
    i_r, i_u, i_n = np.split(x @ p["wi"], 3, axis=-1)
    h_r, h_u, h_n = np.split(b @ p["wh"], 3, axis=-1)
    (s_r, s_u, s_n), (b_r, b_u, b_n) = p["norm"]["scale"], p["norm"]["bias"]
    reset = sigmoid(layer_norm(s_r, b_r, i_r + h_r, 1e-3))
    update = sigmoid(layer_norm(s_u, b_u, i_u + h_u, 1e-3))
    new = np.tanh(layer_norm(s_n, b_n, i_n + reset * h_n, 1e-3))
    return update * new + (1 - update) * b


def encoder(p, obs):
    x = layer_norm(p["norm"]["scale"], p["norm"]["bias"], affine(p["in"], obs), 1e-5)
    return affine(p["out"], elu(x))


def batch_norm_net(p, x, mean: Any = None, var: Any = None):
    """Projector and predictor: with the given statistics, else those of the rows of x."""
    y = affine(p["in"], x)
    if mean is None:
        mean, var = y.mean(0), y.var(0)
    y = (y - mean) / np.sqrt(var + 1e-5) * p["norm"]["scale"] + p["norm"]["bias"]
    return affine(p["out"], elu(y)), mean, var


def head(p, x):
    """Reward head and policy before its tanh."""
    return affine(p["out"], elu(affine(p["mid"], elu(affine(p["in"], x)))))


def critics(p, z, a):
    x = np.concatenate([z, a], -1)
    values = []
    for k in range(2):
        one = {m: {n: v[k] for n, v in layer.items()} for m, layer in p.items()}
        y = layer_norm(one["norm_in"]["scale"], one["norm_in"]["bias"], affine(one["in"], x), 1e-5)
        y = affine(one["mid"], np.tanh(y))
        y = elu(layer_norm(one["norm_mid"]["scale"], one["norm_mid"]["bias"], y, 1e-5))
        values.append(affine(one["out"], y)[..., 0])
    return np.stack(values)


def policy(p, z):
    return np.tanh(head(p, z))


def cosine_distance(a, b):
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return 2 - 2 * np.sum(a * b, -1) / norms


def lambda_return(reward, next_value, continues, discount, lam):
    """The paper's forward view for one segment: a mixture of n-step returns (3.3)."""
    steps = len(reward)
    targets = np.zeros(steps)
    for t in range(steps):
        left = steps - t
        n_step = []
        for n in range(1, left + 1):
            total, alive = 0.0, 1.0
            for k in range(n):
                total += discount**k * alive * reward[t + k]
                alive *= continues[t + k]
            n_step.append(total + discount**n * alive * next_value[t + n - 1])
        weights = [(1 - lam) * lam ** (n - 1) for n in range(1, left)] + [lam ** (left - 1)]
        targets[t] = np.dot(weights, n_step)
    return targets


def pooled_moments(groups):
    """Mean and variance of groups (count, mean, variance) taken together."""
    count, mean, var = (np.array(x) for x in zip(*groups, strict=True))
    total = count.sum()
    m = np.dot(count, mean) / total
    return m, np.dot(count, var + mean**2) / total - m**2, total


def rollout(params, batch, residual=0.0):
    """Latents z_0..z_H, beliefs b_1..b_H and the projector's batch statistics of each step."""
    z = [encoder(params["encoder"], batch["obs"][0])]
    b = [np.zeros((z[0].shape[0], params["cell"]["wh"].shape[0]))]
    stats = []
    for action in batch["action"]:
        b.append(gru(params["cell"], np.concatenate([z[-1], action], -1), b[-1]))
        latent, mean, var = batch_norm_net(params["projector"], b[-1])
        z.append(latent + residual * z[-1])
        stats.append((mean, var))
    return z, b[1:], stats


def model_loss(params, batch, target_z, y, c):
    """Section 3.2: scalar loss, and the parts that the update also reports."""
    z, b, _ = rollout(params, batch, c["residual"])
    steps, rows = batch["reward"].shape
    flat, _, _ = batch_norm_net(params["predictor"], np.concatenate(z[1:]))
    prediction = flat.reshape(steps, rows, -1)
    s, r, v, absolute = (np.zeros(rows) for _ in range(4))
    for t in range(steps):
        m = batch["mask"][t]
        s += m * cosine_distance(prediction[t], target_z[t])
        r += m * (head(params["reward"], b[t])[:, 0] - batch["reward"][t]) ** 2
        for q in critics(params["value"], z[t], batch["action"][t]):
            v += m * c["rho"] ** t * (q - y[t]) ** 2
            absolute += m * c["rho"] ** t * np.abs(q - y[t])
    s, r, v = (np.minimum(x, c["loss_clip"]) for x in (s, r, v))
    total = 1.0 * s + 0.5 * r + 0.1 * v
    return {
        "loss": np.sum(batch["weight"] * total) / rows,
        "similarity": s.mean(),
        "reward": r.mean(),
        "value": v.mean(),
        "priority": np.minimum(absolute, c["loss_clip"]),
        "z": z,
    }


def gradient(function, tree, step=1e-6):
    """Central differences of a scalar function of a tree of float64 arrays."""
    if isinstance(tree, dict):
        grads = {}
        for name in tree:
            grads[name] = gradient(
                lambda part, n=name: function(tree | {n: part}), tree[name], step
            )
        return grads
    grad = np.zeros_like(tree)
    for i in np.ndindex(tree.shape):
        moved = []
        for sign in (1, -1):
            changed = tree.copy()
            changed[i] += sign * step
            moved.append(function(changed))
        grad[i] = (moved[0] - moved[1]) / (2 * step)
    return grad


def leaves(tree, prefix=""):
    """Dotted names and arrays of a nested dictionary."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    found = {}
    for name, part in tree.items():
        found |= leaves(part, f"{prefix}.{name}" if prefix else name)
    return found


def clip_by_norm(grads, limit):
    """All gradients scaled so that their joint Euclidean norm is at most `limit`."""
    norm = np.sqrt(sum(np.sum(g**2) for g in grads.values()))
    factor = min(1.0, limit / norm)
    return {name: g * factor for name, g in grads.items()}, norm


def adam(g, m, v, count, rate, beta1=0.9, beta2=0.999, eps=1e-8):
    """Kingma and Ba: the change of a parameter, and the new moments; `count` starts at 1."""
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    change = -rate * (m / (1 - beta1**count)) / (np.sqrt(v / (1 - beta2**count)) + eps)
    return change, m, v
