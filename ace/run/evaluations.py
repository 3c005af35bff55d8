"""When the agents of a run are evaluated: beside the training, one evaluation at a time, with a
copy of the agents that is also written to the agent file. So an interrupted one can be made again.
"""

import functools
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ace.engine.program import Program
from ace.engine.resources import count_workers
from ace.run.agent_file import load_agents, save_agents
from ace.run.checkpoint import CheckpointError
from ace.run.evaluate import Evaluator
from ace.run.record import read_csv


class Evaluations:
    """The schedule of a run's evaluations, and the one in progress."""

    def __init__(self, program: Program, folder: Path, keep_obs: bool):
        """`keep_obs` is that of `Evaluator`."""
        self.program, self.folder, self._keep_obs = program, folder, keep_obs
        config = program.config
        self._repeat, self._every = config.action_repeat, config.eval_every
        self._steps, self._last = config.agent_steps, config.agent_steps * config.action_repeat
        self.next = self._after(0)  # env step at which the next one begins
        self.running: int | None = None  # agent step of the one in progress
        self._writer = ThreadPoolExecutor(1)
        self._writing: Future[None] = self._writer.submit(lambda: None)

    def _after(self, env_step: int) -> int:
        """The first env step after this one at which agents are evaluated."""
        return min((env_step // self._every + 1) * self._every, self._last)

    def continue_at(self, env_step: int, saved_next: int) -> None:
        """Go on with the schedule of a saved run."""
        on_grid = saved_next % self._every == 0 or saved_next in (self._last, self._last + 1)
        # Neither on the grid nor at the end: the run was made longer after it was saved.
        self.next = saved_next if saved_next <= env_step or on_grid else self._after(env_step)

    def interrupted(self, evaluating: int | None) -> int | None:
        """The agent step of an interrupted evaluation, or None if its results are recorded."""
        path = self.folder / "eval.csv"
        if evaluating is None:
            return None
        rows = read_csv(path) if path.exists() else []
        done = sum(row["env_step"] == evaluating * self._repeat for row in rows)
        return None if done == len(self.program.setups) else evaluating

    def make_again(self, evaluating: int) -> str:
        """Restart an interrupted evaluation with the agents that were saved for it; why that is
        not possible, if it is not."""
        try:
            acting, agent_step = load_agents(self.folder, self.program)
        except CheckpointError as error:
            return f"{error}; the evaluation at env step {evaluating * self._repeat} is lost"
        if agent_step != evaluating:
            return f"the evaluation at env step {evaluating * self._repeat} is lost"
        self.running = evaluating  # also if it cannot start: it is to be made again after that
        self._start(acting, evaluating)
        return ""

    def begin(self, acting: Any, agent_step: int) -> None:
        """Save the agents of this agent step and start to evaluate them."""
        self.wait_for_file()
        self._writing = self._writer.submit(save_agents, self.folder, acting, agent_step)
        self._start(acting, agent_step)
        following = min(self.next + self._every, self._last)
        self.next = following if agent_step < self._steps else following + 1

    @functools.cached_property
    def evaluator(self) -> Evaluator:
        """Starts its simulators when it is first asked for; they are kept between evaluations."""
        config = self.program.config
        episodes, lanes = config.eval_episodes, len(self.program.setups)
        # A quarter of the cores: more would slow down the training's simulators.
        workers = -(-count_workers(config, 4 * lanes * episodes) // 4)
        return Evaluator(self.program, episodes, workers, self._keep_obs)

    def _start(self, acting: Any, agent_step: int) -> None:
        self.evaluator.begin(acting, agent_step)
        self.running = agent_step

    def wait_for_file(self) -> None:
        """Wait until the agent file is written; raises what went wrong."""
        self._writing.result()

    def close(self) -> None:
        """Stop the simulators."""
        self._writer.shutdown()
        if "evaluator" in vars(self):
            self.evaluator.close()
