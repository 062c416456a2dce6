"""A random job: its data, plan, trainers and workers, and what happens to it."""

from __future__ import annotations

import math
import os
import random
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import google_crc32c
import numpy as np

import pecan_ray as pecan
from pecan_ray.options import Config, EngineName, TransportChoice, Visitation, Workers

PlanName: TypeAlias = Literal["map", "filter", "nothing", "flat_map", "bad", "take", "torn"]
LiveFaultKind: TypeAlias = Literal[
    "kill",
    "freeze",
    "pause",
    "hang",
    "scale",
    "node",
    "pause node",
    "kill trainer",
    "pause trainer",
    "kill controller",
    "pause controller",
    "restart from state",
    "restart from journal",
    "slow link",
    "cut link",
    "storage outage",
    "storage errors",
    "storage resets",
    "journal outage",
    "full disk",
    "full shm",
    "preempt node",
    "terminate",
    "few files",
    "pause gcs",
]

WORKER_TIMEOUT_S = 5.0
GRAPH_WORKER_TIMEOUT_S = 20.0
"""Of the tensorflow engine: to import TensorFlow holds Python's lock for seconds, where several do it on two cores."""
TRAINER_TIMEOUT_S = 12.0
HUNG_AFTER_S = 8.0
VICTIM = {"victim": "yes"}
"""Label of the node that is lost."""
BUCKET, FILE_ROWS = "chaos", 4
FILES, RECORDS, TORN_AT = 4, 50, 180
KEEPS, BAD, BAD_AT = 3, 37, 5


@dataclass(frozen=True)
class LiveFault:
    """Something that happens to a job."""

    kind: LiveFaultKind
    at: float
    """When this share of all batches has been received."""
    local: int = 0
    remote: int = 0
    seconds: float = 0.0
    """After which something paused goes on, or works again; or whose end was announced is ended."""
    delay_s: float = 0.0
    """By which packets of a slow link are late."""
    share_lost: float = 0.0
    """Of its packets."""


@dataclass(frozen=True)
class Held:
    """The rest of a run comes after its faults, and these after all workers run, however fast or slow anybody is."""

    start: int
    """Elements from this number on wait until all has happened, and until"""
    losses: int = 0
    """the job knows of so many lost workers."""


@dataclass(frozen=True)
class Work:
    """An element's work: it takes a while and makes an array that holds the element's number everywhere."""

    seconds: float
    width: int
    held: Held | None = None
    released: str = ""
    """A file that is there when nothing is held any more."""
    hang: str = ""
    """A file that is there when one call shall never come back: the one that removes it; empty: none does."""

    def __call__(self, i: Any) -> Any:
        if self.hang and os.path.exists(self.hang) and _removed(self.hang):
            threading.Event().wait()
        while self.held is not None and i >= self.held.start and not os.path.exists(self.released):
            time.sleep(0.02)
        time.sleep(self.seconds)
        return np.full(self.width, i, np.int32)


def _removed(file: str) -> bool:
    """Remove a file; tell whether nobody else has."""
    try:
        os.unlink(file)
    except FileNotFoundError:
        return False
    return True


@dataclass(frozen=True)
class TfWork:
    """The same, called by a TensorFlow graph."""

    work: Work

    def __call__(self, i: Any) -> Any:
        import tensorflow as tf

        made = tf.numpy_function(self.work, [i], tf.int32)
        made.set_shape([self.work.width])
        return made


def kept(i: Any) -> Any:
    """Tell whether the filter keeps an element."""
    return i % KEEPS > 0


def never(i: Any) -> Any:
    """Keep nothing."""
    return i < 0


def doubled(i: Any) -> Any:
    """Make larger numbers of numbers: the operator that a cut leaves to the trainers."""
    return i.astype(np.float64) * 2


def twice(element: Any) -> list[Any]:
    """Make two elements of one."""
    return [{"i": 2 * element["i"]}, {"i": 2 * element["i"] + 1}]


def sometimes(i: Any) -> Any:
    """Fail for some elements."""
    if i % BAD == BAD_AT:
        raise ValueError("no such luck")
    return i


def twice_in_graph(element: Any) -> Any:
    """Do what `twice` does in a TensorFlow graph."""
    import tensorflow as tf

    return {"i": tf.stack([2 * element["i"], 2 * element["i"] + 1])}


def sometimes_in_graph(i: Any) -> Any:
    """Do what `sometimes` does in a TensorFlow graph."""
    import tensorflow as tf

    with tf.control_dependencies([tf.debugging.assert_none_equal(i % BAD, tf.constant(BAD_AT, i.dtype))]):
        return tf.identity(i)


def number(element: Any) -> Any:
    """Return the number that a record holds."""
    return {"i": int(element["record"][:3])}


@dataclass(frozen=True)
class FaultCase:
    """One run."""

    number: int = 0
    rows: int = 200
    epochs: int = 1
    steps_s: tuple[float, ...] = (0.0,)
    """What each trainer does with a batch takes so long."""
    separate: bool = False
    """Each trainer is a program of its own, not a Ray task."""
    spread: bool = False
    """Trainers run on two nodes."""
    plan: PlanName = "map"
    batch: int = 8
    drop_remainder: bool = False
    shuffle: int = 0
    repeat: int = 1
    width: int = 1
    """Numbers in an element."""
    element_s: float = 0.002
    prefetch_bytes: int = 1 << 20
    transport: TransportChoice = "auto"
    visitation: Visitation = "exactly_once"
    workers: Workers = field(default_factory=Workers)
    engine: EngineName = "python"
    reorder: bool = False
    faults: tuple[LiveFault, ...] = ()
    held: Held | None = None
    stored: bool = False
    """The data lies in an object store, not in memory."""
    cut: bool = False
    """Remote workers leave the last operator to the trainers."""

    @property
    def restarts(self) -> bool:
        """Whether its trainer is killed, and another one goes on."""
        return self.has("restart from state") or self.has("restart from journal")

    @property
    def keeps_journal_in_bucket(self) -> bool:
        """Whether its journal has a copy in the store."""
        return self.has("journal outage")

    @property
    def loses_node(self) -> bool:
        """Whether a node is lost, or may be."""
        return self.has("node") or self.has("full shm") or self.has("preempt node")

    @property
    def world_size(self) -> int:
        """How many trainers there are."""
        return len(self.steps_s)

    def has(self, kind: LiveFaultKind) -> bool:
        """Tell whether such a thing happens."""
        return any(fault.kind == kind for fault in self.faults)

    @property
    def on_error(self) -> Literal["raise", "skip"]:
        """What becomes of bad elements."""
        return "skip" if self.plan in ("bad", "torn") else "raise"

    def pipeline(self, folder: Path, journals: str | None = None) -> pecan.PecanPipeline:
        """Return what the trainers run; `journals`: where the controller writes its own."""
        config = Config(
            error_budget=1.0,
            transport=self.transport,
            reorder="safe" if self.reorder else "off",
            remote_labels=VICTIM if self.loses_node and self.number % 2 else {},
            trainer_timeout_s=TRAINER_TIMEOUT_S,
            worker_timeout_s=GRAPH_WORKER_TIMEOUT_S if self.engine == "tensorflow" else WORKER_TIMEOUT_S,
            hung_after_s=HUNG_AFTER_S if self.has("hang") else math.inf,
            ring_bytes=8 << 20,
            split_pipeline="always" if self.cut else "auto",
            journal=journals,
            progress=False,
        )
        options: dict[str, Any] = {"name": f"faults-{self.number}", "config": config, "engine": self.engine}
        if self.plan == "torn":
            torn_files(folder)
            pipe = pecan.PecanPipeline(pecan.sources.TFRecords(str(folder / "*.tfrecord")), **options).map(number)
        elif self.stored:
            objects = f"s3://{BUCKET}/{folder.parent.name}/*.jsonl"
            pipe = pecan.PecanPipeline(pecan.sources.JsonLines(objects), **options)
        else:
            pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(self.rows)), **options)
        if self.plan in ("filter", "nothing"):
            pipe = pipe.filter(kept if self.plan == "filter" else never, on="i")
        elif self.plan == "flat_map":
            pipe = pipe.flat_map(twice_in_graph if self.engine == "tensorflow" else twice)
        elif self.plan == "bad":
            pipe = pipe.map(sometimes_in_graph if self.engine == "tensorflow" else sometimes, on="i")
        hang = str(to_hang(folder.parent)) if self.has("hang") else ""
        work: Any = Work(self.element_s, self.width, self.held, str(released(folder.parent)), hang)
        if self.engine == "tensorflow":
            work = TfWork(work)
        pipe = pipe.map(work, on="i", name="work")
        if self.shuffle:
            pipe = pipe.shuffle(self.shuffle)
        if self.repeat > 1:
            pipe = pipe.repeat(self.repeat)
        if self.plan == "take":
            pipe = pipe.take(self.rows * 2 // 3)
        if self.cut:
            pipe = pipe.map(doubled, on="i")
        return pipe.batch(self.batch, drop_remainder=self.drop_remainder)

    def expected(self) -> Counter[int]:
        """Return the elements of an epoch, before anything is left out."""
        every: dict[PlanName, range | list[int]] = {
            "filter": [i for i in range(self.rows) if kept(i)],
            "nothing": [],
            "flat_map": range(2 * self.rows),
            "bad": [i for i in range(self.rows) if i % BAD != BAD_AT],
            "take": range(self.rows * 2 // 3),
            "torn": range(TORN_AT),
        }
        return Counter(dict.fromkeys(every.get(self.plan, range(self.rows)), self.repeat))

    def bad(self) -> int | None:
        """Return how many bad elements all epochs have; None if one cannot tell."""
        if self.plan == "torn":
            return None
        each = sum(i % BAD == BAD_AT for i in range(self.rows)) if self.plan == "bad" else 0
        return each * self.repeat * self.epochs

    def batches(self) -> int:
        """Return about how many batches there are in all."""
        return self.epochs * sum(self.expected().values()) // self.batch

    def __str__(self) -> str:
        steps = "/".join(f"{1000 * step:.0f}" for step in self.steps_s)
        faults = ", ".join(f"{fault.kind}@{fault.at:.2f}" for fault in self.faults) or "no fault"
        extras = [f"shuffle {self.shuffle}"] * (self.shuffle > 0) + [f"repeat {self.repeat}"] * (self.repeat > 1)
        extras += ["drop"] * self.drop_remainder + ["reorder"] * self.reorder + ["processes"] * self.separate
        extras += [self.visitation] * (self.visitation != "exactly_once") + ["tf"] * (self.engine == "tensorflow")
        extras += ["spread"] * self.spread + ["stored"] * self.stored + ["cut"] * self.cut
        return (
            f"{self.world_size} ranks ({steps} ms), {self.epochs} x {self.rows} rows, {self.plan}, batch {self.batch}, "
            f"width {self.width}, prefetch {self.prefetch_bytes}, {self.transport}, "
            f"{self.workers.local}+{self.workers.remote} workers{', ' if extras else ''}{', '.join(extras)}; {faults}"
        )


def random_case(seed: int, run: int) -> FaultCase:
    """Draw a run; the same one for the same two numbers."""
    rng = random.Random(f"{seed}/{run}")
    plan: PlanName = rng.choice(("map", "map", "map", "filter", "flat_map", "bad", "take", "torn", "nothing"))
    tensorflow = plan in ("map", "filter") and rng.random() < 0.04
    world_size = rng.choice((1, 2, 2, 3, 4))
    rows = FILES * RECORDS if plan == "torn" else rng.choice((3, 20, 60, 200, 500, 1200))
    local, remote = rng.choice(((1, 0), (0, 1), (1, 1), (1, 2), (2, 1), (2, 2), (3, 0), (1, 3)))
    faults = random_faults(rng, world_size)
    if any(fault.kind == "node" for fault in faults):
        local, remote = 1, rng.choice((2, 3))
    epochs, batch = rng.randint(1, 4), rng.choice((1, 3, 8, 16, 40))
    repeat = rng.choice((1, 1, 1, 2)) if plan != "take" else 1
    work_s = rng.uniform(0.5, 4.0) * (local + remote)
    return FaultCase(
        number=run,
        rows=rows,
        epochs=epochs,
        steps_s=tuple(rng.choice((0.0, 0.001, 0.005, 0.03)) for _ in range(world_size)),
        separate=rng.random() < 0.15,
        spread=rng.random() < 0.3,
        plan=plan,
        batch=batch,
        drop_remainder=rng.random() < 0.25,
        shuffle=0 if plan == "take" else rng.choice((0, 0, 20, 200)),
        repeat=repeat,
        width=rng.choice((1, 1, 1000, 20_000)),
        element_s=0.0 if rng.random() < 0.2 else min(0.02, work_s / (rows * repeat * epochs)),
        prefetch_bytes=rng.choice((1, 1, 10_000, 1 << 20, 64 << 20)),
        transport=rng.choice(("auto", "auto", "auto", "ring", "flight", "object_store")),
        visitation=rng.choice(("exactly_once",) * 8 + ("at_most_once", "zero_or_more"))
        if plan == "map"
        else "exactly_once",
        workers=Workers(local, remote),
        engine="tensorflow" if tensorflow else "python",
        reorder=rng.random() < 0.1,
        faults=faults,
    )


def random_faults(rng: random.Random, world_size: int) -> tuple[LiveFault, ...]:
    """Draw what happens to a run, in the order of time."""
    kinds: tuple[LiveFaultKind, ...] = ("kill", "kill", "freeze", "pause", "scale", "scale", "node", "pause trainer")
    chosen: list[LiveFaultKind] = [rng.choice(kinds) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    chosen = [kind for place, kind in enumerate(chosen) if kind != "node" or kind not in chosen[:place]]
    if world_size > 1 and rng.random() < 0.06:
        chosen.append("kill trainer")
    faults = []
    for kind in chosen:
        local, remote = rng.choice(((1, 0), (0, 1), (1, 1), (2, 2), (3, 1), (1, 3)))
        seconds = rng.choice((0.3, 2.0, WORKER_TIMEOUT_S + 3.0)) if kind == "pause" else rng.uniform(0.2, 3.0)
        faults.append(LiveFault(kind, rng.choice((0.0, rng.random(), rng.random())), local, remote, seconds))
    return tuple(sorted(faults, key=lambda fault: fault.at))


def released(folder: Path) -> Path:
    """Return the file in a run's folder that says that nothing is held any more."""
    return folder / "released"


def to_hang(folder: Path) -> Path:
    """Return the file in a run's folder that lets a call hang."""
    return folder / "hang"


def torn_files(folder: Path) -> None:
    """Write TFRecord files of which the last one is broken in the middle, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in range(FILES):
        path = folder / f"{file}.tfrecord"
        if path.exists():
            continue
        records = [_record(b"%03d" % (RECORDS * file + one) * 100) for one in range(RECORDS)]
        content = bytearray(b"".join(records))
        broken = TORN_AT - RECORDS * file
        if 0 <= broken < RECORDS:
            content[len(records[0]) * broken + 100] ^= 1
        part = folder / f".{file}-{time.monotonic_ns()}"
        part.write_bytes(content)
        part.rename(path)


def _record(data: bytes) -> bytes:
    """Return a record as a TFRecord file has it."""
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    crc = int(google_crc32c.value(data))
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)
