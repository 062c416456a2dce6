"""The cases, by key."""

from __future__ import annotations

from benchmarks.peers.cases.audio import AUDIO
from benchmarks.peers.cases.augmentation import RAND_AUGMENT, SIMCLR
from benchmarks.peers.cases.case import PeerCase, Target
from benchmarks.peers.cases.existing import EXISTING
from benchmarks.peers.cases.photographs import FIGURE_3, FIRST_BATCH, PHOTOGRAPHS
from benchmarks.peers.cases.python_code import PYTHON_CODE
from benchmarks.peers.cases.stragglers import STRAGGLERS
from benchmarks.peers.cases.tables import TABLES
from benchmarks.peers.cases.text import TEXT
from benchmarks.peers.cases.transport import TINY, TRANSPORT

CASES: tuple[PeerCase, ...] = (
    PHOTOGRAPHS,
    FIGURE_3,
    RAND_AUGMENT,
    SIMCLR,
    AUDIO,
    TEXT,
    TRANSPORT,
    TINY,
    TABLES,
    FIRST_BATCH,
    PYTHON_CODE,
    STRAGGLERS,
    *EXISTING,
)

__all__ = ["CASES", "PeerCase", "Target", "by_key"]


def by_key(key: str) -> PeerCase:
    """Return a case."""
    return next(case for case in CASES if case.key == key)
