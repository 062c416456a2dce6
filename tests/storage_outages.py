"""What an outage of a storage may do to an epoch, whichever storage it is."""

from __future__ import annotations

import contextlib
from threading import Timer

import numpy as np
import pytest

from pecan_ray import PecanPipeline
from pecan_ray.engines.inprocess import run_produced
from pecan_ray.errors import StorageOutageError
from pecan_ray.options import EngineName, OnError
from pecan_ray.sources import TextLines
from tests.flaky_http import FlakyProxy

FILES, LINES = 24, 5


def check_outage(proxy: FlakyProxy, pattern: str, on_error: OnError, engine: EngineName, seconds: float) -> None:
    """Let a store fail in the middle of an epoch, for a time; every element must come."""
    pipe = PecanPipeline(TextLines(pattern), engine=engine).map(lambda element: element)
    with contextlib.closing(run_produced(pipe.plan, engine=engine, on_error=on_error)) as produced:
        found = [next(produced)]
        proxy.outage = 503
        Timer(seconds, lambda: setattr(proxy, "outage", None)).start()
        found += produced
    texts = sorted(text for one in found for text in np.atleast_1d(one.columns["text"]).astype(str))
    assert texts == sorted(f"{n} {line}" for n in range(FILES) for line in range(LINES))
    assert [bad for one in found for bad in one.bad] == []
    assert proxy.refused > 0


def check_patience(proxy: FlakyProxy, pattern: str, on_error: OnError) -> None:
    """Let a store fail for longer than the patience: the job ends, and no element is taken for a bad one."""
    pipe = PecanPipeline(TextLines(pattern)).map(lambda element: element)
    with contextlib.closing(run_produced(pipe.plan, on_error=on_error)) as produced:
        found = [next(produced)]
        proxy.outage = 503
        with pytest.raises(StorageOutageError, match="503"):
            found += produced
    assert [bad for one in found for bad in one.bad] == []


def outage_objects() -> dict[str, bytes]:
    return {f"many/{n:02}": b"".join(b"%d %d\n" % (n, line) for line in range(LINES)) for n in range(FILES)}
