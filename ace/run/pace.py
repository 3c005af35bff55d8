"""How long updates take, so that the loop hears signals in time without asking too often."""

import time

LOOK = 64  # most updates between two checks of the device, the console and signals
LOOK_SECONDS = 1.0  # and the time they may take
DEAF_SECONDS = 5.0  # updates in a row that take longer must be interruptible


class Pace:
    """The time of an update, measured where many are made in a row."""

    def __init__(self) -> None:
        self.seconds: float | None = None  # of one update; None: not known yet
        self._checked, self._every, self._since = 0, 1, 0.0

    def too_long(self, updates: int, usual: int) -> bool:
        """Whether these updates could keep a signal waiting for more than DEAF_SECONDS. Before the
        first measurement: whether they are more than a step usually makes."""
        if self.seconds is None:
            return updates > usual
        return updates * self.seconds > DEAF_SECONDS

    def begin(self) -> None:
        """The first of several updates is about to be made."""
        self._checked, self._every, self._since = 0, 1, time.monotonic()

    def check_due(self, made: int) -> bool:
        """Whether the loop should look at the device, the console and signals now."""
        return made - self._checked >= self._every

    def checked(self, made: int) -> None:
        """So many updates have been made, and the device has finished them."""
        now = time.monotonic()
        self.seconds = (now - self._since) / (made - self._checked)
        self._every = max(1, min(LOOK, int(LOOK_SECONDS / max(self.seconds, 1e-6))))
        self._checked, self._since = made, now
