"""What a run begins with."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from ace.engine.fresh import Fresh
from ace.engine.lanes import LaneSetup
from ace.settings.config import Config

CONFIG = Config()


def threads() -> set[int]:
    """Threads of the libraries that compute NumPy's linear algebra."""
    return {x["num_threads"] for x in threadpool_info() if x["user_api"] == "blas"}


def test_every_lane_has_the_learner_of_its_seed_drawn_with_one_thread_of_blas() -> None:
    """NumPy may have been imported, with a thread for every core, before this package was."""
    used = []

    def init(config: Config, seed: int, sizes: tuple[int, int]) -> dict[str, Any]:
        used.append(threads())
        rng = np.random.default_rng(seed)
        drawn = rng.standard_normal(sizes).astype(np.float32)
        return {"w": drawn, "moment": np.zeros(3, np.float32), "count": np.int32(seed)}

    agent: Any = SimpleNamespace(init=init, pad=lambda config, learner, sizes: learner)
    setups = [LaneSetup("probe/reward", seed, CONFIG, (4, 2)) for seed in range(3)]
    learners = Fresh(agent, setups, (4, 2)).learners
    assert used == [{1}] * 3
    for seed in range(3):
        alone = init(CONFIG, seed, (4, 2))
        for name, x in alone.items():
            np.testing.assert_array_equal(learners[name][seed], x)
            assert learners[name].dtype == x.dtype
