"""SIGINT, SIGTERM and SIGHUP during a run: the first asks for a save and an end, the second ends it
at once. When a terminal is closed, SIGHUP may come twice, so a second one of it changes nothing."""

import signal
import threading
from typing import Any


class Signals:
    """A context that records the first signal in `signum`; outside the main thread it does
    nothing."""

    def __init__(self) -> None:
        self.signum = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            heard = [signal.SIGINT, signal.SIGTERM]
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` sets it
                heard.append(signal.SIGHUP)
            self._before = {s: signal.signal(s, self._heard) for s in heard}

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _heard(self, signum: int, frame: Any) -> None:
        if not self.signum or signum == signal.SIGHUP:
            self.signum = self.signum or signum
            return
        # The command's own handler ends the process. An exception raised here can be lost in a
        # callback of XLA, so it is only the fallback.
        handler = self._before[signal.SIGINT]
        if callable(handler):
            handler(signum, frame)
        raise KeyboardInterrupt
