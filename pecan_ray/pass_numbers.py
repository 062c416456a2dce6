"""The number of a pass: counted here for every way to iterate over a pipeline.

A pass is one run over a pipeline from its beginning.  Order and random numbers depend on its number beside the seed.
Passes over a pipeline are numbered in a program from 0 on, so a program that is run again counts the same again.  Each
trainer (a rank of so many) counts its own passes: ranks that run the same program agree, also where rank 0 looks at
some batches alone.  Processes share no counts, and an unpickled pipeline counts from 0 on: it does not matter what else
its process has done.
"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TypeAlias

logger = logging.getLogger("pecan_ray")

TrainerPlace: TypeAlias = "tuple[int, int]"
"""Rank and world size."""
Parts: TypeAlias = "tuple[tuple[str, str], ...]"
"""What a plan consists of, as `pecan_ray.plan.fingerprint` describes it."""

_counting = threading.Lock()
"""Guards all counts of the process, and what was warned of."""
_newest: dict[tuple[str, Parts], weakref.ref[PassCounts]] = {}
"""By name and parts of a pipeline: the counts of the one that began a job last."""
_reminded: set[str] = set()
"""Names of pipelines about which `warn_if_epochs_restart` has warned."""


class PassCounts:
    """Counts the passes over a pipeline and over those that were derived from it, each kind apart.

    Derived pipelines with the same operators are one: ``pipe.batch(8).iter_batches()`` in a loop goes on.
    """

    def __init__(self) -> None:
        self._next: dict[tuple[Parts, TrainerPlace], int] = {}

    def __reduce__(self) -> tuple[type[PassCounts], tuple[()]]:
        # Empty: another process has its own passes
        # (docs/decisions/randomness-and-passes.md#87-passes-are-numbered).
        return PassCounts, ()

    def begin(self, parts: Parts, place: TrainerPlace, first_epoch: int | None = None) -> RunPasses:
        """Count a run that begins: with pass `first_epoch`, or else with a number that no pass has had before."""
        with _counting:
            following = self._next.get((parts, place), 0)
            first = following if first_epoch is None else first_epoch
            return self._run_passes(parts, place, first, max(following, first + 1))

    def resume(self, parts: Parts, place: TrainerPlace, epoch: int, *, first_epoch: int, ended: bool) -> RunPasses:
        """Count a run that goes on in `epoch` of one that began with `first_epoch`; `ended`: nothing of it is left."""
        with _counting:
            return self._run_passes(parts, place, first_epoch, epoch if ended else epoch + 1)

    def _run_passes(self, parts: Parts, place: TrainerPlace, first: int, following: int) -> RunPasses:
        before = self._next.get((parts, place), 0)
        self._next[parts, place] = following
        return RunPasses(self._next, (parts, place), first, before)


class RunPasses:
    """The passes of one run: the first is counted when the run begins, each further one with its first batch."""

    def __init__(
        self, counts: dict[tuple[Parts, TrainerPlace], int], key: tuple[Parts, TrainerPlace], first: int, before: int
    ) -> None:
        """`before`: what the next pass would have been without this run."""
        self._counts, self._key, self._before = counts, key, before
        self._count = counts[key]
        self.first_epoch = first

    def note_epoch(self, epoch: int) -> None:
        """Note a batch of an epoch."""
        if epoch >= self._count:
            with _counting:
                self._counts[self._key] = self._count = max(self._counts[self._key], epoch + 1)

    def __enter__(self) -> RunPasses:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Count a run that could not begin as if it had not been asked for."""
        with _counting:
            # Otherwise another run has begun meanwhile, which counts.
            if kind is not None and self._counts[self._key] == self._count:
                self._counts[self._key] = self._before


def warn_if_epochs_restart(name: str, parts: Parts, counts: PassCounts, *, begins_anew: bool) -> None:
    """Warn, once for a name, where a pipeline is made again for each epoch: each of them begins with epoch 0.

    `begins_anew`: this run begins with epoch 0, and nobody has said so.
    """
    with _counting:
        earlier = _newest.get((name, parts))
        # Weakly: a strong reference would keep each pipeline, and none would ever seem to be made again.
        _newest[name, parts] = weakref.ref(counts)
        # An equal pipeline that is still there is another one, and none that was made again.
        rebuilt = earlier is not None and earlier() is None
        if not (rebuilt and begins_anew) or name in _reminded:
            return
        _reminded.add(name)
    logger.warning(
        "%s: this pipeline was made again, so it begins with epoch 0: with the order and the random numbers that an "
        "equal pipeline had before. Make it once, in front of the loop over epochs, or pass "
        "iter_batches(first_epoch=epoch). A seed that you give, PecanPipeline(seed=...), says that it is meant so.",
        name,
    )
