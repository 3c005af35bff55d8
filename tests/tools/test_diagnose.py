"""`ace diagnose` against rows whose faults are known."""

import numpy as np
import pytest

from ace.run.evaluate import Evaluation
from ace.tools import diagnose


def rows_of(gradients, **more) -> list[dict]:
    """Training rows every 1,000 env steps."""
    return [
        {"lane": 0, "env_step": 1000 * (i + 1), "policy_grad_norm": g}
        | {name: values[i] for name, values in more.items()}
        for i, g in enumerate(gradients)
    ]


@pytest.mark.parametrize(
    ("gradients", "expected"),
    [
        ([1.0, 2.0], (0, 0)),
        ([0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0], (2000, 3000)),
        ([np.nan, 0.0, 0.0], (1000, 2000)),
        ([""], (0, 0)),
    ],
)
def test_the_longest_time_without_a_gradient(gradients, expected) -> None:
    assert diagnose.longest_zero(rows_of(gradients)) == expected


def test_what_is_wrong_is_said() -> None:
    assert diagnose.complaints(rows_of([1.0] * 9)) == []
    (stuck,) = diagnose.complaints(rows_of([1.0] + [0.0] * 8))
    assert stuck == "the policy's gradient was zero for 7,000 env steps from 2,000 on"
    assert diagnose.complaints(rows_of([1.0] + [0.0] * 6 + [1.0])) == []  # 5,000 env steps
    capped, skipped = diagnose.complaints(
        rows_of([1.0] * 4, capped=[0, 0.5, 0.1, 0], skipped_updates=[0, 0, 0, 3])
    )
    assert "50% of the episodes, last at env step 3,000" in capped
    assert skipped == "3 updates were skipped: not finite"


def test_means_are_of_the_last_fifth() -> None:
    rows = rows_of([1.0] * 10, saturated=[0.9] * 8 + [0.1, 0.3])
    assert diagnose.learning(rows) == {"saturated": "0.2", "zero gradient": "0"}
    assert diagnose.learning([]) == {}


def test_planner_against_policy_and_values_against_returns() -> None:
    line = diagnose.evaluation(Evaluation(100.0, 120.5, 1000.0, (0.25, 0.5), {}))
    assert line == {"return": "100.0", "planner - policy": "-20.5", "value bias": "+0.25 ± 0.50"}
    assert diagnose.evaluation(Evaluation(1.0, None, 9.0, None, {})) == {"return": "1.0"}
