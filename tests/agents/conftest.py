"""Small runs of the agents share their compiled functions, too."""

from tests.run.conftest import shared_programs

__all__ = ["shared_programs"]
