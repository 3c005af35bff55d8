"""The names in docs/algorithm.md are those of the package, and so are the package's names and files
in every other document; docs/design.md and docs/extend.md also name all fields of the contracts.

Whatever stands in docs/algorithm.md in backticks with a dot in it, or as a call, is one of three
things: an attribute of the package, `ace.x.y`; a setting, `section.field`, perhaps with `=value`,
after which `.other` is a neighbour in the same section; or one of `OTHERS`.
"""

import dataclasses
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from ace.agents import Agent
from ace.planners import Planner
from ace.settings.config import Config, flatten, literals

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "algorithm.md").read_text()
OTHER_TEXTS = {
    str(path.relative_to(ROOT)): path.read_text()
    for pattern in ("README.md", "docs/*.md", "results/*/README.md")
    for path in ROOT.glob(pattern)
    if path.name != "algorithm.md"
}
OTHERS = {
    "jnp.where(first, 0, ...)": "code of JAX",
    'name.startswith("humanoid")': "code of Python",
    "moments.mean": "a field of ace.method.types.Moments",
    "moments.var": "a field of ace.method.types.Moments",
    "agent.safetensors": "a file",
    "reliability.md": "a file",
}
SETTINGS = flatten(Config())
SECTIONS = {name.rpartition(".")[0] for name in SETTINGS} - {""}


def names(text: str = TEXT) -> list[str]:
    """Everything code-like: in backticks, outside of blocks, with a dot or a call in it; a name
    that begins with a dot is completed by the section before it."""
    found, section = [], ""
    for name in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if not re.search(r"\.\w|\w\(", name):
            continue
        if name.startswith("."):
            name = section + name
        found.append(name)
        section = name.rpartition(".")[0]
    return found


NAMES = sorted(set(names()))
OURS = [name for name in NAMES if name.partition(".")[0] == "ace"]
OF_SETTINGS = [name for name in NAMES if name not in OTHERS and name not in OURS]


def resolve(name: str) -> Any:
    """The module, or the attribute of one, that a dotted name stands for."""
    path, rest = name, []
    while path:
        try:
            found: Any = importlib.import_module(path)
            break
        except ModuleNotFoundError as error:
            if not f"{path}.".startswith(f"{error.name}."):
                raise  # an import of the module itself fails
            path, _, last = path.rpartition(".")
            rest.insert(0, last)
    else:
        raise AttributeError(f"there is no {name}")
    for part in rest:
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("text", OTHER_TEXTS.values(), ids=OTHER_TEXTS)
def test_names_and_files_of_the_package_in_other_documents(text: str) -> None:
    for name in dotted_in(text):
        assert resolve(name) is not None
    assert not [name for name in files_in(text) if not (ROOT / name).exists()]


def dotted_in(text: str) -> set[str]:
    return set(re.findall(r"`(ace(?:\.\w+)+)", text))


def files_in(text: str) -> set[str]:
    return set(re.findall(r"`((?:ace|tests|examples|docs|benchmarks)/[\w/.-]*)`", text))


def test_there_are_names_and_files_to_check() -> None:
    assert sum(len(dotted_in(text)) for text in OTHER_TEXTS.values()) > 50
    assert sum(len(files_in(text)) for text in OTHER_TEXTS.values()) > 80


@pytest.mark.parametrize("name", [*OTHER_TEXTS, "docs/algorithm.md", "ace/bench/data/README.md"])
def test_links_between_documents_lead_somewhere(name: str) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#\s]+)", (ROOT / name).read_text())
    assert not [t for t in targets if not ((ROOT / name).parent / t).exists()]


@pytest.mark.parametrize("name", ["docs/design.md", "docs/extend.md"])
def test_documents_name_every_field_of_the_contracts(name: str) -> None:
    text = OTHER_TEXTS[name]
    said = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", text))))
    fields = {field.name for field in dataclasses.fields(Agent)} | {*Planner._fields}
    assert not fields - said


def test_there_is_enough_to_check() -> None:
    assert len(OURS) >= 60 and len(OF_SETTINGS) >= 60


@pytest.mark.parametrize("name", OURS)
def test_a_name_of_the_package(name: str) -> None:
    assert resolve(name) is not None


def test_names_that_are_not_there_are_found_out() -> None:
    for gone in ("ace.learner.update", "ace.method.learner.draw", "ace.method.model.Net.init"):
        with pytest.raises(AttributeError):
            resolve(gone)
    assert names("`plan.x` and `.y`, but `z`, not `f(x)`") == ["plan.x", "plan.y", "f(x)"]


@pytest.mark.parametrize("name", OF_SETTINGS)
def test_a_setting(name: str) -> None:
    field, _, value = name.partition("=")
    assert field in SETTINGS or field in SECTIONS, f"{name} is no setting; or add it to OTHERS"
    if value:
        choices = literals(Config()).get(field)
        kind = type(SETTINGS[field])
        assert (
            value in choices if choices else value in ("true", "false") or kind(value) is not None
        )


def test_others_are_there() -> None:
    assert not OTHERS.keys() - set(NAMES)
