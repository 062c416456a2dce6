"""A thread of the trainer's that waits for longer than a few seconds says for what."""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from pecan_ray.job import waiting

logger = logging.getLogger("pecan_ray")

SAY_AFTER_S = waiting.SAY_AFTER_S


class LongWait:
    """Says in the log what is waited for inside a `with`, once that takes long, and again when it is something else."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lock = threading.Lock()
        """Guards the text and what was said."""
        self._logged: set[str] | None = None
        """None: it has not taken long."""
        self._timer = threading.Timer(SAY_AFTER_S, self._say)
        # A wait must not keep the process from ending.
        self._timer.daemon = True

    def __enter__(self) -> LongWait:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()

    def switch_to(self, text: str) -> None:
        """Wait for something else from now on."""
        with self._lock:
            self._text = text
            if self._logged is None or text in self._logged:
                return
        # Outside of the lock, which `_say` takes itself.
        self._say()

    def _say(self) -> None:
        with self._lock:
            self._logged = (self._logged or set()) | {self._text}
            logger.warning("waiting: %s", self._text)
