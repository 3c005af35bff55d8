"""Settings: validation names the field, dotted changes and dictionaries go there and back."""

import dataclasses
import json
import re
from typing import Literal

import jax
import pytest

from ace.settings.checks import from_dict, validate
from ace.settings.config import Config, ConfigError, Ramp, flatten, replace, settings

BAD = [
    ("env_steps", 0),
    ("env_steps", -5),
    ("action_repeat", 0),
    ("seed_steps", 0),
    ("seed_steps", 600_000),  # longer than the run
    ("eval_every", 0),
    ("eval_episodes", 0),
    ("workers", -2),
    ("env_timeout", 0),
    ("fault_limit", 0),
    ("net.latent", 0),
    ("net.mlp", -1),
    ("net.encoder", 0),
    ("net.belief", 0),
    ("plan.horizon", 0),
    ("kernels", "on"),
    ("env_steps", 10**30),  # no 32-bit number
    ("replay.capacity", 10**30),
    ("plan.iterations", 0),
    ("plan.population", 0),
    ("plan.elites", 0),
    ("plan.elite_reuse", 1.5),
    ("plan.policy_fraction", 1.1),
    ("plan.horizon_ramp.duration", -1.0),
    ("plan.std_ramp.duration", float("nan")),
    ("plan.temperature", -0.5),
    ("plan.temperature", float("inf")),
    ("plan.momentum", 1.01),
    ("plan.noise_beta", -1.0),
    ("plan.init_std", -0.1),
    ("plan.min_std", 3.0),  # above the largest
    ("plan.max_std", 0.01),  # below the smallest
    ("plan.act_noise", -1.0),
    ("learn.batch", 0),
    ("learn.learning_rate", -1e-3),
    ("learn.learning_rate", float("nan")),
    ("learn.discount", 1.2),
    ("learn.td_lambda", -0.1),
    ("learn.td_lambda", 1.1),
    ("learn.time_decay", 2.0),
    ("learn.beta1", 1.5),
    ("learn.beta2", -0.5),
    ("learn.grad_clip", -1.0),
    ("learn.loss_clip", -1.0),
    ("learn.value_weight", -0.1),
    ("learn.smoothing_std", -0.1),
    ("learn.target_momentum", 1.1),
    ("learn.target_period", 0),
    ("learn.updates_per_step", 0),
    ("learn.update_every", 0),
    ("learn.novelty_weight", -0.1),
    ("learn.novelty_power", -0.6),
    ("learn.novelty_ema", 1.1),
    ("learn.novelty_ramp.start", -1.0),
    ("replay.capacity", -10),
    ("replay.priority_power", 1.1),
    ("replay.importance_power", -0.1),
    ("replay.priority_floor", -1e-6),
    ("parity.policy_delay", 0),
    ("parity.bc_weight", -0.1),
]


def test_defaults_are_valid() -> None:
    validate(Config())


@pytest.mark.parametrize("name, value", BAD)
def test_a_bad_value_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        validate(replace(Config(), {name: value}))


def test_whole_numbers_in_place_of_floats_are_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"learn\.learning_rate"):
        validate(replace(Config(), {"learn.learning_rate": -1}))


@pytest.mark.parametrize(
    "changes",
    [
        {"plan.population": 32},
        {"plan.momentum": 1.0, "learn.td_lambda": 0.0, "learn.discount": 1.0},
        {"replay.capacity": 1},  # whether that holds segments is for the agent to say
        {"workers": 0},
        {"seed_steps": 6, "env_steps": 24, "action_repeat": 4},
        {"plan.horizon": 2},
        {"plan.horizon": 1},  # whether the working horizon fits is for agents that plan to say
        {"seed_steps": 1},  # and whether that is one
    ],
)
def test_values_at_the_edge_are_allowed(changes: dict) -> None:
    validate(replace(Config(), changes))


def test_replace_changes_only_what_it_names() -> None:
    base = Config()
    changed = replace(base, {"plan.horizon_ramp.duration": 7.0, "seed_steps": 9})
    a, b = flatten(base), flatten(changed)
    assert {k: b[k] for k in a if a[k] != b[k]} == {
        "plan.horizon_ramp.duration": 7.0,
        "seed_steps": 9,
    }
    assert flatten(base) == flatten(Config())
    whole = replace(base, {"learn.novelty_ramp": Ramp(0.25, 0.0)})
    assert whole.learn.novelty_ramp == Ramp(0.25, 0.0)


@pytest.mark.parametrize("name", ["nothing", "plan.nothing", "seed_steps.more", "plan.std_ramp.x"])
def test_replace_refuses_unknown_names(name: str) -> None:
    with pytest.raises(ConfigError, match=name.rsplit(".", 1)[-1]):
        replace(Config(), {name: 1})


def test_round_trip_through_json() -> None:
    config = replace(
        Config(),
        {"plan.horizon": 4, "learn.novelty_ramp.start": 0.125, "parity.importance": "none"},
    )
    assert from_dict(json.loads(json.dumps(dataclasses.asdict(config)))) == config
    assert config != Config()


def test_a_dictionary_of_another_version_is_refused() -> None:
    values = dataclasses.asdict(Config())
    values["learn"]["surprise"] = 1
    with pytest.raises(ConfigError, match="surprise"):
        from_dict(values)


def test_a_field_that_is_younger_than_the_file_has_its_default() -> None:
    changed = replace(Config(), {"plan.iterations": 3, "plan.horizon_ramp.start": 3.0})
    values = dataclasses.asdict(changed)
    del values["plan"]["horizon"], values["fault_limit"], values["plan"]["horizon_ramp"]["duration"]
    del values["own"], values["kernels"], values["plan"]["planner"]
    assert from_dict(values) == changed


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("plan",), 3),
        (("plan", "horizon"), "6"),
        (("plan", "horizon"), 6.0),
        (("plan", "horizon"), True),
        (("plan", "horizon"), -6),
        (("plan", "horizon_ramp"), None),
        (("plan", "variant"), "other"),
        (("learn", "learning_rate"), [1]),
        (("learn", "learning_rate"), float("nan")),
        (("seed_steps",), 10**30),
    ],
)
def test_a_dictionary_with_bad_values_is_refused(path: tuple, value: object) -> None:
    values = dataclasses.asdict(Config())
    node = values
    for name in path[:-1]:
        node = node[name]
    node[path[-1]] = value
    with pytest.raises(ConfigError, match=path[-1]):
        from_dict(values)


@settings
@dataclasses.dataclass(frozen=True)
class Own:
    """An agent's own section."""

    heat: float = 0.5
    layers: int = 2
    widths: tuple[int, ...] = (8, 8)
    mode: Literal["soft", "hard"] = "soft"


def test_an_agents_own_section_goes_there_and_back() -> None:
    config = Config(own=Own(-1.0, 3, (4,), "hard"))
    values = json.loads(json.dumps(dataclasses.asdict(config)))
    assert values["own"] == {"heat": -1.0, "layers": 3, "widths": [4], "mode": "hard"}
    assert from_dict(values, Own) == config
    assert from_dict({}, Own).own == from_dict({"own": None}, Own).own == Own()
    assert from_dict({}).own is None
    assert replace(config, {"own.layers": 5}).own.layers == 5


@pytest.mark.parametrize(
    ("values", "own", "name"),
    [
        ({"heat": "x"}, Own, "own.heat"),
        ({"heat": float("nan")}, Own, "own.heat"),
        ({"cold": 1.0}, Own, "own.cold"),
        ({"widths": 3}, Own, "own.widths"),
        ({"mode": "other"}, Own, "own.mode"),
        (3, Own, "own"),
        ({"heat": 1.0}, None, "own"),
    ],
)
def test_a_bad_section_of_an_agent_is_refused(values: object, own: type | None, name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(name)):
        from_dict({"own": values}, own)


def test_an_agents_own_floats_are_leaves() -> None:
    config = Config(own=Own(0.25))
    assert len(jax.tree.leaves(config)) == len(jax.tree.leaves(Config())) + 1
    structure = jax.tree.structure(config)
    assert jax.tree.structure(replace(config, {"own.heat": 0.5})) == structure
    assert jax.tree.structure(replace(config, {"own.layers": 3})) != structure


def test_a_section_with_types_as_strings_is_refused() -> None:
    made = dataclasses.make_dataclass("Later", [("heat", "float", 0.5)], frozen=True)
    with pytest.raises(TypeError, match="__future__"):
        settings(made)


@pytest.mark.parametrize(
    ("ramp", "agent_step", "value"),
    [
        (Ramp(2.0, 10.0), 0, 2.0),
        (Ramp(2.0, 10.0), 5, 4.0),
        (Ramp(2.0, 10.0), 99, 6.0),
        (Ramp(2.0, 10.0, after_seed=True), 100, 2.0),
        (Ramp(2.0, 10.0, after_seed=True), 105, 4.0),
        (Ramp(2.0, 0.0), 0, 2.0),
        (Ramp(2.0, 0.0), 1, 6.0),
    ],
)
def test_a_ramp_goes_from_its_start_to_the_final_value(
    ramp: Ramp, agent_step: int, value: float
) -> None:
    assert float(ramp.at(6.0, agent_step, 100)) == pytest.approx(value)


def test_floats_may_differ_between_lanes_and_nothing_else() -> None:
    """A float is a leaf of the pytree; what shapes the program belongs to its structure."""
    base = Config()
    flat = flatten(base)
    leaves = {
        ".".join(k.name for k in path) for path, _ in jax.tree_util.tree_flatten_with_path(base)[0]
    }
    shaping = {
        "plan.population_decay",
        "plan.elite_reuse",
        "plan.policy_fraction",
        "parity.bc_weight",
    }
    assert leaves == {k for k, v in flat.items() if isinstance(v, float)} - shaping
    same = jax.tree.structure(replace(base, {"learn.td_lambda": 0.9}))
    assert same == jax.tree.structure(base)
    assert jax.tree.structure(replace(base, {"plan.horizon": 5})) != jax.tree.structure(base)
