"""What `ace check-env` finds out about a task before anybody trains on it: sizes and bounds, how
episodes end, whether numbers are finite, whether a seed repeats an episode, what each action does,
and how fast it is. The task is played with random actions in a worker process, as a run plays it,
so that a crash or an endless loop becomes a finding too."""

import math
import time
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from ace.envs import (
    EnvError,
    EnvRequest,
    EnvSpec,
    EpisodeNumbers,
    TaskError,
    VectorEnv,
    get_spec,
    relabel,
)
from ace.envs.advice import SECONDS, limit_notes, repeats_itself
from ace.settings.presets import protocol
from ace.settings.words import counted

SHORT = 200  # env steps of the trials that compare two seeds
TRIED = 50  # env steps in which an action must have an effect
LARGE = 1e3  # observations are not normalised; beyond this size they drown the others
TIMED = 1.0  # seconds that the speed is measured for


class Finding(NamedTuple):
    """One line of the report; a problem is what breaks a run or the contract of environments."""

    kind: Literal["ok", "note", "problem"]
    about: str
    text: str


class Trial(NamedTuple):
    """T env steps of random play; `obs` are the true next observations."""

    starts: np.ndarray  # float32 [T + 1, O], what the next action is chosen for
    obs: np.ndarray  # float32 [T, O]
    reward: np.ndarray  # float32 [T]
    terminated: np.ndarray  # bool [T]
    truncated: np.ndarray  # bool [T]
    numbers: np.ndarray  # float32 [T, K]


def report(task: str, steps: int, seed: int) -> bool:
    """Print what is found about a task; whether nothing is wrong with it."""
    counts = {"ok": 0, "note": 0, "problem": 0}
    print(task, flush=True)
    for kind, about, text in check(task, steps, seed):
        counts[kind] += 1
        first, *more = text.splitlines()
        print(f"  {kind:<8} {about:<13} {first}", flush=True)
        for line in more:
            print(f"{'':25}{line}", flush=True)
    print(f"{counted(counts['problem'], 'problem')}, {counted(counts['note'], 'note')}")
    return not counts["problem"]


def check(task: str, steps: int, seed: int) -> Iterator[Finding]:
    """Play a task for so many env steps and give all findings."""
    spec = get_spec(task)
    rng = np.random.default_rng(seed)
    actions = rng.uniform(-1, 1, (steps, spec.action_size)).astype(np.float32)
    try:
        with open_env(spec, seed) as envs:
            trial = play(envs, seed, actions)
            repeats = repeats_itself(task, seed, min(steps, SHORT), math.inf)
            idle = idle_actions(envs, seed, actions[:TRIED]) if repeats else []
        with open_env(spec, seed + 1) as envs:
            other = play(envs, seed + 1, actions[:SHORT])
        speed = measure_speed(spec, seed, actions)
    except (EnvError, TaskError) as error:
        advice = "Correct the environment: a run drops such an episode, and stops if it recurs."
        yield Finding("ok", "sizes", f"{spec.obs_size} observations, {spec.action_size} actions")
        yield Finding("problem", "play", f"{error}\n{advice}")
        return
    yield from about_observations(trial)
    yield from about_actions(spec, repeats, idle)
    yield from about_episodes(spec, trial)
    yield from about_rewards(trial)
    yield from about_numbers(spec, trial)
    yield from about_goal(spec, trial)
    yield from about_seeds(repeats, trial, other)
    yield Finding("ok", "speed", f"{speed:,.0f} env steps per second in one process")


def open_env(spec: EnvSpec, seed: int) -> VectorEnv:
    """The task's environment in a worker process, without action repeat."""
    request = EnvRequest(spec.task, seed, 1, "the environment")
    sizes, numbers = (spec.obs_size, spec.action_size), len(spec.numbers)
    return VectorEnv([request], 1, *sizes, timeout=SECONDS, numbers=numbers)


def play(envs: VectorEnv, seed: int, actions: np.ndarray) -> Trial:
    """Play actions [T, A] from a seed on; where an episode ends, the next one begins."""
    starts, steps = [envs.reset([seed])[0]], []
    for count, action in enumerate(actions, 1):
        step = envs.step(action[None])
        for fault in step.faults:
            raise EnvError(f"env step {count}: {fault.text}")
        starts.append(step.obs[0])
        steps.append((step.final_obs, step.reward, step.terminated, step.truncated, step.numbers))
    return Trial(np.array(starts), *(np.array(column)[:, 0] for column in zip(*steps, strict=True)))


def idle_actions(envs: VectorEnv, seed: int, actions: np.ndarray) -> list[int]:
    """The actions whose sign changes nothing that is observed or rewarded."""
    plain, idle = play(envs, seed, actions), []
    for index in range(actions.shape[1]):
        turned = actions.copy()
        turned[:, index] *= -1
        if _equal(plain, play(envs, seed, turned)):
            idle.append(index)
    return idle


def about_observations(trial: Trial) -> Iterator[Finding]:
    """Size, range, entries that never change, entries that are large."""
    seen = np.concatenate([trial.starts, trial.obs])
    text = f"size {seen.shape[1]}, all finite; {_range(seen)}"
    yield Finding("ok", "observations", text)
    constant = np.flatnonzero((seen == seen[0]).all(axis=0))
    if constant.size:
        text = f"{_entries(constant)} never changed: leave out what is the same in all episodes"
        yield Finding("note", "observations", text)
    large = np.flatnonzero(np.abs(seen).max(axis=0) > LARGE)
    if large.size:
        text = f"{_entries(large)} beyond {LARGE:g}: scale down, networks see them as they are"
        yield Finding("note", "observations", text)


def about_actions(spec: EnvSpec, repeats: bool, idle: Sequence[int]) -> Iterator[Finding]:
    """Size, the bounds that the environment declared, action repeat, actions without effect."""
    repeat = protocol(spec.task).get("action_repeat", 1)
    text = f"size {spec.action_size}, bounds {_bounds(spec)}; action repeat {repeat}"
    yield Finding("ok", "actions", text)
    if idle:
        text = f"{_entries(idle)} had no effect in {TRIED} steps: leave out what does nothing"
        yield Finding("note", "actions", text)
    elif not repeats:
        text = "effects not tested, since episodes do not repeat themselves"
        yield Finding("note", "actions", text)


def about_episodes(spec: EnvSpec, trial: Trial) -> Iterator[Finding]:
    """How episodes ended, against the limit that is declared."""
    limit, steps = spec.max_episode_steps, len(trial.reward)
    assert limit is not None  # `make` sets one
    ends = np.flatnonzero(trial.terminated | trial.truncated)
    lengths = np.diff(ends, prepend=-1)
    unfinished = steps - 1 - (ends[-1] if ends.size else -1)
    fixed = ", all of this length" if spec.fixed_length else ""
    text = f"limit of {limit:,} env steps{fixed}"
    if ends.size:
        ended = int(trial.terminated[ends].sum())
        text += (
            f"; of {len(ends)} played {ended} terminated and {len(ends) - ended} truncated,"
            f" after {lengths.min():,} to {lengths.max():,}"
        )
    yield Finding("ok", "episodes", text)
    for line in limit_notes(spec.task):
        yield Finding("note", "episodes", line)
    if not ends.size and unfinished < limit:
        text = f"none ended in {steps:,} env steps: look further with --steps {2 * limit}"
        yield Finding("note", "episodes", text)
    if max(lengths.max(initial=0), unfinished) > limit:
        text = f"one went on past its limit of {limit:,}: declare the true limit, or truncate there"
        yield Finding("problem", "episodes", text)
    if spec.fixed_length and lengths.size and lengths.min() < limit:
        text = f"one ended after {lengths.min():,} env steps: declare fixed_length=False"
        yield Finding("problem", "episodes", text)
    if ends.size and (trial.terminated[ends] & (lengths == limit)).all():
        text = (
            "all terminated exactly at the limit: if time ran out, return truncated instead, since"
            " nothing is worth anything after a termination"
        )
        yield Finding("note", "episodes", text)


def about_rewards(trial: Trial) -> Iterator[Finding]:
    """The range of the rewards, and whether there is anything to learn from them."""
    reward = trial.reward
    if (reward == reward[0]).all():
        text = f"always {reward[0]:g} under random actions: only novelty guides until it varies"
        yield Finding("note", "rewards", text)
    else:
        yield Finding("ok", "rewards", f"all finite; {_range(reward)}")


def about_numbers(spec: EnvSpec, trial: Trial) -> Iterator[Finding]:
    """The value of every named number over the episodes played, the last one unfinished."""
    if not spec.numbers:
        return
    running, episodes = EpisodeNumbers([spec]), []
    for row, end in zip(trial.numbers, trial.terminated | trial.truncated, strict=True):
        running.add(row[None], np.ones(1, bool))
        if end:
            episodes.append(running.read(0))
            running.reset()
    episodes = episodes or [running.read(0)]
    for number in spec.numbers:
        values = np.array([episode[number.name] for episode in episodes])
        text = f"named number, {number.over} of an episode; {_range(values)}"
        yield Finding("ok", number.name, text)


def about_goal(spec: EnvSpec, trial: Trial) -> Iterator[Finding]:
    """Whether the declared goal gives the rewards and the error that were observed."""
    goal = spec.goal
    if goal is None:
        return
    achieved, desired = trial.obs[:, slice(*goal.achieved)], trial.obs[:, slice(*goal.desired)]
    text = f"achieved at {goal.achieved}, desired at {goal.desired}, error at {goal.error}"
    yield Finding("ok", "goal", text)
    found = np.asarray(goal.rule(np, achieved, desired), np.float32)
    wrong = np.flatnonzero(~np.isclose(found, trial.reward, rtol=1e-4, atol=1e-5))
    if wrong.size:
        first = wrong[0]
        text = (
            f"its rule gives other rewards in {wrong.size:,} of {len(found):,} env steps, as"
            f" {found[first]:g} instead of {trial.reward[first]:g} in step {first + 1}: correct the"
            " rule, which sees the observation after a step"
        )
        yield Finding("problem", "goal", text)
    else:
        text = f"its rule gives the rewards of all {len(found):,} env steps"
        yield Finding("ok", "goal", text)
    # Relabelling with the goal that is there already must change nothing.
    if not np.allclose(relabel(goal, trial.obs, desired), trial.obs, rtol=1e-4, atol=1e-5):
        text = f"its error, at {goal.error}, is not desired minus achieved: correct it"
        yield Finding("problem", "goal", text)


def about_seeds(repeats: bool, trial: Trial, other: Trial) -> Iterator[Finding]:
    """Whether a seed repeats an episode, and another one changes it."""
    steps = len(other.reward)
    if not repeats:
        text = (
            "one seed and the same actions gave different episodes: draw every random number from"
            " the seed of reset, or runs can neither be repeated nor resumed exactly"
        )
        yield Finding("problem", "seeds", text)
        return
    same = Trial(trial.starts[: steps + 1], *(column[:steps] for column in trial[1:]))
    if _equal(same, other):
        text = "one seed repeats its episodes; another seed gives the same, so nothing is random"
        yield Finding("note", "seeds", text)
    else:
        yield Finding("ok", "seeds", "one seed repeats its episodes, another gives other ones")


def measure_speed(spec: EnvSpec, seed: int, actions: np.ndarray) -> float:
    """Env steps per second in this process, with the action repeat that runs use."""
    repeat = protocol(spec.task).get("action_repeat", 1)
    request = EnvRequest(spec.task, seed, repeat, "the environment")
    with VectorEnv([request], 0, spec.obs_size, spec.action_size) as envs:
        envs.reset()
        begin, count = time.perf_counter(), 0
        for action in actions[:, None]:
            envs.step(action)
            count += repeat
            if time.perf_counter() - begin > TIMED:
                break
        return count / (time.perf_counter() - begin)


def _equal(one: Trial, two: Trial) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, two, strict=True))


def _range(values: np.ndarray) -> str:
    return f"from {values.min():.3g} to {values.max():.3g}, mean {values.mean():.3g}"


def _entries(indices: Sequence[int] | np.ndarray) -> str:
    """Indices in words, neighbours joined: `entries 0, 3-5`."""
    runs: list[list[int]] = []
    for index in map(int, indices):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    names = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return f"{'entry' if len(indices) == 1 else 'entries'} {', '.join(names)}"


def _bounds(spec: EnvSpec) -> str:
    """The bounds of the simulator's own actions; entries are named where they differ."""
    low, high = spec.action_bounds or ((-1.0,) * spec.action_size, (1.0,) * spec.action_size)
    pairs = list(zip(low, high, strict=True))
    where = {pair: [i for i, other in enumerate(pairs) if other == pair] for pair in pairs}
    if len(where) == 1:
        return f"[{low[0]:g}, {high[0]:g}]"
    parts = (f"[{least:g}, {most:g}] at {_entries(at)}" for (least, most), at in where.items())
    return "; ".join(parts)
