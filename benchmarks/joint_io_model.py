"""`joint_io.py` without a cluster: what the division of pipe and cache should give, block by block.

    python benchmarks/joint_io_model.py [--pipe 8e6] [--cache 64] [--ideal 12e6] [--seconds 80] [--blind]

The book that divides is the real one, and so are its reports, once a second; jobs are queues of blocks of 1 MiB in
random orders, with a memory of 32 blocks beside the cache, as workers have.  Told are bytes a second after the first 60
seconds, beside the best split by brute force.  `--blind`: what is found in memory does not count as read, and the
size of the dataset is taken as it then seems: so a room comes out too small.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.joint_io import MIB, OBJECTS, TwoJobs, best_splits, say
from pecan_ray.cache.eviction import should_store
from pecan_ray.cache_options import SharingPolicy
from pecan_ray.job.cluster_io import REPORT_S, ClusterIoRegistry, JobIo

STEP_S = 0.02
IN_MEMORY = 32
SEGMENTS = 16
LATELY = 10
KNOWN_FROM = 0.05
WARM_S = 60.0


@dataclass
class ModelJob:
    """A job that reads its blocks over and over."""

    number: int
    blocks: int
    ideal: float
    chance: random.Random
    order: deque[int] = field(default_factory=deque)
    memory: OrderedDict[int, None] = field(default_factory=OrderedDict)
    disk: dict[int, None] = field(default_factory=dict)
    room: int = 0
    tokens: float = 0.0
    ready: float = 0.0
    used: float = 0.0
    waited_s: float = 0.0
    taken: int = 0
    remote: int = 0
    node: int = 0
    looks: deque[tuple[float, int, int, float, float]] = field(default_factory=deque)

    def step(self, quota: float, *, blind: bool) -> None:
        """Read what is allowed, and train."""
        self.tokens = min(self.tokens + quota * STEP_S, MIB + quota / 10)
        while self.ready < IN_MEMORY and self.fetched(blind=blind):
            self.ready += 1
        most = self.ideal * STEP_S / MIB
        trained = min(most, self.ready)
        self.ready -= trained
        self.used += trained
        self.waited_s += STEP_S * (1 - trained / most)

    def fetched(self, *, blind: bool) -> bool:
        """Fetch the next block, from wherever it is; tell whether that was possible."""
        if not self.order:
            self.order.extend(self.chance.sample(range(self.blocks), self.blocks))
        block = self.order[0]
        if block in self.memory:
            self.node += not blind
        elif block in self.disk:
            self.node += 1
            self.disk[block] = self.disk.pop(block)
        elif self.tokens >= MIB:
            self.tokens -= MIB
            self.remote += 1
            self.keep(block)
        else:
            return False
        self.order.popleft()
        self.taken += 1
        self.memory[block] = None
        self.memory.move_to_end(block)
        if len(self.memory) > IN_MEMORY:
            self.memory.popitem(last=False)
        return True

    def keep(self, block: int) -> None:
        """Keep a block on the disk as the policy "resident" does, where a whole segment goes for what comes."""
        segment = max(1, self.room // SEGMENTS)
        if len(self.disk) >= self.room:
            if not self.room or not should_store(0.0, 1 / segment, self.chance.random()):
                return
            self.drop(segment)
        self.disk[block] = None

    def bound(self, room: int) -> None:
        """Take another room."""
        self.room = room
        while len(self.disk) > room:
            self.drop(max(1, room // SEGMENTS))

    def drop(self, count: int) -> None:
        """Drop what was used least recently."""
        for block in list(self.disk)[:count]:
            del self.disk[block]

    def report(self, now: float, setting: TwoJobs, policy: SharingPolicy) -> JobIo:
        """Return what the job tells of its last ten seconds."""
        self.looks.append((now, self.remote, self.node, self.used, self.waited_s))
        if len(self.looks) > LATELY:
            self.looks.popleft()
        then, remote, node, used, waited_s = self.looks[0]
        read, found, told = self.remote + self.node - remote - node, self.node - node, self.remote + self.node
        worked_s = max(now - then - (self.waited_s - waited_s), 1e-9)
        share = told / max(1, self.taken)
        return JobIo(
            f"job-{self.number}",
            setting.pipe,
            setting.cache_bytes,
            policy,
            setting.cache_bytes,
            (f"set{self.number}",),
            dataset_bytes=share * self.blocks * MIB if self.taken >= KNOWN_FROM * self.blocks else None,
            size_measured=True,
            ideal_bytes_per_s=(self.used - used) / worked_s * share * MIB or None,
            hit_share=found / read if read else 0.0,
        )


def modelled(policy: SharingPolicy, setting: TwoJobs, *, blind: bool) -> list[float]:
    """Return the bytes a second of both jobs, once they have run for a while."""
    book = ClusterIoRegistry()
    jobs = [ModelJob(number, blocks, setting.ideal, random.Random(number)) for number, blocks in enumerate(OBJECTS)]
    quotas = [setting.pipe / len(jobs)] * len(jobs)
    begun: list[float] = []
    every = round(REPORT_S / STEP_S)
    for step in range(1, round((setting.warm_s + setting.seconds) / STEP_S) + 1):
        now = step * STEP_S
        for job, quota in zip(jobs, quotas, strict=True):
            job.step(quota, blind=blind)
        if step % every == 0:
            for job in jobs:
                book.update(job.report(now, setting, policy), now)
            for number, job in enumerate(jobs):
                told = book.quota(f"job-{number}", now)
                quotas[number] = told.bytes_per_s or setting.pipe
                job.bound(dict(told.cache_limits).get(f"set{number}", setting.cache_bytes) // MIB)
        if not begun and now >= setting.warm_s:
            begun = [job.used for job in jobs]
    return [(job.used - before) * MIB / setting.seconds for job, before in zip(jobs, begun, strict=True)]


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipe", type=float, default=8e6, help="bytes a second of the store")
    parser.add_argument("--cache", type=int, default=64, help="MiB of the node's cache")
    parser.add_argument("--ideal", type=float, default=12e6, help="bytes a second of a job that never waits")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--blind", action="store_true")
    asked = parser.parse_args()
    setting = TwoJobs("", asked.pipe, asked.cache * MIB, asked.ideal, WARM_S, asked.seconds, 0.0)
    for policy in ("greedy", "max_min"):
        say(policy, modelled(policy, setting, blind=asked.blind), setting)
    for told, speeds in best_splits(setting).items():
        say(told, speeds, setting)


if __name__ == "__main__":
    main()
