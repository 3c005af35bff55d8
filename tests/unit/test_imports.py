"""Imports go one way, rooms know only what they may, and every setting is read somewhere: all from
the source alone, imports inside functions included."""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ace.settings.config import Config, flatten

ROOT = Path(__file__).parents[2] / "ace"
LAYERS = [
    {"settings"},
    {"method", "replay"},
    {"planners"},
    {"agents"},
    {"engine"},
    {"run"},
    {"tools"},
    {"bench"},
    {"cli"},
    {"__main__"},
]
BESIDE = {"envs", "__init__"}  # environments serve any room that may step them; the door is lazy
WITH_ENVS = {
    "settings",
    "engine",
    "run",
    "tools",
    "bench",
    "cli",
}  # presets depend on a task's spec


def modules() -> dict[str, Path]:
    """Dotted names below ace and their files."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__") or "__init__"] = path
    return found


MODULES = modules()


@functools.cache
def trees() -> dict[str, ast.Module]:
    """The source of every module, read when a test asks and not while tests are collected."""
    return {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def room(name: str) -> str:
    return name.split(".")[0]


def imported(tree: ast.AST, where: str = "") -> set[str]:
    """Absolute names of imported modules; `from ace import x` counts as `ace.x`, and so does
    `importlib.import_module("ace.x")`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in {where}"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            of_ace = {n for n in inside if n.removeprefix("ace.") in MODULES}
            found |= of_ace or {str(node.module)}
        elif isinstance(node, ast.Call) and "import" in ast.unparse(node.func):
            found |= {str(a.value) for a in node.args if isinstance(a, ast.Constant)}
    return found


def ours(name: str) -> set[str]:
    """Names below ace that a module imports from other rooms."""
    inside = {n.removeprefix("ace.") for n in imported(trees()[name], name) if n.startswith("ace.")}
    return {n for n in inside if room(n) != room(name)}


def layer(name: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if name in names)


def test_every_module_has_a_place() -> None:
    assert {room(name) for name in MODULES} == set().union(*LAYERS, BESIDE)


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_one_way(name: str) -> None:
    mine, used = room(name), ours(name)
    if mine == "__init__":
        return  # see below
    if mine == "envs":
        assert not used
        return
    if mine not in WITH_ENVS:
        assert "envs" not in {room(n) for n in used}
    layered = {n for n in used if room(n) not in BESIDE}
    assert not {n for n in layered if layer(room(n)) > layer(mine)}


@pytest.mark.parametrize("name", [n for n in MODULES if room(n) == "planners"])
def test_planners_know_noise_and_types_of_the_method_and_no_model(name: str) -> None:
    others = {n for n in ours(name) if room(n) != "settings"}
    assert others <= {"method.noise", "method.types"}


ABOVE_AGENTS = ("engine", "run", "tools", "bench", "cli", "__init__")


@pytest.mark.parametrize("name", [n for n in MODULES if room(n) in ABOVE_AGENTS])
def test_what_runs_agents_knows_only_their_contracts(name: str) -> None:
    """The tables and their contracts, and no single agent or planner."""
    known = {n for n in ours(name) if room(n) in ("agents", "planners")}
    assert known <= {"agents", "planners"}


@pytest.mark.parametrize("name", [n for n in MODULES if room(n) in ("method", "replay")])
def test_the_method_does_not_know_the_replay_and_the_replay_only_its_types(name: str) -> None:
    others = {n for n in ours(name) if room(n) != "settings"}
    assert others <= ({"method.types"} if room(name) == "replay" else set())


@pytest.mark.parametrize("name", [n for n in MODULES if room(n) == "envs"])
def test_environments_do_not_know_jax(name: str) -> None:
    assert not {n for n in imported(trees()[name]) if n.split(".")[0] in ("jax", "optax")}


def test_only_presets_know_environments_among_the_settings() -> None:
    assert {n for n in MODULES if room(n) == "settings" and "envs" in map(room, ours(n))} == {
        "settings.presets"
    }


def test_importing_the_package_loads_nothing_else() -> None:
    """The door opens the rooms when they are asked for: `ace --version` must not wait for JAX."""
    code = (
        "import sys, ace; print([m for m in sys.modules if m.startswith(('ace.', 'jax', 'numpy'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    assert done.stdout.strip() == "[]"


def is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


# What may be named where


def words(tree: ast.AST) -> Iterator[str]:
    """Every name in a module's code: variables, attributes, functions, arguments, imports."""
    for node in ast.walk(tree):
        for field in ("id", "attr", "name", "arg", "asname"):
            if isinstance(word := getattr(node, field, None), str):
                yield word


OF_DEVICES = {
    *("on_gpu", "default_backend", "optimization_barrier", "devices", "local_devices"),
    *("widen", "Packed", "Packing", "INTERPRET", "kernels", "pallas", "ROUND", "bit_length"),
}


@pytest.mark.parametrize(
    "name", [n for n in MODULES if room(n) in ("method", "planners", "agents")]
)
def test_the_method_never_asks_what_it_runs_on(name: str) -> None:
    assert not OF_DEVICES & {part for word in words(trees()[name]) for part in word.split(".")}


@pytest.mark.parametrize("name", [n for n in MODULES if room(n) == "method"])
def test_the_method_rounds_no_sizes(name: str) -> None:
    """`-n % ROUND`, `n % 16` and the like are for those who know a tile size."""
    for node in ast.walk(trees()[name]):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.FloorDiv):
            by = node.right
            assert not (isinstance(by, ast.Name) and by.id.isupper()), ast.unparse(node)
            assert not (isinstance(by, ast.Constant) and by.value not in (1, 2)), ast.unparse(node)
            assert not isinstance(node.left, ast.UnaryOp), ast.unparse(node)


def test_packed_states_are_known_to_the_engine_alone() -> None:
    knowing = {
        room(name) for name, tree in trees().items() if {"Packed", "Packing"} & {*words(tree)}
    }
    assert knowing == {"engine"}


def test_a_program_takes_and_gives_trees() -> None:
    """What callers hold is a tree, or reads as one; how it is packed is in no public signature."""
    for name in ("engine.program", "engine.player"):
        for node in ast.walk(trees()[name]):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                signature = [node.args, *filter(None, [node.returns])]
                named = {word for part in signature for word in words(part)}
                assert not named & {"Packed", "Packing", "Message", "Question"}, node.name


def test_kernels_are_known_to_the_engine_alone() -> None:
    def knows(name: str) -> bool:
        return any(n.startswith("engine.kernels") for n in ours(name))

    assert not {name for name in MODULES if knows(name)}


# Settings


def attributes() -> set[str]:
    """Attribute names that are read outside the files that define, check and set the settings."""
    found = set()
    for name, tree in trees().items():
        if name in ("settings.config", "settings.checks", "settings.presets"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
    return found


def test_every_setting_is_read() -> None:
    # A ramp is read where it is defined: `Ramp.at` makes one value of its three fields.
    ramps = {f"_ramp.{field}" for field in ("start", "duration", "after_seed")}
    read = attributes()
    unread = [
        name
        for name in flatten(Config())
        if name.rsplit(".", 1)[-1] not in read and not any(name.endswith(r) for r in ramps)
    ]
    assert not unread
    tree = trees()["settings.config"]
    [at] = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "at"]
    of_self = {n.attr for n in ast.walk(at) if isinstance(n, ast.Attribute)}
    assert {"start", "duration", "after_seed"} <= of_self and "at" in read
