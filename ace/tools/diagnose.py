"""`ace diagnose`: how the learning of a run went, from its files and from a new evaluation."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ace.run.record import read_csv
from ace.run.request import Run, open_run
from ace.settings.config import ConfigError
from ace.tools import played

LATE = 0.2  # share of a run's rows that its end is judged by
STUCK = 5_000  # env steps without a gradient of the policy that are too many
SHOWN = ("saturated", "capped", "clipped", "policy_clipped", "latent_gap")  # metrics, as late means


def diagnose(folder: Path, episodes: int) -> list[str]:
    """Print what was found; returns the problems."""
    if episodes < 0:
        raise ConfigError(f"--episodes is {episodes}; it must be at least 0")
    found = played.play(folder, episodes) if episodes else None
    run = found.run if found else open_run(folder)
    if not (folder / "train.csv").exists():
        raise ConfigError(f"{folder} has no train.csv, which is what `ace diagnose` reads")
    rows = read_csv(folder / "train.csv")
    lanes = played.lanes(run)
    by_lane = [[row for row in rows if row["lane"] == lane] for lane in range(len(lanes))]
    title = f"{folder}: the last fifth of the training episodes"
    learned = zip(lanes, map(learning, by_lane), strict=True)
    Console().print(played.table(title, [name | line for name, line in learned]))
    if found:
        title = f"{folder}: {episodes} new episodes"
        judged = zip(lanes, map(evaluation, found.rows), strict=True)
        Console().print(played.table(title, [name | line for name, line in judged]))
    problems = [f"{_name(run, i)}: {x}" for i, mine in enumerate(by_lane) for x in complaints(mine)]
    for text in problems or ["no problems found"]:
        print(text)
    return problems


def learning(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Late means of a lane's metrics, and the most env steps without a gradient of the policy."""
    late = rows[-max(1, math.ceil(LATE * len(rows))) :]
    line = {}
    for name in SHOWN:
        values = [row[name] for row in late if _known(row, name)]
        if values:
            line[name.replace("_", " ")] = f"{np.mean(values):.3g}"
    if any(_known(row, "policy_grad_norm") for row in rows):
        line["zero gradient"] = f"{longest_zero(rows)[0]:,}"
    return line


def evaluation(row: Any) -> dict[str, str]:
    """What an evaluation says of planner and critics."""
    line = {"return": f"{row.ret:.1f}"}
    if row.policy_ret is not None:
        line["planner - policy"] = f"{row.ret - row.policy_ret:+.1f}"
    if row.bias is not None:
        line["value bias"] = f"{row.bias[0]:+.2f} ± {row.bias[1]:.2f}"
    return line


def longest_zero(rows: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """The longest stretch of env steps in which every row has a policy gradient of zero, and where
    it begins. Metrics are known at the ends of episodes, so it is counted from row to row."""
    longest, since, start = 0, None, 0
    for row in rows:
        if not _known(row, "policy_grad_norm"):
            continue
        if row["policy_grad_norm"] > 0:
            since = None
            continue
        since = row["env_step"] if since is None else since
        if row["env_step"] - since > longest:
            longest, start = row["env_step"] - since, since
    return longest, start


def complaints(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong with a lane's learning, in sentences."""
    found = []
    stuck, start = longest_zero(rows)
    if stuck > STUCK:
        found.append(f"the policy's gradient was zero for {stuck:,} env steps from {start:,} on")
    capped = [row["env_step"] for row in rows if _known(row, "capped") and row["capped"] > 0]
    if capped:
        share = len(capped) / len(rows)
        found.append(
            f"segments above learn.loss_clip, which have no gradient, in {share:.0%} of the "
            f"episodes, last at env step {capped[-1]:,}"
        )
    if rows and rows[-1].get("skipped_updates", 0) > 0:
        found.append(f"{rows[-1]['skipped_updates']:.0f} updates were skipped: not finite")
    return found


def _known(row: dict[str, Any], name: str) -> bool:
    value = row.get(name)
    return isinstance(value, int | float) and not math.isnan(value)


def _name(run: Run, lane: int) -> str:
    setup, label = run.setups[lane], run.labels[lane]
    return " ".join(filter(None, (setup.task, f"seed {setup.seed}", label)))
