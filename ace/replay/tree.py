"""Priorities as the leaves of a 64-ary tree of sums and maxima: drawing and updating them costs
the same however many are in use."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

FAN = 64


class Tree(NamedTuple):
    """Sums and maxima of the leaves, level by level; level 0 are the leaves themselves."""

    sums: tuple[jax.Array, ...]
    maxima: tuple[jax.Array, ...]  # from level 1 on


def build_tree(leaves: jax.Array) -> Tree:
    """The tree over priorities [n]."""

    def fill(x: jax.Array) -> jax.Array:
        return jnp.pad(x, (0, -x.shape[0] % FAN))

    sums, maxima = [fill(leaves)], [fill(leaves)]
    while sums[-1].shape[0] > FAN:
        sums.append(fill(sums[-1].reshape(-1, FAN).sum(-1)))
        maxima.append(fill(maxima[-1].reshape(-1, FAN).max(-1)))
    return Tree(tuple(sums), tuple(maxima[1:]))


def set_leaves(tree: Tree, index: jax.Array, value: jax.Array) -> Tree:
    """Write leaves [M] and update the nodes above; of two values for a leaf the larger wins."""
    leaves = tree.sums[0].at[index].set(0.0).at[index].max(value)
    sums, maxima = [leaves], []
    largest = leaves
    for old_sum, old_max in zip(tree.sums[1:], tree.maxima, strict=True):
        below = index // FAN
        children = sums[-1].reshape(-1, FAN)[below]
        tops = largest.reshape(-1, FAN)[below]
        sums.append(old_sum.at[below].set(children.sum(-1)))
        largest = old_max.at[below].set(tops.max(-1))
        maxima.append(largest)
        index = below
    return Tree(tuple(sums), tuple(maxima))


def total(tree: Tree) -> jax.Array:
    """Sum of all leaves."""
    return tree.sums[-1].sum()


def largest(tree: Tree) -> jax.Array:
    """The largest leaf."""
    return (tree.maxima[-1] if tree.maxima else tree.sums[0]).max()


def draw_leaves(tree: Tree, uniform: jax.Array) -> jax.Array:
    """Indices [B] with probability in proportion to the leaves, from uniform draws in [0, 1)."""
    rest = uniform * total(tree)
    node = jnp.zeros(uniform.shape, jnp.int32)
    for level in reversed(tree.sums):
        children = level.reshape(-1, FAN)[node]
        child, rest = _descend(children, rest)
        node = node * FAN + child
    return node


def _descend(children: jax.Array, rest: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The child that each draw falls into, and the remainder of the draw inside it.

    The cumulative sum is a product with a triangular matrix, which is far cheaper than a scan.
    Rounding may carry a draw past the end: it then takes the last child with a positive weight.
    """
    upper = jnp.triu(jnp.ones((FAN, FAN)))
    cumulative = jnp.matmul(children, upper, precision=jax.lax.Precision.HIGHEST)
    filled = children > 0
    last = FAN - 1 - jnp.argmax(filled[:, ::-1], -1)
    hit = filled & (cumulative > rest[:, None])
    child = jnp.where(hit.any(-1), jnp.argmax(hit, -1), last).astype(jnp.int32)

    def pick(x: jax.Array) -> jax.Array:
        return jnp.take_along_axis(x, child[:, None], -1)[:, 0]

    below = jnp.maximum(rest - (pick(cumulative) - pick(children)), 0.0)
    return child, jnp.minimum(below, pick(children))
