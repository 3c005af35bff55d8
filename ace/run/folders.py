"""The folder of a run: its default name, and the check that it holds no other run."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from ace.run.flags import TrainArgs
from ace.settings import checks
from ace.settings.config import ConfigError

Difference = tuple[str, Any, Any]  # name, value in the folder, value wanted
# What a folder without a run may hold: what a start leaves that was killed at once, and logs.
BESIDE = re.compile(r"lock|config\.json\..*|\..*|.*\.(txt|log|out|err)")
LONGEST_NAME = 80  # characters of the part that lists the tasks, or the changed settings


def default_folder(asked: TrainArgs, changed: Mapping[str, Any]) -> Path:
    """A folder named by tasks, preset and changed settings, so that the same command finds its run
    again and another command gets another folder. Seeds and steps are left out."""
    tasks = [task.split("/")[-1].replace(":", ".") for task in asked.tasks]
    name = "+".join(tasks)
    if len(name) > LONGEST_NAME:
        name = f"{tasks[0]}+{len(tasks) - 1}-{_digest(tasks)}"
    name += f"-{asked.preset}" + (f"-{asked.agent}" if asked.agent != "ace" else "")
    values = {_short(n, asked.agent): v for n, v in changed.items() if n != "env_steps"}
    for text in asked.vary:
        setting, _, varied = text.partition("=")
        values[_short(setting.replace("-", "_"), asked.agent)] = varied
    parts = [f"{n}={values[n]}" for n in sorted(values)]
    suffix = "-".join(parts)
    if len(suffix) > LONGEST_NAME or not re.fullmatch(r"[\w.,=+-]*", suffix):
        suffix = _digest(parts)
    return Path("runs") / "-".join(filter(None, (name, suffix)))


def _short(name: str, agent: str) -> str:
    """`td_lambda` for `learn.td_lambda`: only an agent's own section may repeat a name."""
    section, dot, rest = name.partition(".")
    own = section in ("own", agent.replace("-", "_"))
    return f"{agent}.{rest}" if own else rest if dot else name


def _digest(parts: Sequence[str]) -> str:
    return sha256("\n".join(parts).encode()).hexdigest()[:6]


def check_folder(folder: Path, description: Mapping[str, Any]) -> None:
    """Refuse a folder that holds another run than the described one, or other files."""
    path = folder / "config.json"
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; give --run a folder")
    if not path.exists():
        if others := sorted(p.name for p in folder.glob("*") if not BESIDE.fullmatch(p.name)):
            raise ConfigError(
                f"{folder.resolve()} holds other files ({', '.join(others[:3])}) and no run; give "
                "--run a new folder"
            )
        return
    if differing := differences(path, description):
        hint = ""
        if [name for name, _, _ in differing] == ["env_steps"]:
            hint = f", or `ace resume {folder}` to go on with it (--env-steps N makes it longer)"
        raise ConfigError(
            f"{folder} holds a run with another config: {listed(differing)}; choose another "
            f"--run{hint}"
        )


def _filled(found: Any) -> Any:
    """The content of a config.json, with defaults for fields added after it was written."""
    from ace.agents import AGENTS

    try:
        own = AGENTS[found["agent"]].settings
        lanes = [
            lane | {"config": asdict(checks.from_dict(lane["config"], own))}
            for lane in found["lanes"]
        ]
        return json.loads(json.dumps({"imports": [], **found, "lanes": lanes}))
    except (KeyError, TypeError, AttributeError, ConfigError):
        return found  # not a run of this version: compare it as it is


def listed(differing: Sequence[Difference]) -> str:
    """The first differences, for a message."""
    shown = ", ".join(f"{n} ({there} there, {here} here)" for n, there, here in differing[:3])
    return shown + (f" and {len(differing) - 3} more" if len(differing) > 3 else "")


def differences(path: Path, description: Mapping[str, Any]) -> list[Difference]:
    """How a config.json differs from the description of a run, in what the run's agent reads."""
    from ace.agents import AGENTS

    found, wanted = _filled(read_json(path)), json.loads(json.dumps(description))
    agent = AGENTS[wanted["agent"]]
    planner = wanted["lanes"][0]["config"]["plan"]["planner"]
    return [d for d in _all_differences(found, wanted) if agent.uses(d[0], planner)]


def _all_differences(found: Any, wanted: Any) -> list[Difference]:
    if not isinstance(found, dict) or not isinstance(found.get("lanes"), list):
        return [("format", "unknown", wanted["format"])]
    pairs: dict[str, tuple[Any, Any]] = {}
    for name in ("format", "agent", "preset", "imports"):
        pairs[name] = (found.get(name), wanted[name])
    for name in ("task", "seed", "label"):
        there, here = (
            list(dict.fromkeys(lane.get(name) for lane in content["lanes"]))
            for content in (found, wanted)
        )
        pairs[f"{name}s"] = (there, here)
    pairs["lanes"] = (len(found["lanes"]), len(wanted["lanes"]))
    for there, here in zip(found["lanes"], wanted["lanes"], strict=False):
        old, new = _flat(there.get("config")), _flat(here["config"])
        for name in new | old:
            pairs.setdefault(name, (old.get(name), new.get(name)))
            if old.get(name) != new.get(name):
                pairs[name] = (old.get(name), new.get(name))
    return [(name, *pair) for name, pair in pairs.items() if pair[0] != pair[1]]


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries by dotted names."""
    if not isinstance(values, dict):
        return {prefix.removesuffix("."): values}
    return {n: v for key in values for n, v in _flat(values[key], f"{prefix}{key}.").items()}


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    try:
        return json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} is damaged ({error!r:.100}); restore it, or use a new folder"
        ) from None
