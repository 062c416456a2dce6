"""What became of a run's elements: lost, repeated, uncounted, unequal, or as it must be."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults.case import FaultCase, twice
from pecan_ray.sampling.spans import Spans

POSITION_BITS = 32


@dataclass
class TrainerStory:
    """What one trainer wrote."""

    pid: int = 0
    batches: list[tuple[int, list[int]]] = field(default_factory=list)
    """Epoch and elements of each."""
    error: str = ""
    stats: dict[str, Any] = field(default_factory=dict)
    ended: bool = False
    threads: list[str] = field(default_factory=list)
    starts: int = 0
    """Times that it began: once more for each time it was killed, and another one went on."""

    @classmethod
    def read(cls, file: Path) -> TrainerStory:
        """Read a trainer's file, whose last line may be cut off."""
        told = cls()
        for line in file.read_text().splitlines() if file.exists() else ():
            try:
                said = json.loads(line)
            except ValueError:
                continue  # it was killed while it wrote
            if "ids" in said:
                told.batches.append((said["epoch"], said["ids"]))
            elif "pid" in said:
                told.pid = said["pid"]
                told.starts += 1
                del told.batches[said.get("kept", 0) :]  # the model, too, is the one that was saved with the state
            elif "error" in said:
                told.error = said["error"]
            elif "end" in said:
                told.ended, told.threads = True, said["threads"]
            else:
                told.stats = said
        return told


def problems(case: FaultCase, told: list[TrainerStory], killed: set[int]) -> list[str]:
    """Return what is wrong with a run that has ended.

    `killed`: the ranks that were killed.
    """
    found = []
    for rank, one in enumerate(told):
        if rank in killed:
            continue
        if not one.ended:
            found.append(f"crash: rank {rank} ended without a word")
        if one.threads:
            found.append(f"left: rank {rank} has threads {one.threads}")
        # Who hangs takes an element with it, which is worked on again first, and may be taken by the next one as well.
        blamed = sum(fault.kind == "hang" for fault in case.faults) > 1 and "had not done with it after" in one.error
        expected = (killed and "has not been heard" in one.error) or blamed
        if one.error and not expected:
            found.append(f"error: rank {rank}: {one.error}")
        if one.stats.get("gone"):
            found.append(f"error: rank {rank}: {one.stats['gone']}")
    delivered = [Counter[int]() for _ in range(case.epochs)]
    for one in told:
        for epoch, ids in one.batches:
            delivered[epoch].update(ids)
    found += _unexpected(case, delivered)
    if killed or any(one.error or not one.ended for one in told):
        return found
    if any(one.starts > 1 for one in told):
        return found + _missing(case, delivered)
    return found + _unequal(case, told) + _uncounted(case, told, delivered)


def recoveries(told: list[TrainerStory]) -> list[float]:
    """Return for each worker that was lost after how many seconds another one ran."""
    events: list[tuple[float, str]] = max((one.stats.get("events", []) for one in told), key=len, default=[])
    came = [seconds for seconds, kind in events if kind == "worker"]
    lost = [seconds for seconds, kind in events if kind == "lost"]
    return [min(one for one in came if one >= since) - since for since in lost if since <= max(came, default=0.0)]


def _unexpected(case: FaultCase, delivered: list[Counter[int]]) -> list[str]:
    """Name what came though it must not, or too often."""
    found = []
    expected = case.expected()
    for epoch, came in enumerate(delivered):
        irregular = [i for i in came if i not in expected]
        if irregular:
            found.append(f"strange: epoch {epoch} has {irregular[:5]}")
        if case.visitation != "zero_or_more":
            often = came - expected
            if often and not irregular:
                found.append(f"repeated: epoch {epoch} has {often.total()} too many: {list(often)[:5]}")
    return found


def _unequal(case: FaultCase, told: list[TrainerStory]) -> list[str]:
    found = []
    for epoch in range(case.epochs):
        counts = [sum(one == epoch for one, _ in trainer.batches) for trainer in told]
        if len(set(counts)) > 1:
            found.append(f"unequal: epoch {epoch} has {counts} batches for the ranks")
    if case.drop_remainder and any(len(ids) != case.batch for one in told for _, ids in one.batches):
        found.append("uncounted: a batch is not full, though remainders are dropped")
    return found


def _missing(case: FaultCase, delivered: list[Counter[int]]) -> list[str]:
    """Name what has not come to the one trainer of a job that was killed, whose counts are those of its last part."""
    missing = [case.expected() - came for came in delivered]
    return [f"lost: epoch {epoch} lacks {sorted(one)[:5]}" for epoch, one in enumerate(missing) if one]


def _uncounted(case: FaultCase, told: list[TrainerStory], delivered: list[Counter[int]]) -> list[str]:
    """Compare what is missing with what is said to be left out."""
    facts = max((one.stats for one in told), key=lambda facts: float(facts["seconds"]))
    found = []
    came = sum(epoch.total() for epoch in delivered)
    if facts["elements"] != came:
        found.append(f"uncounted: {came} elements came, and {facts['elements']} were counted")
    if (bad := case.bad()) is not None and facts["bad"] != bad:
        found.append(f"uncounted: {bad} elements are bad, and {facts['bad']} were counted")
    if case.visitation == "zero_or_more":
        return found
    missing = sum((case.expected() - epoch).total() for epoch in delivered)
    counted = facts["left_out"] + sum(_positions(case, key, spans) for key, spans in facts["dropped"])
    # What ranks cannot share is counted in elements that went in, of which `flat_map` makes several.
    least = missing // len(twice({"i": 0})) if case.plan == "flat_map" else missing
    # What was left out before anybody looked at it might have been filtered.
    unseen = case.epochs * (case.rows * case.repeat - case.expected().total()) if case.plan == "filter" else 0
    if not least <= counted <= missing + unseen:
        kind = "lost" if missing > counted else "uncounted"
        found.append(f"{kind}: {missing} elements are missing, and {counted} were counted as left out or dropped")
    partial = case.batch if case.drop_remainder or case.plan == "take" else 1
    # A batch that is short of an element which yields nothing costs the round of batches that it was to be part of; of
    # elements that yield several, some delivered, each batch that is regrouped may leave a remainder.
    rounds = {"bad": 2, "filter": 2, "torn": 2, "flat_map": 4}.get(case.plan, 1) if case.drop_remainder else 1
    most = case.epochs * (rounds * case.world_size * partial - 1)
    if facts["left_out"] > most:
        found.append(f"lost: {facts['left_out']} elements were left out, of which {most} are remainders at most")
    return found


def _positions(case: FaultCase, key: list[int], spans: list[list[int]]) -> int:
    """Count the elements of what a lost worker held of a split, where data is visited at most once."""
    step = max(1, min(case.rows // 16, 4096))
    length = min(step, case.rows - key[2] * step)
    held = Spans((start, min(stop, length << POSITION_BITS)) for start, stop in spans)
    return sum((stop - start) >> POSITION_BITS for start, stop in held)
