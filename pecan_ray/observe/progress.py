"""One quiet line that tells how a job is doing."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable
from typing import Any

from pecan_ray.observe.standard_streams import ensure_standard_streams
from pecan_ray.observe.trainer_speed import RecentSpeed, TrainerSpeed, details, to_str
from pecan_ray.runtime.client import BatchClient
from pecan_ray.runtime.share_session import ShareClient

# Seconds between two states of a bar, and between two lines of a log, which nobody watches.
TERMINAL_S, LOG_S = 0.5, 60.0


class Progress:
    """A bar on a terminal and in a notebook; a line a minute elsewhere, in logs of jobs.

    The bar is tqdm's, which knows narrow windows and what others print.  It is the one of texts in notebooks, too: the
    other one needs widgets, which not every notebook shows.
    """

    def __init__(
        self,
        name: str,
        wanted: bool | None,
        speed: Callable[[], RecentSpeed],
    ) -> None:
        """`wanted`: False shows nothing, True a bar in any case; `speed`: begins to measure, once it is asked for."""
        ensure_standard_streams()  # before anything is opened for the job
        self._name, self._display_enabled = name, wanted is not False
        self._begin_speed = speed
        self.dollars: Callable[[], float | None] = lambda: None
        """Tells what has been paid so far, if it is known."""
        self._has_bar = _shows_bars(wanted)
        self._every = TERMINAL_S if self._has_bar else LOG_S
        self._last = time.monotonic()
        self._bar: Any = None
        """Once there is something to show."""

    def show(self, client: BatchClient | ShareClient, epoch: int) -> None:
        """Show how a client is doing with a batch of an epoch in hand, if the last time was long enough ago."""
        if not self._display_enabled:
            return
        progress = client.progress() if isinstance(client, ShareClient) else None
        yielded = client.read if isinstance(client, ShareClient) else client.state.yielded
        self._speed.epoch(epoch, yielded - 1)
        now = time.monotonic()
        if now - self._last < self._every:
            return
        self._last = now
        pace, workers, dollars = self._speed.look(progress or client.progress()), who_works(client), self.dollars()
        try:
            if self._has_bar:
                self._show_bar(pace, details(pace, workers, dollars))
            else:
                sys.stderr.write(f"pecan {self._name}: {to_str(pace, workers, dollars)}\n")
                sys.stderr.flush()
        except (OSError, ValueError):
            self._display_enabled = False  # a terminal that is gone ends no training

    @functools.cached_property
    def _speed(self) -> RecentSpeed:
        return self._begin_speed()

    def leave_epoch(self) -> None:
        """Note that an epoch is left before its end."""
        self._speed.leave()

    def _show_bar(self, pace: TrainerSpeed, text: str) -> None:
        bar = self._opened(pace.total)
        bar.total = pace.total
        bar.set_postfix_str(text, refresh=False)
        bar.update(pace.batches - bar.n)
        bar.refresh()

    def _opened(self, total: int | None) -> Any:
        if self._bar is None:
            from tqdm import tqdm  # 40 ms that only those pay who see it

            name = f"pecan {self._name}"
            self._bar = tqdm(total=total, desc=name, unit=" batches", file=sys.stderr, dynamic_ncols=True)
        return self._bar

    def end(self) -> None:
        """Leave the cursor on a fresh line."""
        if self._bar is not None:
            with contextlib.suppress(OSError, ValueError):
                self._bar.close()
            self._bar = None


def _shows_bars(wanted: bool | None) -> bool:
    """Say whether to show a bar; a program that was started without standard error (``2>&-``) has no place for one."""
    error: Any = sys.stderr
    if error is None or error.closed:
        return False
    return bool(error.isatty() or _in_notebook()) if wanted is None else wanted


def _in_notebook() -> bool:
    """Tell whether this is the kernel of a notebook; IPython's terminal is none."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def who_works(client: BatchClient | ShareClient) -> str:
    """Say how many workers run, or what a reader of a shared group has skipped."""
    if isinstance(client, ShareClient):
        return f"skipped {client.skipped}, of the shared group {client.group}"
    update = client.state.update
    local, remote = update.target
    placing = f", which AutoPlacement {update.placement_note}" if update.placement_note else ""
    return f"{update.running} of {local + remote} workers ({local} local, {remote} remote){placing}"
