"""SIGINT, SIGTERM and SIGHUP during a run: the first asks for a save and an end. A second Ctrl-C
ends the run at once. The other two often come twice for one stop, so a repeated one changes
nothing: a closing terminal and its shell both send SIGHUP, and `timeout` sends SIGTERM to the
command and then to its process group."""

import signal
import threading
from collections.abc import Callable
from typing import Any


class Signals:
    """A context that records the first signal in `signum` and then calls `heard`; outside the main
    thread it does nothing."""

    def __init__(self, heard: Callable[[], None] = lambda: None) -> None:
        self.signum, self.heard = 0, heard
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            caught = [signal.SIGINT, signal.SIGTERM]
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` sets it
                caught.append(signal.SIGHUP)
            self._before = {s: signal.signal(s, self._handle) for s in caught}

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _handle(self, signum: int, frame: Any) -> None:
        if not self.signum:
            self.signum = signum
            self.heard()
        elif signum == signal.SIGINT:
            # The command's own handler ends the process. An exception raised here can be lost in a
            # callback of XLA, so it is only the fallback.
            handler = self._before[signal.SIGINT]
            if callable(handler):
                handler(signum, frame)
            raise KeyboardInterrupt
