"""How long an epoch in the order of the source takes, over the seconds of its functions by all workers: simulated.

    python -m benchmarks.epochs_in_order [--cases NAME ...] [--kinds joined numbered any]

The protocol simulation (`tests/protocol`) with the real state machines and virtual seconds, so that a loaded machine
changes nothing: elements of 8 ms; workers have one thread, and for all that they make between two messages they take
between half and one and a half times as long; messages take 0.7 ms in the mean.  Printed are the second and the third
of three epochs.  `joined`: several workers make the rows of a batch; `numbered`: each makes whole batches; `any`: rows
come as workers finish them.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.protocol.engine import Made
from tests.protocol.scenario import Fault, FaultKind, Scenario, SplitModel
from tests.protocol.trainer import TrainerModel
from tests.protocol.world import World

ELEMENT_S = 0.008
EPOCHS = 3
SPLITS = 16
KINDS = ("joined", "apart", "numbered", "any")


@dataclass(frozen=True)
class EpochCase:
    """A job, and what goes wrong with one of its workers."""

    elements: int
    batch: int
    workers: int
    ranks: int = 1
    fault: FaultKind | None = None
    at: float = 1.0
    slower: float = 1.0
    """So many times, if the fault says that a worker is slow."""
    slow: tuple[float, int] = (0.0, 1)
    """This share of the elements takes so many times as long."""
    threads: int = 1
    """Of each worker."""
    row_bytes: int = 1000

    @property
    def ideal_s(self) -> float:
        """Seconds of an epoch if all workers were at work all the time."""
        share, times = self.slow
        return (
            self.elements * (1 + share * (times - 1)) * ELEMENT_S / (self.workers - 1 + 1 / self.slower) / self.threads
        )

    def scenario(self, kind: str) -> Scenario:
        """Return what is simulated."""
        split = SplitModel((1,) * (self.elements // SPLITS))
        plain = Scenario(
            seed=1,
            sources=((split,) * SPLITS,),
            lengths_known=True,
            ranks=self.ranks,
            epochs=EPOCHS,
            batch_size=self.batch,
            numbered=kind != "any",
            joined=kind in ("joined", "apart"),
            local=self.workers,
            cpus=64,
            prefetch_bytes=1 << 28,
            element_s=ELEMENT_S,
            slow=self.slow,
            threads=self.threads,
            ends_runs=kind == "joined",
            row_bytes=self.row_bytes,
            steps_s=(0.0001,),
            delay_s=0.0007,
            on_error="raise",
        )
        return replace(plain, faults=(Fault(self.at, self.fault, 3, self.slower),)) if self.fault else plain


CASES = {
    "256, 16 workers": EpochCase(25_600, 256, 16),
    "240, 12 workers": EpochCase(14_400, 240, 12),
    "32, 16 workers": EpochCase(25_600, 32, 16),
    "256, 8 workers": EpochCase(12_800, 256, 8),
    "one 5 times slower": EpochCase(25_600, 256, 16, fault="slow worker", slower=5.0),
    "one killed": EpochCase(25_600, 256, 16, fault="kill worker", at=20.0),
    "1 % 100 times slower": EpochCase(25_600, 256, 16, slow=(0.01, 100)),
    "1 % 100 times slower, 32": EpochCase(25_600, 32, 16, slow=(0.01, 100)),
    "1 % 100 times slower, 3 workers": EpochCase(25_600, 32, 3, slow=(0.01, 100)),
    "1 % 100 times slower, 2 threads": EpochCase(25_600, 256, 8, slow=(0.01, 100), threads=2),
    "1 % 100 times slower, 8 threads": EpochCase(25_600, 256, 2, slow=(0.01, 100), threads=8),
    "1 % 100 times slower, 8 threads, 32": EpochCase(25_600, 32, 2, slow=(0.01, 100), threads=8),
    "1 % 100 times slower, 8 threads, 16, large rows": EpochCase(
        25_600, 16, 2, slow=(0.01, 100), threads=8, row_bytes=600_000
    ),
    "256, 8 threads": EpochCase(25_600, 256, 2, threads=8),
    "256, 4 ranks": EpochCase(25_600, 256, 16, ranks=4),
    "32, 4 ranks": EpochCase(25_600, 32, 16, ranks=4),
}


def epochs_s(scenario: Scenario) -> list[float]:
    """Return the seconds of all epochs but the first one."""
    world, ends = World(scenario), defaultdict[int, float](float)
    used = world.audit.used

    def note(trainer: TrainerModel, worker: str, made: Made) -> None:
        ends[made.epoch] = world.clock.now
        used(trainer, worker, made)

    with patch.object(world.audit, "used", note):
        outcome = world.run()
    if outcome.failure:
        raise RuntimeError(outcome.failure)
    return [ends[epoch] - ends[epoch - 1] for epoch in range(1, EPOCHS)]


def main(argv: list[str] | None = None) -> int:
    """Simulate the cases and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    options = parser.parse_args(argv)
    for name in options.cases:
        case = CASES[name]
        for kind in options.kinds:
            if kind == "joined" and case.ranks > 1:
                continue  # several ranks get whole batches
            told = ", ".join(f"{seconds / case.ideal_s:.3f}" for seconds in epochs_s(case.scenario(kind)))
            print(f"{name}: {kind}: {told}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
