"""The faster forms of the method's functions (`ace.engine.fused`), interpreted, against the plain
ones: layers and losses one by one, and what is said about the kernels in use."""

# pyright: reportCallIssue=false

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

import ace.method
from ace.agents import ace as agent
from ace.engine import fused, kernels
from ace.engine.kernels import common
from ace.method import learner, model, nets
from ace.method.replaceable import replaced
from ace.method.types import Batch, Lane
from ace.planners import icem
from ace.settings.config import Config, replace

F = jnp.float32


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Run the kernels without a GPU."""
    monkeypatch.setattr(common, "INTERPRET", True)


def traced(function: Callable, table: Any, *args: Any) -> tuple[set[str], Callable]:
    """Names of the kernels in a program that is made with a table, and a call of it."""

    def with_forms(*args: Any) -> Any:
        with replaced(table):
            return function(*args)

    def walk(jaxpr: Any) -> Iterator[str]:
        for equation in jaxpr.eqns:
            if equation.primitive.name == "pallas_call":
                yield equation.params["name"]
            for inner in jaxprs_in_params(equation.params):
                yield from walk(inner)

    program = jax.jit(with_forms).trace(*args)
    return set(walk(program.jaxpr.jaxpr)), lambda: program.lower().compile()(*args)


def same(got: Any, wanted: Any, tolerance: float) -> None:
    """Every leaf, by the size of its largest number."""
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        scale = float(jnp.abs(other).max()) + 1e-6
        one, other = (np.asarray(x, np.float32) / scale for x in (one, other))
        np.testing.assert_allclose(one, other, atol=tolerance)


# The table


def replaceables() -> list[Any]:
    """Every function of the method that may be replaced."""
    found = []
    for info in pkgutil.iter_modules(ace.method.__path__):
        module = importlib.import_module(f"ace.method.{info.name}")
        found += [
            x
            for x in vars(module).values()
            if hasattr(x, "plain") and x.plain.__module__ == module.__name__
        ]
    return found


def test_every_replaceable_function_has_a_faster_form_and_a_name_of_its_own() -> None:
    names = [function.name for function in replaceables()]
    assert len(names) == len(set(names)) >= 20
    assert set(names) == set(fused.TABLE)


@pytest.mark.parametrize("function", replaceables(), ids=lambda f: f.name)
def test_a_faster_form_has_the_signature_of_the_plain_one(function: Any) -> None:
    plain, fast = (inspect.signature(f) for f in (function.plain, fused.TABLE[function.name]))
    assert list(fast.parameters.values()) == list(plain.parameters.values())
    assert inspect.signature(function) == plain


def test_forms_are_chosen_by_whoever_traces() -> None:
    p, x = {"w": jnp.eye(2), "b": jnp.zeros(2)}, jnp.ones(2)
    with replaced({"nets.linear": lambda p, x: 7 * x}):
        assert nets.linear(p, x)[0] == 7
        with replaced({}):
            assert nets.linear(p, x)[0] == 1
        assert nets.linear(p, x)[0] == 7 and nets.linear.plain(p, x)[0] == 1
    assert nets.linear(p, x)[0] == 1


def test_sizes_of_latents() -> None:
    sizes = {8: 16, 16: 16, 50: 64, 64: 64, 100: 128, 128: 128, 130: 144, 200: 208}
    assert {size: fused.round_latent(size) for size in sizes} == sizes


# Layers


def test_gru_kernels_are_the_plain_gru() -> None:
    rng = np.random.default_rng(0)
    shapes = {"wi": (20, 384), "wh": (128, 384)}
    p: Any = {k: jnp.asarray(rng.standard_normal(s) / 5, F) for k, s in shapes.items()}
    p["norm"] = {k: jnp.asarray(rng.standard_normal((3, 128)), F) for k in ("scale", "bias")}
    x, b, d = (jnp.asarray(rng.standard_normal((24, n)), F) for n in (20, 128, 128))

    def both() -> tuple:
        out, gradient = jax.vjp(nets.ln_gru, p, x, b)
        first, gradient_first = jax.vjp(lambda p, x: nets.ln_gru(p, x, None), p, x)
        return out, gradient(d), first, gradient_first(d)

    names, fast = traced(both, fused.TABLE)
    none, plain = traced(both, {})
    assert names == {"gru", "gru_gradient"} and not none
    same(fast(), plain(), 2e-6)


def test_layers_that_learn_are_those_of_the_plain_path() -> None:
    rng = np.random.default_rng(0)
    into, mid, out = (nets.linear_init(rng, *size) for size in ((64, 128), (128, 128), (128, 3)))
    for p in (into, mid, out):  # matrices in bf16, biases in float32, as in an update
        p["w"] = jnp.asarray(np.stack([p["w"], 0.5 * p["w"]]), jnp.bfloat16)
        p["b"] = jnp.asarray(rng.standard_normal((2, p["b"].size)) / 4, F)
    x = jnp.asarray(rng.standard_normal((2, 48, 64)), jnp.bfloat16)

    def mlp(into, mid, out, x) -> jax.Array:
        lanes = jax.vmap(lambda i, m, o, x: nets.dense_out(m, o, nets.dense_elu(i, x)))
        return jnp.sin(lanes(into, mid, out, x)).sum()

    # The value by itself comes out of the two kernels, the gradient out of the layers' parts.
    args, results = (into, mid, out, x), []
    for function, wanted in (
        (mlp, {"widen", "narrow"}),
        (jax.grad(mlp, (0, 1, 2, 3)), {"elu", "elu_gradient"}),
    ):
        names, fast = traced(function, fused.TABLE, *args)
        none, plain = traced(function, {}, *args)
        assert names == wanted and not none
        results.append((fast(), plain()))
    np.testing.assert_allclose(*results[0], rtol=1e-2, atol=0.1)
    same(*results[1], 0.03)


@pytest.mark.parametrize(
    ("lanes", "given", "size"),
    # Programs of few rows and of many; 38 actions are padded to 48, which is no power of two.
    [(1, False, 3), (1, True, 38), (100, False, 38), (100, True, 3)],
)
def test_plans_imagine_the_same_with_kernels(lanes: int, given: bool, size: int) -> None:
    sizes = {"net.mlp": 128, "net.encoder": 128, "plan.horizon": 2}
    config = replace(Config(), {**sizes, "precision": "bf16"})
    rng = np.random.default_rng(0)
    params, stats = model.init(rng, config, 5, size)
    stats = jax.tree.map(lambda x: x + rng.uniform(0, 1, x.shape).astype("f"), stats)
    config = replace(config, {"repair.step_stats": 1.0, "repair.residual": 0.7})
    z = jnp.asarray(rng.standard_normal(50), jnp.bfloat16)
    b = jnp.asarray(rng.uniform(-1, 1, 128), jnp.bfloat16) if given else None
    actions = jnp.asarray(rng.uniform(-1, 1, (2, 72, size)), F)

    def imagine(z: jax.Array) -> tuple:
        with kernels.lanes(lanes):
            p = model.cast(config, params)
            norms = model.planning_norms(config, p, stats)
            free = model.imagine(config, p, norms, z, b, actions)
            return *free, *model.imagine_policy(config, p, norms, z, b, actions)

    wide = jnp.pad(z, (0, 14))  # a latent of 64, as the faster forms have it
    names, fast = traced(imagine, fused.TABLE, wide)
    none, plain = traced(imagine, {}, z)
    narrow = {"narrow"} if size == 3 else set()  # it takes powers of two
    assert names == {"step", "widen"} | narrow and not none
    for x, y in zip(fast(), plain(), strict=True):
        assert x.dtype == y.dtype and not np.any(x[..., y.shape[-1] :])
        x, y = x[..., : y.shape[-1]].astype(F), y.astype(F)
        np.testing.assert_allclose(x, y, rtol=0.05, atol=0.05)


# Losses


def small(changes: dict[str, Any]) -> Config:
    """Settings with the narrowest networks that all kernels take."""
    sizes = {"net.mlp": 128, "net.encoder": 128, "net.belief": 128, "learn.batch": 64}
    return replace(Config(), sizes | {"plan.horizon": 2} | changes)


def test_the_gradients_of_an_update_are_made_by_kernels() -> None:
    """Those of model, critics and policy, and only on the fast path; `test_fused_update.py`
    compares their numbers."""
    config = small({"net.latent": 8, "plan.horizon": 3, "precision": "f32"})
    rng = np.random.default_rng(0)
    params, _ = model.init(rng, config, 5, 2)
    params = jax.tree.map(lambda x: jnp.asarray(x + 0.1 * rng.standard_normal(x.shape), F), params)
    model_params, policy_params = learner.split(params)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape), F)

    batch = Batch(
        obs=draw(4, 64, 5),
        action=jnp.tanh(draw(3, 64, 2)),
        reward=draw(3, 64),
        continues=jnp.ones((3, 64)),
        mask=jnp.ones((3, 64)).at[2:, :9].set(0.0),
        weight=jnp.abs(draw(64)),
        index=jnp.arange(64),
    )
    targets, y, eps = draw(3, 64, 8), draw(3, 64), draw(2, 4, 64, 2)
    lane = Lane(jnp.uint32(0), config, jnp.ones(2, bool), ())

    def gradients(targets: jax.Array) -> tuple:
        grad = jax.grad(learner.model_loss, has_aux=True)
        grads, aux = grad(model_params, config, batch, targets, y)
        online = model.encode(model.cast(config, params), batch.obs)
        of_policy = jax.grad(learner.policy_loss_of, has_aux=True)
        policy, _ = of_policy(policy_params, lane, model_params, aux["z"], online, batch, eps)
        return grads, policy

    both = {"norm_elu", "norm_tanh", "elu", "norm_elu_head", "elu_head", "gru", "batch_norm"}
    names, _ = traced(gradients, fused.TABLE, jnp.pad(targets, ((0, 0), (0, 0), (0, 8))))
    none, _ = traced(gradients, {}, targets)
    assert names == both | {f"{name}_gradient" for name in both} and not none


# The optimiser


def leaves_of(sizes: tuple[str, ...]) -> Any:
    """Parameters with leaves that are joined into one vector, with others, or both."""
    rng, shapes = np.random.default_rng(0), {"small": (7, 3), "large": (91, 91)}
    assert 91 * 91 > fused.SMALL
    return {
        name: {
            "w": jnp.asarray(rng.standard_normal(shapes[size]), F),
            "bias": jnp.asarray(rng.standard_normal(shapes[size]), F),  # does not decay
        }
        for name, size in zip(("encoder", "value", "cell"), sizes, strict=False)
    }


MIXED = (("small", "large", "small"), ("small", "small", "small"), ("large", "large", "large"))


@pytest.mark.parametrize("sizes", MIXED)
@pytest.mark.parametrize("case", ["moved", "inactive", "not a number"])
def test_a_step_of_the_optimiser_with_joined_leaves(sizes: tuple[str, ...], case: str) -> None:
    learn = replace(Config(), {"learn.weight_decay": 0.3, "learn.grad_clip": 0.5}).learn
    params = leaves_of(sizes)
    fresh: Any = learner.adam(learn).init(params)
    clip, moments, *rest = fresh
    mu, nu = (jax.tree.map(lambda x: x + 0.01, m) for m in (moments.mu, moments.nu))
    opt = (clip, moments._replace(mu=mu, nu=nu, count=moments.count + 3), *rest)
    grads = jax.tree.map(lambda x: 0.1 * jnp.sin(9 * x), params)
    if case == "not a number":
        grads["value"]["bias"] = grads["value"]["bias"].at[1, 2].set(jnp.nan)
    args = (learn, 2e-3, grads, opt, params, jnp.bool_(case != "inactive"))
    got, wanted = (jax.jit(f)(*args) for f in (fused.optimise, learner.optimise.plain))
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7)
    assert got[3] == (case == "moved")
    for x, y in zip(jax.tree.leaves(got[0]), jax.tree.leaves(params), strict=True):
        assert np.all(x != y) if case == "moved" else np.all(x == y)


@pytest.mark.parametrize("sizes", MIXED)
def test_the_target_follows_with_joined_leaves(sizes: tuple[str, ...]) -> None:
    learn, params = Config().learn, leaves_of(sizes)
    old = {name: jax.tree.map(jnp.negative, params[name]) for name in ("encoder", "value")}
    both = [jax.jit(f) for f in (fused.move_target, learner.move_target.plain)]
    for count, moved, moves in ((0, True, True), (1, True, False), (0, False, False)):
        got, wanted = (f(learn, jnp.int32(count), old, params, jnp.bool_(moved)) for f in both)
        assert got.keys() == old.keys()
        same(got, wanted, 1e-7)
        for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(old), strict=True):
            assert np.any(x != y) == moves


# What is said about the kernels


def report_of(changes: dict[str, Any]) -> kernels.Report:
    """What a plan uses, found out while it is traced."""
    plan = {"plan.population": 48, "plan.elites": 8, "plan.iterations": 1}
    config = small({"precision": "bf16"} | plan | changes)
    part = agent.AGENT.acting_part(learner.init(config, 0, (5, 2)))
    lane = Lane(jnp.uint32(0), config, jnp.ones(2, bool), icem.PLANNER.constants(config))
    report = kernels.Report()

    def act(lane: Lane, part: Any, obs: jax.Array) -> Any:
        memory, first, step = agent.memory(config, 2), jnp.bool_(True), jnp.int32(0)
        return agent.act(lane, part, memory, obs, first, step, jax.random.key(0), True)

    with replaced(fused.TABLE), kernels.reporting(report):
        jax.eval_shape(act, lane, part, np.zeros(5, np.float32))
    return report


@pytest.mark.parametrize("latent", [50, 100])
def test_the_models_step_is_a_kernel_for_the_papers_latents(latent: int) -> None:
    report = report_of({"net.latent": latent})
    assert {"dynamics", "layers", "rows"} <= report.used and "dynamics" not in report.unused()
    assert "in use: dynamics" in report.line()


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"net.latent": 200}, "a latent of 208; it takes 16, 32, 64 or 128"),
        ({"net.belief": 64}, "a belief of 64"),
        ({"precision": "f32"}, "float32; it computes in bfloat16"),
    ],
)
def test_a_kernel_that_does_not_fit_says_why(changes: dict[str, Any], why: str) -> None:
    report = report_of(changes)
    assert "dynamics" not in report.used and why in report.unused()["dynamics"]
    assert f"not dynamics: {why}" in report.line()


def test_without_a_card_the_report_says_so(monkeypatch) -> None:
    monkeypatch.setattr(common, "INTERPRET", False)
    report = report_of({})
    assert not report.used and "in use: none" in report.line()
    assert set(report.unused().values()) == {"there is no NVIDIA GPU"}


def test_reports_are_of_what_is_traced_inside() -> None:
    outer, inner = kernels.Report(), kernels.Report()
    with kernels.reporting(outer):
        with kernels.reporting(inner):
            assert kernels.fits(kernels.rows, 64, 128)
        assert not kernels.fits(kernels.rows, 64, 100)
        assert kernels.fits(kernels.gru, 64, 128)
    kernels.fits(kernels.columns, 64, 64)
    assert inner.used == {"rows"} and not inner.unused()
    assert outer.used == {"gru"} and list(outer.unused()) == ["rows"]
    with kernels.reporting(outer):  # what fits once is in use
        kernels.fits(kernels.rows, 64, 128)
    assert outer.used == {"gru", "rows"} and not outer.unused()
