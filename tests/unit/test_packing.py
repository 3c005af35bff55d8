"""What is packed comes back bit for bit, in a compiled function and outside; large leaves are left
alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ace.engine.packing import Packing

LIKE = {
    "flag": np.array([True, False, True]),
    "matrix": np.zeros((3, 4), np.float32),
    "number": np.float32(0),
    "step": np.int32(0),
    "wide": np.zeros((5, 2), np.float32),
}


def tree(*lead: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made = {
        name: rng.standard_normal((*lead, *np.shape(x))).astype(x.dtype) for name, x in LIKE.items()
    }
    made["step"] = rng.integers(-(2**31), 2**31, lead).astype(np.int32)
    made["matrix"][..., 0, 0] = np.nan
    made["matrix"][..., 0, 1] = 1e-42  # a number that arithmetic may take for zero
    return made


def equal(a: dict, b: dict) -> None:
    for name, x in a.items():
        y = np.asarray(b[name])
        assert (x.shape, x.dtype) == (y.shape, y.dtype), name
        assert x.tobytes() == y.tobytes(), name


def test_there_and_back_on_the_host() -> None:
    packing = Packing(LIKE, small=12)
    for lead in ((2,), (2, 3)):
        packed = packing.pack(tree(*lead))
        assert isinstance(packed.small, np.ndarray) and packed.small.shape == (*lead, 27)
        equal(tree(*lead), packing.unpack(packed))


def test_there_and_back_on_the_device_one_lane_at_a_time() -> None:
    packing = Packing(LIKE, small=10)
    packed = jax.jit(jax.vmap(packing.pack))(jax.tree.map(jnp.asarray, tree(2)))
    assert packed.small.shape == (2, 15) and [x.shape for x in packed.large] == [(2, 3, 4)]
    equal(tree(2), jax.jit(jax.vmap(packing.unpack))(packed))
    equal(tree(2), packing.unpack(jax.device_get(packed)))


def test_leaves_of_other_types_or_shapes_are_refused() -> None:
    packing = Packing(LIKE, small=12)
    for name, wrong in (("number", np.zeros(2)), ("matrix", np.zeros((2, 3, 5), np.float32))):
        with pytest.raises(TypeError, match="should be"):
            packing.pack(tree(2) | {name: wrong})


def test_a_tree_without_small_leaves_or_without_any() -> None:
    for like, small in (((), np.inf), ({"wide": LIKE["wide"]}, 3)):
        packing = Packing(like, small)
        made = jax.tree.map(lambda x: np.stack([x, x + 1]), like)
        packed = packing.pack(made)
        assert packed.small is None and len(packed.large) == len(jax.tree.leaves(like))
        for found in (packing.unpack(packed), jax.jit(packing.unpack)(packed)):
            assert jax.tree.structure(found) == jax.tree.structure(like)
            jax.tree.map(np.testing.assert_array_equal, found, made)


def test_what_another_program_packed_is_refused() -> None:
    packed = Packing(LIKE, small=12).pack(tree(2))
    for other in (Packing(LIKE, small=10), Packing((), np.inf), Packing(LIKE["wide"], np.inf)):
        with pytest.raises(TypeError, match="another program"):
            other.unpack(packed)
    with pytest.raises(TypeError, match="another program"):
        Packing(LIKE, small=12).unpack(Packing((), np.inf).pack(()))
