"""One HTML page with everything in it: data, styles and scripts. It opens offline and loads
nothing."""

import html
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "page"
# JSON may hold these as they are, but in a script element they could end it or break a line.
ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def page(data: Mapping[str, Any], title: str) -> str:
    """The page of a report."""
    parts = {
        "title": html.escape(title),
        "css": _asset("page.css"),
        "charts": _asset("charts.js"),
        "script": _asset("page.js"),
        "data": embedded(data),
    }
    # One pass, so that a name that looks like a placeholder stays a name.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("template.html"))


def embedded(data: Any) -> str:
    """JSON that is safe inside a script element, with the digits that a screen can show."""
    shown = finite(data, digits=5)
    text = json.dumps(shown, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.translate(ESCAPES)


def finite(value: Any, digits: int = 17) -> Any:
    """Plain values that JSON can hold: a number that is not finite becomes None."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item, digits) for key, item in value.items()}
    return [finite(item, digits) for item in value] if isinstance(value, list | tuple) else value


def _asset(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
