"""One quiet line that tells how a job is doing."""

from __future__ import annotations

import logging
import sys
import time

from pecan_ray.runtime.client import BatchClient
from pecan_ray.runtime.share_session import ShareClient

logger = logging.getLogger("pecan_ray")

TERMINAL_S = 0.5
LOG_S = 60.0


class Progress:
    """Rewrites one line on a terminal; elsewhere logs a line a minute."""

    def __init__(self, name: str, wanted: bool | None) -> None:
        self._name = name
        self._terminal = sys.stderr.isatty() if wanted is None else wanted
        self._every = TERMINAL_S if self._terminal else LOG_S
        self._last = time.monotonic()
        self._width = 0

    def show(self, client: BatchClient | ShareClient) -> None:
        """Show the state of a client, if the last time was long enough ago."""
        now = time.monotonic()
        if now - self._last < self._every:
            return
        self._last = now
        text = f"pecan {self._name}: {client.line() if isinstance(client, ShareClient) else line(client)}"
        if self._terminal:
            sys.stderr.write("\r" + text.ljust(self._width))
            sys.stderr.flush()
            self._width = len(text)
        else:
            logger.info(text)

    def end(self) -> None:
        """Leave the cursor on a fresh line."""
        if self._terminal and self._width:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self._width = 0


def line(client: BatchClient) -> str:
    """Spell out batches per second, waiting and workers."""
    trainer, orders = client.progress(), client.state.orders
    elapsed = max(trainer.elapsed_s, 1e-9)
    local, remote = orders.wanted
    return (
        f"{trainer.yielded} batches, {trainer.yielded / elapsed:.1f}/s, {trainer.rows / elapsed:.0f} elements/s, "
        f"waited {100 * trainer.waited_s / elapsed:.0f}%, {orders.running} of {local + remote} workers "
        f"({local} local, {remote} remote)"
    )
