"""From a suite to jobs: each is one program, whose lanes share every setting that shapes it."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ace.bench.results import ResultError, read_programs, read_table, task_path
from ace.bench.scores import score_column
from ace.bench.suites import Entry, Suite
from ace.run import request
from ace.settings import config as settings
from ace.settings.config import ConfigError

# Settings that may differ between machines without making another experiment.
OF_THE_MACHINE = ("precision", "kernels", "workers", "env_timeout", "fault_limit")


class LaneSpec(NamedTuple):
    """One lane of a job."""

    agent: str  # the suite's name for it
    task: str  # which its results are filed under
    seed: int


@dataclass(frozen=True)
class Job:
    """One program of a suite. On a GPU rounding depends on the lanes of a program, so these follow
    from the suite alone, unless lanes are done or do not fit the memory or the time there is."""

    suite: str
    agent: str  # the registered agent, of which lanes may be variants
    preset: str
    env_steps: int
    imports: tuple[str, ...]
    settings: Mapping[str, Mapping[str, Any]]  # of each of the suite's agents
    lanes: tuple[LaneSpec, ...]
    suffixes: Mapping[str, str] = field(default_factory=dict)  # of the tasks of some of them

    @property
    def id(self) -> str:
        """A name that changes with anything that defines the job."""
        known = asdict(self)
        if not self.suffixes:  # jobs made before this field keep their names
            del known["suffixes"]
        text = json.dumps(known, sort_keys=True)
        return f"{self.agent}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    def part(self, lanes: Sequence[LaneSpec]) -> "Job":
        """A job of some of the lanes."""
        used = {lane.agent: self.settings[lane.agent] for lane in lanes}
        suffixes = {name: suffix for name, suffix in self.suffixes.items() if name in used}
        return replace(self, lanes=tuple(lanes), settings=used, suffixes=suffixes)

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Job":
        """A job from the content of its file."""
        lanes = tuple(LaneSpec(*lane) for lane in found["lanes"])
        return cls(**{**found, "imports": tuple(found["imports"]), "lanes": lanes})

    def trained_on(self, agent: str, task: str) -> str:
        """The task that one of the suite's agents learns for results filed under `task`."""
        return task + self.suffixes.get(agent, "")


def make_config(suite_agent: str, job: Job, task: str) -> Any:
    """The settings of a lane whose results are filed under `task`; `precision` may be `auto`."""
    from ace.envs import get_spec, validate
    from ace.settings.presets import resolve

    task = job.trained_on(suite_agent, task)
    validate(task)
    request.check_preset(job.preset, job.agent)
    spec, agent = get_spec(task), request.find_agent(job.agent)
    own = agent.settings and agent.settings()
    default = resolve(job.preset, task, spec, agent.defaults_of(task), own=own)
    request.check_columns(spec, agent.metrics)
    values = {"env_steps": job.env_steps} | dict(job.settings[suite_agent])
    config = request.with_settings(default, values, job.agent)
    request.check_read(job.agent, config, request.changes(default, config))
    request.check_config(job.agent, config)
    return config


def entry_agent(entry: Entry) -> tuple[str, dict[str, Any]]:
    """The registered agent of one of a suite's agents, and its settings: those of the variant that
    it is, then the suite's that it reads, then its own."""
    from ace.agents import AGENTS
    from ace.planners import PLANNERS

    words = entry.name.split("-")
    parts = ["-".join(words[:count]) for count in range(len(words), 0, -1)]
    name = entry.agent or next((part for part in parts if part in AGENTS), words[0])
    agent = request.find_agent(name)
    default = settings.Config()
    chosen = {"plan.planner": default.plan.planner, **agent.defaults, **agent.overrides}
    planner = {**chosen, **entry.shared, **entry.settings}["plan.planner"]
    request.with_settings(default, {"plan.planner": planner}, name)  # refuses a wrong type
    request.known("planner", planner, PLANNERS)
    own = request.section_of(name)
    shared = {n: v for n, v in entry.shared.items() if n.startswith(own) or agent.uses(n, planner)}
    # A variant joins the programs of the agent that it is a variant of.
    return agent.variant_of or name, {**agent.overrides, **shared, **entry.settings}


@contextmanager
def naming(suite: Suite, agent: str) -> Iterator[None]:
    """Let errors in a suite's settings say which suite and agent they are about."""
    try:
        yield
    except ValueError as error:  # a ConfigError too
        raise ConfigError(f"suite {suite.name}, agent {agent}: {error}") from error


def entry_agents(suite: Suite) -> dict[str, tuple[str, dict[str, Any]]]:
    """`entry_agent` of every agent of a suite, by the suite's name for it."""
    found = {}
    for entry in suite.entries:
        with naming(suite, entry.name):
            found[entry.name] = entry_agent(entry)
    return found


def check_shared(suite: Suite) -> None:
    """Refuse settings for all agents of a suite that do not exist, or that none of them reads."""
    from ace.agents import AGENTS

    request.import_modules(suite.imports)
    names = settings.flatten(settings.Config()).keys() - {"own"}
    for name, agent in AGENTS.items():
        own = settings.flatten(agent.settings()) if agent.settings else ()
        names |= {request.section_of(name) + field for field in own}
    shared = dict.fromkeys(name for entry in suite.entries for name in entry.shared)
    for name in shared:
        request.known(f"suite {suite.name}: setting", name, names)
    read = {name for _, chosen in entry_agents(suite).values() for name in chosen}
    if unread := [name for name in shared if name not in read]:
        raise ConfigError(
            f"suite {suite.name}: none of its agents reads {', '.join(unread)}; delete that from "
            "[settings]"
        )


def check_scores(suite: Suite) -> None:
    """Refuse a suite whose tasks do not have its score, or whose tasks with a suffix do not."""
    from ace.envs import get_spec, validate

    for task in suite.tasks:
        validate(task)
        numbers = get_spec(task).numbers
        names = [number.name for number in numbers]
        if suite.score and suite.score not in names:
            raise ConfigError(
                f"suite {suite.name}: task {task} has no number {suite.score!r}; it has "
                f"{', '.join(names) or 'none'}"
            )
        for suffix in {entry.task_suffix for entry in suite.entries} - {""}:
            validate(task + suffix)
            alike = get_spec(task + suffix).numbers == numbers
            if not alike or score_column(task, suite.score) not in names:
                raise ConfigError(
                    f"suite {suite.name}: {task}{suffix} cannot stand for {task}: both need the "
                    "same named numbers, and the score must be one of them"
                )


def make_jobs(suite: Suite, lanes: int | None = None) -> list[Job]:
    """All jobs of a suite: lanes that share a structure, tasks of similar size together."""
    import jax

    from ace.envs import get_spec

    request.import_modules(suite.imports)
    check_scores(suite)

    def job(names: Iterable[str], lanes: Sequence[LaneSpec]) -> Job:
        used = list(dict.fromkeys(names))
        settings = {name: agents[name][1] for name in used}
        suffixes = {n: entries[n].task_suffix for n in used if entries[n].task_suffix}
        common = (suite.preset, suite.env_steps, suite.imports)
        return Job(suite.name, agents[used[0]][0], *common, settings, tuple(lanes), suffixes)

    entries = {entry.name: entry for entry in suite.entries}
    agents = entry_agents(suite)
    places = {task: place for place, task in enumerate(suite.tasks)}
    groups: dict[Any, list[LaneSpec]] = {}
    for name, entry in entries.items():
        for task in suite.tasks:
            with naming(suite, name):
                config = make_config(name, job([name], ()), task)
            goal = get_spec(task + entry.task_suffix).goal if config.replay.hindsight else None
            shape = (agents[name][0], str(jax.tree.structure(config)), goal)
            made = [LaneSpec(name, task, seed) for seed in suite.seeds]
            groups.setdefault(shape, []).extend(made)
    jobs = []
    for found in groups.values():
        found.sort(key=lambda lane: (get_spec(lane.task).obs_size, places[lane.task]))
        for chosen in split(found, lanes or suite.lanes):
            jobs.append(job((lane.agent for lane in chosen), chosen))
    return jobs


def split(lanes: Sequence[LaneSpec], most: int) -> list[list[LaneSpec]]:
    """Lanes in parts of at most `most`; the seeds of a task and agent stay together if they fit."""
    parts: list[list[LaneSpec]] = []
    for lane in lanes:
        same = [x for x in lanes if x[:2] == lane[:2]]
        begins = lane == same[0] and len(same) <= most
        full = len(parts[-1]) + (len(same) if begins else 1) > most if parts else True
        if full:
            parts.append([])
        parts[-1].append(lane)
    return parts


def make_run(job: Job, folder: Path, **options: Any) -> request.Run:
    """The run of a job in a folder, on this machine's device."""
    from ace.engine.lanes import LaneSetup
    from ace.envs import get_spec

    request.import_modules(job.imports)
    configs = {lane[:2]: make_config(lane.agent, job, lane.task) for lane in job.lanes}
    setups, labels = [], []
    for lane in job.lanes:
        config, task = configs[lane[:2]], job.trained_on(lane.agent, lane.task)
        config = replace(config, precision=request.resolve_precision(config.precision))
        spec = get_spec(task)
        setups.append(LaneSetup(task, lane.seed, config, (spec.obs_size, spec.action_size)))
        labels.append(lane.agent)
    notes = request.task_notes(dict.fromkeys(setup.task for setup in setups))
    return request.Run(
        job.agent, job.preset, setups, labels, folder, imports=job.imports, notes=notes, **options
    )


def that_matter(agent: str, flat: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that can change the agent's results: without those of the machine and those that
    the agent never reads; none if its planner is unknown. Settings that `flat` lacks were added
    after it was written, and get the defaults that keep the behaviour from before."""
    from ace.planners import PLANNERS

    found, planner = request.find_agent(agent), flat.get("plan.planner", "")
    if found.plans and planner not in PLANNERS:
        return {}
    defaults = settings.flatten(settings.Config(own=found.settings and found.settings()))
    return {
        name: value
        for name, value in json.loads(json.dumps({**defaults, **flat})).items()
        if name not in OF_THE_MACHINE and found.uses(name, planner)
    }


def describe_config(configs: Sequence[Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The settings that all lanes share, and for each lane those in which lanes differ."""
    flat = [settings.flatten(config) for config in configs]
    shared = {n: v for n, v in flat[0].items() if all(f.get(n) == v for f in flat)}
    return shared, [{n: v for n, v in f.items() if n not in shared} for f in flat]


def last_env_step(config: Any) -> int:
    """The env step of the last evaluation."""
    return config.agent_steps * config.action_repeat


def finished_lanes(jobs: Iterable[Job], folder: Path) -> set[LaneSpec]:
    """Lanes whose results are complete; results of other settings are an error."""
    programs = read_programs(folder)
    known = {
        LaneSpec(lane["agent"], lane["task"], int(lane["seed"])): (program, lane)
        for program in programs
        for lane in program["lanes"]
    }
    done = set()
    for job in jobs:
        for lane in job.lanes:
            path = task_path(folder, lane.agent, lane.task)
            if not path.exists():
                continue
            config = make_config(lane.agent, job, lane.task)
            if last_env_step(config) not in read_table(path).get(lane.seed, {}):
                continue
            if lane in known:
                learned = job.trained_on(lane.agent, lane.task)
                _check_settings(job.agent, settings.flatten(config), learned, *known[lane], path)
            done.add(lane)
    return done


def _check_settings(
    agent: str, flat: Mapping[str, Any], task: str, program: Mapping, lane: Mapping, path: Path
) -> None:
    """Refuse to count results that other settings, or another task, made."""
    if not program.get("config"):
        return  # made before settings were written down
    there = that_matter(agent, {**program["config"], **(lane.get("settings") or {})})
    there["task"] = lane.get("trained_on", lane["task"])
    here = {**that_matter(agent, flat), "task": task}
    names = sorted(set(here) & set(there))
    if differing := [n for n in names if here[n] != there[n]]:
        shown = ", ".join(f"{n} ({there[n]} there, {here[n]} now)" for n in differing[:3])
        raise ResultError(
            f"{path}: seed {lane['seed']} was made with other settings by program "
            f"{program['id']}: {shown}; move these results away or give --results another folder"
        )
