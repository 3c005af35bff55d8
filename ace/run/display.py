"""The console of a run: a live panel in a terminal, plain lines elsewhere."""

import itertools
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table

REFRESH_SECONDS = 0.25
PLAIN_SECONDS = 10.0
RATE_SECONDS = 30.0
STALL_SECONDS = 5.0  # a single interval longer than this gives no rate
STALL_FACTOR = 10.0  # an interval this many times longer than the median is a stall
RECENT_EPISODES = 5
MAX_LANE_ROWS = 16


class LaneInfo(NamedTuple):
    """The identity of a lane; `label` lists its varied settings, '' if none."""

    lane: int
    seed: int
    task: str
    label: str


class LaneView:
    """The latest returns of one lane, as the console shows them."""

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=RECENT_EPISODES)
        self.eval_return: float | None = None
        self.policy_return: float | None = None

    @property
    def train_return(self) -> float | None:
        """Mean return of the last few training episodes."""
        return statistics.fmean(self.recent) if self.recent else None


class Display:
    """The console: a live panel on a terminal, sparse plain lines in a log file."""

    def __init__(self, lanes: Sequence[LaneInfo], total_env_steps: int, quiet: bool) -> None:
        self.lanes = lanes
        self.total = total_env_steps
        self.views = {info.lane: LaneView() for info in lanes}
        self._counters: dict[str, np.number] = {}
        self._status = ""
        self._quiet = quiet
        self._env_step: int | None = None
        self._samples: deque[tuple[float, int]] = deque()
        self._next_refresh = 0.0
        self._next_line = time.monotonic() + PLAIN_SECONDS
        self._console = Console(highlight=False)
        terminal = sys.stdout.isatty() and not self._console.is_dumb_terminal
        live = terminal and not quiet
        self._live = Live(console=self._console, auto_refresh=False) if live else None

    def start(self) -> None:
        """Begin the live display."""
        if self._live:
            self._live.start()

    def stop(self) -> None:
        """Show the last state once more and leave it on the screen."""
        if self._env_step is not None:
            self._refresh(time.monotonic(), last=True)
        if self._live:
            with self._writing():
                self._live.stop()

    def progress(self, env_step: int, counters: Mapping[str, Any]) -> None:
        """Record the step; redraw at most every REFRESH_SECONDS."""
        self._env_step = env_step
        now = time.monotonic()
        if now >= self._next_refresh or env_step >= self.total:
            # Read counters now: the caller's next step may donate a device array.
            for name, count in counters.items():
                self._counters[name] = np.sum(np.asarray(count() if callable(count) else count))
            self._refresh(now)

    def status(self, text: str) -> None:
        """Show a text in place of the rate, which is then measured afresh."""
        if text == self._status:
            return
        self._status = text
        self._samples.clear()
        if self._quiet:
            return
        if self._live:
            self._draw(self._live)
        elif text:
            self.message(f"train  {self._speed_text()}")

    def message(self, text: str) -> None:
        """Print a line, above the live panel if there is one."""
        with self._writing():
            if self._live:
                self._live.console.print(escape(text))
            elif not self._quiet:
                print(text, flush=True)

    def _draw(self, live: Live) -> None:
        with self._writing():
            live.update(self.render(), refresh=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Be quiet from now on if the console is gone: the reader of a pipe has ended, or the
        terminal was closed. The run goes on, since its results are in its folder."""
        try:
            yield
        except OSError:
            live, self._live, self._quiet = self._live, None, True
            self._console.quiet = True
            if live:
                live.stop()  # gives sys.stdout back

    def evaluation(self, info: LaneInfo, env_step: int) -> None:
        """Report one evaluation in plain output; the live panel shows it by itself."""
        if self._live:
            return
        view = self.views[info.lane]
        label = f" ({info.label})" if info.label else ""
        self.message(
            f"eval  env step {env_step:,}  lane {info.lane}  {info.task}  seed {info.seed}{label}"
            f"  return {_shown(view.eval_return)}"
            + (f"  policy {_shown(view.policy_return)}" if view.policy_return is not None else "")
        )

    def _refresh(self, now: float, last: bool = False) -> None:
        assert self._env_step is not None
        self._next_refresh = now + REFRESH_SECONDS
        if self._quiet:
            return
        if not self._status:
            self._samples.append((now, self._env_step))
        while len(self._samples) > 2 and now - self._samples[0][0] > RATE_SECONDS:
            self._samples.popleft()
        if self._live:
            self._draw(self._live)
        elif last or now >= self._next_line:
            self._next_line = now + PLAIN_SECONDS
            self.message("  ".join(["train", self._speed_text(), *self._counter_texts()]))

    def _rate(self) -> float:
        """Environment steps per second of one lane over the last RATE_SECONDS, without a single
        stall. Several stalls are part of the run (updates in blocks) and count."""
        seconds = [b[0] - a[0] for a, b in itertools.pairwise(self._samples)]
        steps = [b[1] - a[1] for a, b in itertools.pairwise(self._samples)]
        if not seconds or (len(seconds) == 1 and seconds[0] > STALL_SECONDS):
            return 0.0
        usual = sorted(seconds)[(len(seconds) - 1) // 2]
        stalls = [i for i, length in enumerate(seconds) if length > STALL_FACTOR * usual]
        if len(stalls) == 1:
            del seconds[stalls[0]], steps[stalls[0]]
        return max(sum(steps), 0) / max(sum(seconds), 1e-9)

    def _speed_text(self) -> str:
        done, rate = self._env_step or 0, self._rate()
        percent = 100 * done / max(self.total, 1)
        text = f"env step {done:,} / {self.total:,} ({percent:.1f}%)  "
        if self._status:
            return text + self._status
        crowd = f" ({rate * len(self.lanes):,.0f} all lanes)" if len(self.lanes) > 1 else ""
        speed = f"{rate:,.0f} steps/s{crowd}"
        if done >= self.total:
            return (text + (speed if rate else "")).rstrip()
        left = _duration((self.total - done) / rate) if rate else "?"
        return text + f"{speed}  {left} left"

    def _counter_texts(self) -> list[str]:
        counters = self._counters.items()
        return [f"{name.replace('_', ' ')}: {text(value)}" for name, value in counters if value]

    def render(self) -> RenderableType:
        """The whole live panel."""
        bar = ProgressBar(total=max(self.total, 1), completed=self._env_step or 0, width=76)
        many = len(self.lanes) > MAX_LANE_ROWS
        table = self._task_table() if many else self._lane_table()
        parts: list[RenderableType] = [escape(self._speed_text()), Padding(bar, 0), table]
        if counters := self._counter_texts():
            parts.append("[yellow]" + escape("  ".join(counters)) + "[/yellow]")
        return Group(*parts)

    def _lane_table(self) -> Table:
        labelled = any(info.label for info in self.lanes)
        names = ["lane", "task", "seed", *(["settings"] if labelled else [])]
        table = _table(names, ["train return", "eval return", "policy alone"])
        for info in self.lanes:
            view = self.views[info.lane]
            who = [str(info.lane), escape(info.task), str(info.seed)]
            who += [escape(info.label)] if labelled else []
            returns = (view.train_return, view.eval_return, view.policy_return)
            table.add_row(*who, *map(_shown, returns))
        return table

    def _task_table(self) -> Table:
        table = _table(["task", "lanes"], ["train return", "eval return", "policy alone"])
        for task in dict.fromkeys(info.task for info in self.lanes):
            views = [self.views[info.lane] for info in self.lanes if info.task == task]
            columns = zip(
                *((v.train_return, v.eval_return, v.policy_return) for v in views), strict=True
            )
            table.add_row(escape(task), str(len(views)), *map(_summary, columns))
        return table


def text(value: Any) -> str:
    """The shortest text that reads back as the same number; '' for a missing value."""
    if value is None or isinstance(value, str):
        return value or ""
    # Keep the scalar's own type: float32 0.1 prints as 0.1, not as its 17 digits in float64.
    return str(np.asarray(value)[()])


def _table(names: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _summary(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return f"{statistics.fmean(known):,.1f} ({min(known):,.1f} to {max(known):,.1f})"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
