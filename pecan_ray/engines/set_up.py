"""Functions with something that is made once in each process that runs them: a tokenizer, a model, a connection."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from pecan_ray.plan.operators import Function, wants_epoch, wants_rng


class PerProcess:
    """Calls a function once in this process, and returns what it has made; pickled, it begins anew."""

    def __init__(self, setup: Callable[[], Any]) -> None:
        self.setup = setup

    def __call__(self) -> Any:
        """Return what was made; other threads wait while it is."""
        with _lock:
            # Under the lock while it is made: eight threads that load one model each would take eight times
            # its memory.
            if self not in _made:
                _made[self] = self.setup()
            return _made[self]


_lock = threading.RLock()
"""Guards what was made; reentrant, so that a set-up may use another one."""
# Weak, so that a model goes with the plan whose function asked for it.
_made: weakref.WeakKeyDictionary[PerProcess, Any] = weakref.WeakKeyDictionary()
"""Beside its owner, which is compared with others by what it holds."""


def with_setup(fn: Function, setup: Callable[[], Any]) -> Function:
    """Return a function of a value that calls `fn` with the value and what `setup` has made in this process."""
    # One function for each signature: what a chain hands over is read off the signature, which a wrapper
    # would hide.
    calls: dict[tuple[bool, bool], Function] = {
        (False, False): _plain,
        (True, False): _random,
        (False, True): _by_epoch,
        (True, True): _random_by_epoch,
    }
    return partial(calls[wants_rng(fn), wants_epoch(fn)], fn, PerProcess(setup))


def _plain(fn: Function, made: PerProcess, value: Any) -> Any:
    return fn(value, made())


def _random(fn: Function, made: PerProcess, value: Any, rng: np.random.Generator) -> Any:
    return fn(value, made(), rng=rng)


def _by_epoch(fn: Function, made: PerProcess, value: Any, epoch: int) -> Any:
    return fn(value, made(), epoch=epoch)


def _random_by_epoch(fn: Function, made: PerProcess, value: Any, rng: np.random.Generator, epoch: int) -> Any:
    return fn(value, made(), rng=rng, epoch=epoch)
