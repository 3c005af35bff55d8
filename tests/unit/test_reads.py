"""What an agent and its planner say that they read is all that they read: a name that they forget
would refuse a setting that works, and would take curves of other settings for the same."""

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
import pytest

from ace.agents import AGENTS
from ace.engine.compile import Function
from ace.engine.lanes import LaneSetup
from ace.engine.program import Program
from ace.envs import get_spec
from ace.settings import config as settings
from ace.settings.config import Config
from ace.settings.presets import resolve

ROOT = Path(inspect.getfile(settings)).parents[1]
LEARNING = tuple(str(ROOT / room) for room in ("agents", "method", "planners", "replay"))
SECTIONS = {n: type(part) for n, part in vars(Config()).items() if hasattr(part, "__dict__")}
TASK = "probe/plane"  # it has a goal
# Read where it makes no difference: the first is replaced by TCRL's own schedule of its noise,
# and it samples uniformly and uses no importance weights.
WITHOUT_EFFECT = {"tcrl": {"learn.smoothing_std", "replay.importance_power"}}


@contextmanager
def recorded() -> Iterator[set[str]]:
    """The settings that files of learning read, as dotted names."""
    found: set[str] = set()

    def watched(section: str):
        def read(self, name: str):
            caller = sys._getframe(1).f_code.co_filename
            if not name.startswith("_") and caller.startswith(LEARNING):
                found.add(f"{section}.{name}")
            return object.__getattribute__(self, name)

        return read

    with pytest.MonkeyPatch.context() as patch:
        for section, kind in SECTIONS.items():
            patch.setattr(kind, "__getattribute__", watched(section))
        yield found


def config_of(name: str, changes: dict, preset: str = "debug") -> Config:
    agent, spec = AGENTS[name], get_spec(TASK)
    own = agent.settings and agent.settings()
    small = {"learn.batch": 4, "replay.capacity": 0, "eval_episodes": 1, "precision": "f32"}
    small |= {f"net.{part}": 8 for part in ("latent", "mlp", "encoder", "belief")}
    found = resolve(preset, TASK, spec, agent.defaults, agent.overrides, own)
    return settings.replace(found, small | changes)


def stop_after_tracing(function: Function, *args) -> None:
    function.jitted.trace(*args)
    raise StopIteration


def traced(name: str, config: Config) -> None:
    """Trace the acting and the update of an agent, without compiling them."""
    spec = get_spec(TASK)
    program = Program(name, [LaneSetup(TASK, 0, config, (spec.obs_size, spec.action_size))])
    obs = np.zeros((1, spec.obs_size), np.float32)
    state = program.init_state(obs, 64)
    program.send(0, obs)
    for function, args in program.parts(state).values():
        function.jitted.trace(*args)
    episode = np.zeros((1, 1, spec.obs_size), np.float32)
    acting = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), program.acting_shapes())
    player = program.player("agent" if "agent" in program.agent.plays else "policy", 1)
    player.begin(acting, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Function, "__call__", stop_after_tracing)
        with pytest.raises(StopIteration):
            player.act(episode, 0)


CASES = [
    *((name, {}, "debug") for name, agent in AGENTS.items() if not agent.variant_of),
    *(("ace", {"plan.planner": name}, "debug") for name in ("cem", "policy")),
    ("tdmpc", {"plan.planner": "icem"}, "debug"),
    ("ace", {}, "released"),
    ("ace", {}, "paper"),
    ("icem", {}, "debug"),
]


@pytest.mark.parametrize(("name", "changes", "preset"), CASES)
def test_all_that_is_read_is_said(name: str, changes: dict, preset: str) -> None:
    config = config_of(name, changes, preset)
    with recorded() as read:
        traced(name, config)
    assert len(read) > 3
    agent, planner = AGENTS[name], config.plan.planner
    assert {s for s in read if not agent.uses(s, planner)} == WITHOUT_EFFECT.get(name, set())


def test_what_is_not_said_is_found(monkeypatch) -> None:
    agent = AGENTS["sac"]
    kept = tuple(s for s in agent.sections if s not in ("learn", "learn.discount"))
    monkeypatch.setitem(AGENTS, "sac", agent.__class__(**{**vars(agent), "sections": kept}))
    with recorded() as read:
        traced("sac", config_of("sac", {}))
    assert "learn.discount" in {s for s in read if not AGENTS["sac"].uses(s, "icem")}
