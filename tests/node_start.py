"""Starting Ray's nodes on a machine that is busy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil


def tried_twice(start: Callable[[], Any]) -> Any:
    """Start a node: Ray gives it 30 s, however busy the machine is, and leaves what it has begun of it."""
    before = psutil.Process().children()
    try:
        return start()
    except Exception as error:  # Ray raises no other class
        if "timed out during startup" not in str(error):
            raise
        for process in set(psutil.Process().children()) - set(before):
            process.kill()
            process.wait()
        return start()
