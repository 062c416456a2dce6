"""What is kept of pipelines whose costs are given, written down: a change to the decision shows what it changes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from pecan_ray import cache_options
from pecan_ray.autocache.decision import SampledCosts, with_kept_points
from pecan_ray.autocache.store_speed import SPEED, StoreSpeed, note_speed
from pecan_ray.cache.execution_profile import OperatorCost, SourceCost
from pecan_ray.cache.store_model import StoreModel
from pecan_ray.cache_options import Cache
from pecan_ray.caching.store import EntryStore
from pecan_ray.options import EngineName
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.operators import Autocache, Plan
from pecan_ray.plan.shape import element_ops_from
from pecan_ray.plan.splits import Source, Split
from pecan_ray.sources.tf_data import TfDataSource
from tests.unit.engines.engine_leases import Numbered

WRITTEN = Path(__file__).with_name("decided.txt")
"""A paragraph for each case; `python -m tests.unit.autocache.test_decided` writes all anew."""
MIB = 1 << 20
OPS = {
    "slow": OperatorCost("slow", 2e-3, 300.0, 1.0, False),
    "large": OperatorCost("large", 1e-4, 2e6, 1.0, False),
    "small": OperatorCost("small", 1e-6, 8.0, 1.0, False),
    "drawn": OperatorCost("drawn", 1e-5, 308.0, 1.0, True),
    "crops": OperatorCost("crops", 5e-3, 1e4, 5.0, False),
}
"""What operators cost, by their names."""
FORTY_SPLITS = Numbered(*[100] * 40, known=True)
READING = SourceCost(1e-5, 300.0)
SLOW_READING = SourceCost(3e-3, 300.0)
DISK = StoreModel(1e-4, 2e-6, 3e-10)
MEMORY = StoreModel(1e-5, 1e-6, 1e-10)
NETWORK = StoreModel(2e-2, 2e-6, 1e-8, waiting=0.9)
DELIVERY = ((64.0, 1e-5), (4096.0, 1.2e-5), (65536.0, 4e-5), (524288.0, 4e-4))


@dataclass(frozen=True)
class Case:
    words: str
    """Operators by their names, batches, and points at which something may be kept, which have other names."""
    reading: SourceCost | None = READING
    """None: the sample did not show what anything costs."""
    source: Source = FORTY_SPLITS
    engine: EngineName = "python"
    cpus: float = 1
    workers: int = 1
    memory_bytes: int = 0
    has_remote: bool = False
    max_bytes: int = 1 << 30
    took: float | None = None
    """Seconds of an epoch of what was decided first; what a later job decides is told too."""

    def pipe(self) -> PecanPipeline:
        if self.words == "two inputs":
            other = replace(self, words="large other small").pipe()
            return replace(self, words="slow one").pipe().concat(other, PecanPipeline(self.source)).batch(4)
        pipe = PecanPipeline(self.source, name="numbers")
        for word in self.words.split():
            if word in OPS:
                pipe = pipe.map(lambda value: value, name=word)
            elif word.endswith("batch"):
                pipe = getattr(pipe, word)(4)
            else:
                pipe = pipe.autocache(name=word, refresh=0.2 if word == "renewed" else 0.0)
        return pipe


class Sized(Numbered):
    """Parts of files, which tell their bytes, and not what they hold."""

    def splits(self) -> Iterator[Split]:
        yield from (replace(split, path="file", stop=60_000) for split in super().splits())


CASES = {
    "what takes long": Case("slow kept small batch"),
    "what is computed sooner than it is read": Case("small large kept batch"),
    "small before it grows": Case("slow first large second batch"),
    "behind what takes long": Case("small first slow second batch"),
    "behind a random operator": Case("slow drawn kept batch"),
    "a random operator behind it": Case("slow kept drawn batch"),
    "behind a random operator, renewed": Case("slow drawn renewed batch"),
    "several of each element": Case("crops kept batch"),
    "padded": Case("slow kept padded_batch"),
    "no batches": Case("slow kept"),
    "a slow source and no operator": Case("kept batch", SLOW_READING),
    "a slow source that nobody has marked": Case("large kept small batch", SLOW_READING),
    "little room": Case("slow large kept batch", max_bytes=500 * MIB),
    "splits larger than an entry": Case("slow large kept batch", source=Numbered(2000, 100, known=True)),
    "splits that say nothing": Case("slow kept batch", source=Numbered(2000, 100)),
    "splits that say their bytes": Case("slow large kept batch", source=Sized(*[100] * 3)),
    "several CPUs": Case("slow kept small batch", cpus=4.5),
    "several workers": Case("slow kept small batch", cpus=4.5, workers=3),
    "more workers than CPUs": Case("slow kept small batch", cpus=1.5, workers=3),
    "memory": Case("slow large kept batch", SLOW_READING, memory_bytes=256 * MIB),
    "a store for all": Case("slow kept small batch", has_remote=True),
    "a store for all, of large elements": Case("large kept batch", has_remote=True),
    "an epoch was quicker": Case("slow kept small batch", took=0.1),
    "an epoch was slower": Case("slow kept small batch", took=1e6),
    "a graph, marked behind the source": Case("kept small batch", SLOW_READING, engine="tensorflow"),
    "a graph, marked behind an operator": Case("slow late batch", SLOW_READING, engine="tensorflow"),
    "a graph that takes less than recording": Case("small late batch", SLOW_READING, engine="tensorflow"),
    "a graph, marked between operators": Case("small late slow batch", SLOW_READING, engine="tensorflow"),
    "a dataset of tf.data": Case("slow kept batch", source=TfDataSource(lambda: None), engine="tensorflow"),
    "each input of a join": Case("two inputs"),
    "nothing was measured": Case("slow kept batch", None),
    "no point": Case("slow batch"),
}


def decided(name: str) -> str:
    """Return what is kept in a case, what it is told of, and what a later job does."""
    case, lines = CASES[name], [name]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        (Path(folder) / "shm").mkdir()
        patch.setattr(cache_options, "SHARED_MEMORY", Path(folder) / "shm")
        remote = f"{folder}/remote" if case.has_remote else None
        cache = Cache(f"{folder}/cache", case.max_bytes, memory_bytes=case.memory_bytes, remote=remote)
        with EntryStore(cache.folder, max_bytes=cache.max_bytes) as store:
            note_speed(store, StoreSpeed(DISK, DELIVERY))
            store.note(f"{SPEED} {cache.remote_url}", json.dumps({**asdict(NETWORK), "most_bytes_per_s": 1e8}))
        if cache.memory_folder is not None:
            with EntryStore(cache.memory_folder, max_bytes=cache.memory_bytes, private=True) as store:
                note_speed(store, StoreSpeed(MEMORY, DELIVERY))
        for _ in range(1 if case.took is None else 2):
            lines += kept(case, cache)
    return "\n".join(lines)


def kept(case: Case, cache: Cache) -> list[str]:
    def costs(plan: Plan) -> SampledCosts | None:
        ops = tuple(OPS[op.name] for op in element_ops_from(plan, 0))
        return None if case.reading is None else SampledCosts(case.reading, ops)

    plan, cpus, workers = case.pipe().plan, case.cpus, case.workers
    found = with_kept_points(
        plan, costs, name="ours", engine=case.engine, seed=0, cache=cache, cpus=cpus, workers=workers
    )
    points = [op for op in found.plan.all_ops() if isinstance(op, Autocache) and op.key]
    with EntryStore(cache.folder, max_bytes=cache.max_bytes) as store:
        names = [store.read_note(f"name {op.key}") for op in points]
    lines = [f"keeps {name}, for all machines: {op.remote}" for op, name in zip(points, names, strict=True)]
    lines += found.notes
    lines += [f"frozen: {text}" for text in found.frozen]
    estimate = found.epoch_estimate
    if estimate is not None:
        lines.append(f"{estimate.elements:g} elements an epoch")
        lines += [] if case.took is None else [estimate.correct(case.took)]
    return lines or ["keeps nothing"]


@pytest.mark.parametrize("name", CASES)
def test_what_is_kept_in_a_case_is_what_is_written_down(name: str) -> None:
    written = WRITTEN.read_text().strip().split("\n\n")
    assert decided(name) == written[list(CASES).index(name)]


if __name__ == "__main__":
    WRITTEN.write_text("\n\n".join(map(decided, CASES)) + "\n")
