"""A real browser without a window: what it makes of a page."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LONGEST_S = 200
TRIES = 2
"""A browser that does not end in that time is started again: on a busy machine it may miss its own deadlines."""


def browse(url: str, profile: Path, *, wait_ms: int = 1500) -> str:
    """Open a page and return what the browser has made of it; fails if a script of it does."""
    for number in range(TRIES):
        try:
            return opened(url, profile / str(number), wait_ms=wait_ms)
        except subprocess.TimeoutExpired:
            if number == TRIES - 1:
                raise
    raise AssertionError("no try was made")


def opened(url: str, profile: Path, *, wait_ms: int) -> str:
    """Open a page once."""
    assert PROGRAM is not None
    done = subprocess.run(
        [
            *(PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *("--disable-background-networking", "--hide-scrollbars", f"--user-data-dir={profile}"),
            *("--enable-logging=stderr", "--v=0", f"--virtual-time-budget={wait_ms}", "--dump-dom", url),
        ],
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout
