"""Wording that messages share."""


def counted(count: int, what: str) -> str:
    """`1 lane`, `5 lanes`, `2 simulator processes`."""
    plural = "" if count == 1 else "es" if what.endswith("s") else "s"
    return f"{count:,} {what}{plural}"
