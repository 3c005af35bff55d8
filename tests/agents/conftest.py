"""Small runs of the agents share their compiled functions, too."""

import pytest

from tests.run.conftest import shared_programs
from tests.run.helpers import optimised_updates, small_run

__all__ = ["shared_programs"]


@pytest.fixture(scope="module")
def optimised():
    """The many updates of runs that learn are worth some optimisation."""
    with optimised_updates():
        yield


@pytest.fixture(scope="module")
def whole(request, optimised, tmp_path_factory):
    """The final state of the run that a file's `ARGV` asks for, uninterrupted, and the run."""
    return small_run(tmp_path_factory.mktemp("whole") / "run", *request.module.ARGV)
