"""Batches for an outbox, which know their number and whether their memory was given back."""

from __future__ import annotations

import numpy as np

from pecan_ray.engines.contract import Produced
from pecan_ray.transport.outbox import Outbox


class Memory:
    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(64))
        self.released = 0

    def release(self) -> None:
        self.released += 1


def batch(number: int, nbytes: int = 8, epoch: int = 0) -> Produced:
    spans = {(0, 0, epoch): [(number, number + 1)]}
    return Produced({"x": np.zeros(nbytes, np.uint8)}, spans, 1, epoch, slot=Memory())


def number_of(produced: Produced) -> int:
    ((span,),) = produced.spans.values()
    return span[0]


def outbox_of(batches: list[Produced]) -> Outbox:
    outbox = Outbox()
    for one in batches:
        outbox.put(one, None)
    outbox.close()
    return outbox
