"""What an outage of a storage may do to an epoch, whichever storage it is."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from itertools import product
from threading import Timer

import numpy as np
import pytest

from pecan_ray import PecanPipeline
from pecan_ray.engines.contract import Produced
from pecan_ray.engines.inprocess import run_produced
from pecan_ray.errors import StorageOutageError
from pecan_ray.options import EngineName, OnError
from pecan_ray.plan.operators import Plan
from pecan_ray.sources import TextLines, files
from tests.flaky_http import FlakyProxy

FILES, LINES, AHEAD = 24, 5, 4
ON_ERROR = ("raise", "skip", "quarantine")
SHORTEST_S = 0.0
"""An outage of so many seconds ends when each fetch has failed twice."""
ENGINES = ("python", "tensorflow")
LONG = list(product(ENGINES, (1.0, 10.0, 60.0), ON_ERROR))
IN_SHORT = [(engine, SHORTEST_S, "skip") for engine in ENGINES]
OUTAGES = [*IN_SHORT, *(pytest.param(*case, marks=pytest.mark.slow) for case in LONG)]
"""Engines, for how many seconds a store fails them, and what they do about bad elements.

In short `check_patience` has all that can be done about them.
"""


@contextlib.contextmanager
def running(plan: Plan, engine: EngineName, on_error: OnError) -> Iterator[Generator[Produced, None, None]]:
    """Run a plan that fetches so little ahead that an outage behind its first element meets requests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "SPLITS_AHEAD", AHEAD)
        with contextlib.closing(run_produced(plan, engine=engine, on_error=on_error)) as produced:
            yield produced


def check_outage(proxy: FlakyProxy, pattern: str, on_error: OnError, engine: EngineName, seconds: float) -> None:
    """Let a store fail in the middle of an epoch, for a time; every element must come."""
    pipe = PecanPipeline(TextLines(pattern), engine=engine).map(lambda element: element)
    with running(pipe.plan, engine, on_error) as produced:
        found = [next(produced)]
        if seconds == SHORTEST_S:
            proxy.faults.extend([503] * 2 * AHEAD)
        else:
            proxy.outage = 503
            Timer(seconds, lambda: setattr(proxy, "outage", None)).start()
        found += produced
    texts = sorted(text for one in found for text in np.atleast_1d(one.columns["text"]).astype(str))
    assert texts == sorted(f"{n} {line}" for n in range(FILES) for line in range(LINES))
    assert [bad for one in found for bad in one.bad] == []
    assert not proxy.faults and (proxy.refused > 0 or seconds == SHORTEST_S)


def check_patience(proxy: FlakyProxy, pattern: str, on_error: OnError) -> None:
    """Let a store fail for longer than the patience: the job ends, and no element is taken for a bad one."""
    pipe = PecanPipeline(TextLines(pattern)).map(lambda element: element)
    with running(pipe.plan, "python", on_error) as produced:
        found = [next(produced)]
        proxy.outage = 503
        with pytest.raises(StorageOutageError, match="503"):
            found += produced
    assert [bad for one in found for bad in one.bad] == []


def outage_objects() -> dict[str, bytes]:
    return {f"many/{n:02}": b"".join(b"%d %d\n" % (n, line) for line in range(LINES)) for n in range(FILES)}
