"""The names under which modules register agents and planners; one in use is refused."""

import sys
from typing import Any

from ace.settings.config import ConfigError

_owners: dict[tuple[str, str], tuple[Any, str]] = {}  # (kind, name): the entry and its module


def enter(kind: str, table: dict[str, Any], name: str, entry: Any) -> None:
    """Register a name for the module two calls up the stack. The same module may register it again,
    since it may be reloaded."""
    module = sys._getframe(2).f_globals["__name__"]
    there, owner = _owners.get((kind, name), (None, module))
    if owner != module and table.get(name) is there:
        raise ConfigError(f"{kind} '{name}' of {module} is taken by {owner}; choose another name")
    table[name], _owners[kind, name] = entry, (entry, module)
