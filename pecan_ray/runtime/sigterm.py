"""SIGTERM, which would end a process at once, as a notice that it is about to be ended."""

from __future__ import annotations

import functools
import os
import signal

from pecan_ray.job.heartbeat import NOTICE_S


class SigtermFlag:
    """Whether this process was asked to end: it goes on until whoever looks at this ends it, but not for long."""

    def __init__(self, notice_s: float = NOTICE_S) -> None:
        """Take the signal over; possible in the main thread alone, in which Ray makes an actor.

        `notice_s`: so long after the signal this process ends in any case.
        """
        self.received, self._grace_s = False, notice_s
        before = signal.signal(signal.SIGTERM, self._note) or signal.SIG_DFL
        # Whoever forks a process here, and asks it to end, waits for it.
        os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, before))

    def _note(self, *_: object) -> None:
        if not self.received:
            self.received = True
            # The kernel ends it then, also if no thread gets the GIL any more.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, self._grace_s)


@functools.lru_cache(maxsize=1)
def sigterm_flag() -> SigtermFlag:
    """Return this process's, which is made once, in the main thread."""
    return SigtermFlag()
