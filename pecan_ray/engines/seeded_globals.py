"""Functions that draw from global generators (`random`, NumPy's, torch's), seeded for each element.

The numbers of an element then belong to seed, pass, operator and element, as those of a parameter `rng` do.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.random import mtrand

from pecan_ray.plan.operators import Function, wants_rng
from pecan_ray.plan.own_attributes import function_name

logger = logging.getLogger("pecan_ray")

DRAWING = {
    "torch": (
        "was not seeded for this element, so that what was drawn differs from run to run",
        "Import it at the top of the module, so that it is there when the function is called.",
    ),
    **dict.fromkeys(
        ("tensorflow", "cupy"),
        ("is not seeded for elements", "Draw by NumPy, `random` or torch, or from a parameter `rng`."),
    ),
}
"""Libraries with a global generator that are not imported with NumPy: what is said of each, and what to do."""

_turns = threading.Lock()
"""The generators belong to the process: functions that draw from them run one after the other in it."""
_own = np.random.MT19937()
"""NumPy's global generator while one of them runs."""


def _after_fork() -> None:
    global _turns
    _turns = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)


def with_seeded_globals(fn: Function) -> Function:
    """Return a function whose global generators are seeded from an element's own one, and are put back behind it."""
    return partial(_call, fn, wants_rng(fn))


def _call(fn: Function, given: bool, value: Any, rng: np.random.Generator) -> Any:
    """Call a function; `given`: it takes the generator as well."""
    # One number is drawn from the element's generator first, so a parameter `rng` goes on behind it in every
    # run.
    with _turns, _seeded(int(rng.integers(1 << 63))):
        absent = [name for name in DRAWING if name not in sys.modules]
        try:
            return fn(value, rng=rng) if given else fn(value)
        finally:
            for name in absent:
                if name in sys.modules:
                    _warn_of_import(name, fn)


def _warn_of_import(name: str, fn: Function) -> None:
    """Say that a function has imported a library whose generator could not be seeded before it ran."""
    logger.warning(
        "map(seed_globals=True): %s has imported %s, whose global generator %s. %s",
        function_name(fn),
        name,
        *DRAWING[name],
    )


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    torch = getattr(sys.modules.get("torch"), "default_generator", None)  # that of CPUs; nothing is imported for it
    # NumPy's generator is exchanged: to copy its state takes ten times as long.
    before = random.getstate(), mtrand.get_bit_generator(), None if torch is None else torch.get_state()
    random.seed(seed)
    mtrand.set_bit_generator(_own)
    # NumPy's legacy seeding takes words of 32 bits.
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
    if torch is not None:
        torch.manual_seed(seed)
    try:
        yield
    finally:
        # Put back, because other functions in this process may draw without `seed_globals`.
        random.setstate(before[0])
        mtrand.set_bit_generator(before[1])
        if torch is not None:
            torch.set_state(before[2])
