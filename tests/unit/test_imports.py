"""Imports go one way, and every setting is read somewhere: both from the source alone."""

import ast
from pathlib import Path

import pytest

from ace.settings.config import Config, flatten

ROOT = Path(__file__).parents[2] / "ace"
LAYERS = [
    {"types", "keys", "config", "kernels", "packing", "stored", "transfer"},
    {"nets", "noise"},
    {"model"},
    {"targets", "losses", "planners"},
    {"learner", "replay"},
    {"agents"},
    {"lanes"},
    {"collect", "evaluate", "resources"},
    {"resume", "agent_file"},
    {"train"},
    {"export", "speed"},
    {"request"},
    {"cli", "__main__"},
]
LEAVES = {"record", "display", "plots", "checkpoint"}  # for resume, train and cli


def modules() -> dict[str, Path]:
    """Dotted names below ace and their files."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__") or "__init__"] = path
    return found


MODULES = modules()


def imported(path: Path) -> set[str]:
    """Absolute names of imported modules; `from ace import x` counts as `ace.x`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in {path}"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            of_ace = {n for n in inside if n.removeprefix("ace.") in MODULES}
            found |= of_ace or {str(node.module)}
    return found


def parts_of_ace(path: Path) -> set[str]:
    """First names below ace: `ace.envs.api` is `envs`."""
    return {n.split(".")[1] for n in imported(path) if n.startswith("ace.")}


def layer(name: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if name in names)


def test_every_module_has_a_place() -> None:
    known = set().union(*LAYERS, LEAVES, {"envs", "presets", "__init__"})
    assert {name.split(".")[0] for name in MODULES} == known


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_one_way(name: str) -> None:
    top = name.split(".")[0]
    used = parts_of_ace(MODULES[name]) - {top}
    if top in ("envs", "display", "checkpoint", "__init__"):
        assert not used
    elif top == "record":
        assert used <= {"display"}
    elif top == "plots":
        assert used <= {"record"}
    elif top == "presets":
        assert used <= {"config", "envs"}
    else:
        mine = layer(top)
        if mine < layer("collect"):
            assert "envs" not in used
        if mine < layer("resume"):
            assert not used & LEAVES
        if top not in ("cli", "request"):
            assert "presets" not in used
        layered = used - LEAVES - {"envs", "presets"}
        late = {other for other in layered if layer(other) > mine}
        assert not late


def test_planners_do_not_know_the_model() -> None:
    for name, path in MODULES.items():
        if name.startswith("planners"):
            assert parts_of_ace(path) <= {"planners", "config", "types"}


def test_environments_do_not_know_jax() -> None:
    for name, path in MODULES.items():
        if name.startswith("envs"):
            assert not {n for n in imported(path) if n.split(".")[0] in ("jax", "optax")}


def attributes() -> set[str]:
    """Attribute names that are read outside the files that define and set the settings."""
    found = set()
    for name, path in MODULES.items():
        if name in ("config", "presets"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
    return found


def test_every_setting_is_read() -> None:
    read = attributes()
    unread = [name for name in flatten(Config()) if name.rsplit(".", 1)[-1] not in read]
    assert not unread
