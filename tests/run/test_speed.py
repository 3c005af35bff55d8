"""`ace speed`: the work is counted right, and the command measures every part."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from ace import cli
from ace.engine.lanes import LaneSetup
from ace.engine.program import Program
from ace.envs.api import EnvSpec
from ace.run import request
from ace.settings.config import replace
from ace.settings.presets import resolve
from ace.tools import speed
from tests.run.helpers import QUICK, SHORT_FLAGS


def flops(function, *args) -> float:
    return speed.count_flops(jax.make_jaxpr(function)(*args).jaxpr)


def test_products_are_counted_wherever_they_stand() -> None:
    x, w = jnp.ones((3, 4, 5)), jnp.ones((5, 7))
    assert flops(jnp.matmul, x, w) == 2 * 3 * 4 * 5 * 7
    assert flops(jax.jit(jax.vmap(jnp.matmul, (0, None))), x, w) == 2 * 3 * 4 * 5 * 7

    def loop(x):
        return jax.lax.scan(lambda c, _: (c @ c, None), x, None, length=6)[0]

    assert flops(loop, jnp.ones((8, 8))) == 6 * 2 * 8**3

    def several(x, count, rare):
        def update(_, x):
            return jax.lax.while_loop(lambda c: c[0, 0] > rare, lambda c: c @ c, x @ x)

        return jax.lax.fori_loop(0, count, update, x)

    assert flops(several, jnp.ones((8, 8)), 3, 2.0) == 2 * 8**3  # one update, no rare work
    both = flops(jax.grad(lambda w: jnp.sum(x @ w)), w)  # only the product that the gradient needs
    assert both == 2 * 2 * 3 * 4 * 5 * 7


def test_work_of_the_method_by_hand() -> None:
    """The reward head of all candidates, counted by hand, is most of a plan's widest layers."""
    spec = EnvSpec("dmc/cheetah-run", 24, 6, 1000, True)
    config = replace(resolve("default", "dmc/cheetah-run", spec), {"precision": "f32"})
    program = Program("ace", [LaneSetup("dmc/cheetah-run", 0, config, (24, 6))])
    bench = speed.Bench(program, 100)
    function, args = program.parts(bench.state)["plan"]
    plan = flops(function.traced, *args)
    sizes = (256, 204, 163, 130, 104, 83)
    candidates = sum(n + n // 2 + 8 for n in sizes)
    rolled = sum(n + 8 for n in sizes)  # proposals are rolled out once, when they are made
    z, a, b, m, h = 50, 6, 128, 512, 6
    cell = (z + a) * 3 * b + b * 3 * b
    projector, reward = b * m + m * z, b * m + m * m + m
    value, policy = 2 * ((z + a) * m + m * m + m), z * m + m * m + m * a
    rollouts = rolled * h * (cell + projector + reward) + candidates * (value + policy)
    proposals = 128 * h * (policy + cell + projector + reward)
    encoder = 24 * 256 + 256 * z
    assert plan == 2 * (rollouts + proposals + encoder)


@pytest.fixture
def hasty(monkeypatch) -> None:
    """Few calls: what is measured matters here, and not how well."""
    timed = speed.timed
    monkeypatch.setattr(speed, "RUN_WARM_UP", 5)
    monkeypatch.setattr(speed, "WARM_UP", 1)
    monkeypatch.setattr(speed, "timed", lambda call, repeats: timed(call, min(repeats, 3)))


def test_the_command_measures_everything(tmp_path, capsys, hasty, monkeypatch) -> None:
    out, cached, compile_all = tmp_path / "speed.json", [0], speed.compile_all

    def compiled(program: Program, capacity: int) -> float:
        seconds = compile_all(program, capacity)
        folder = Path(jax.config.jax_compilation_cache_dir)  # type: ignore[attr-defined]
        cached.append(len(list(folder.glob("*-cache"))))
        return seconds

    monkeypatch.setattr(speed, "compile_all", compiled)
    argv = ["speed", "--lanes", "2", "--preset", "debug", "--task", "probe/point"]
    cli.main([*argv, "--steps", "3", "--json", str(out), *SHORT_FLAGS, "--profile"])
    found = json.loads(out.read_text())
    (row,) = found["lanes"]
    assert row["lanes"] == 2 and found["limit_tflops"] > 0
    for part in ("plan", "update"):
        assert row[part]["ms_low"] <= row[part]["ms"] <= row[part]["ms_high"]
        rate = 2 * row[part]["gflop"] / row[part]["ms"]  # lanes, GFLOP a lane, in GFLOP per ms
        assert row[part]["tflops"] == pytest.approx(rate)
        assert row[part]["kernels"]
    whole = row["end_to_end"]
    assert whole["lane_steps_per_s"] > 0 and whole["step_beside_evaluation"]["ms"] > 0
    assert row["compile_s_cached"] > 0 and row["compile_s_cold"] > 0
    assert cached[0] < cached[1] == cached[2]  # the second time, all is in the cache
    assert "lane-steps/s" in capsys.readouterr().out


def test_an_evaluation_may_be_over_at_once(tmp_path, hasty) -> None:
    task = ("tests.envs.bad_envs:Short", "--seeds", "0", "1", *QUICK)
    run = request.plan_run([*task, "--preset", "debug", "--quiet", "--run", str(tmp_path)])
    _, found = speed.measure_run(run, Program(run.agent, run.setups), 3)
    # What was measured lasted from an evaluation's beginning to its end.
    alone, beside = found["step"]["ms"], found["step_beside_evaluation"]["ms"]
    assert alone > 0 and beside > 0 and found["steps_a_round_of_evaluation"] >= 4
    assert 0 < found["lane_steps_per_s"] < 1e6
