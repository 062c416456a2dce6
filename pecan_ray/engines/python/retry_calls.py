"""Functions that read files by themselves, from a storage that fails for a while."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import numpy as np

from pecan_ray.errors import OpError, StorageOutageError, is_interrupt
from pecan_ray.storage.local_errors import passes
from pecan_ray.storage.retry import retry

UNCHANGEABLE = (str, bytes, int, float, np.generic, PurePath, type(None))
"""What a function is given again after a failure: it cannot have written into these."""


def is_retryable(error: BaseException, argument: Any) -> bool:
    """Tell whether a function has failed with an error that passes, and can be given the same argument once more."""
    # A function that has written into its array before it failed would see it changed.
    return passes(error) and isinstance(argument, UNCHANGEABLE)


def retry_call(call: Callable[[], Any], where: str, explain: Callable[[BaseException], OpError]) -> Any:
    """Return what a call returns, tried until its storage answers.

    Raises StorageOutageError when the patience is over, and for other errors what `explain` makes of them.
    """
    try:
        return retry(call, passes=passes, path=where)
    except BaseException as error:
        if is_interrupt(error) or isinstance(error, StorageOutageError):
            raise
        raise explain(error) from error
