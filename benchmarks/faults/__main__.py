"""Random real jobs with faults: is every element delivered exactly once, or counted?

    python -m benchmarks.faults [--runs 200] [--seed 1] [--minutes M] [--only K ...] [--folder F]

The seed and a run's number make the same job again (`--only K`); when its faults meet it is up to the machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.faults.case import FaultCase, random_case
from benchmarks.faults.machine import machine
from benchmarks.faults.run import FaultOutcome, FaultRun

KINDS = ("hang", "lost", "repeated", "strange", "uncounted", "unequal", "error", "crash", "left")


def main() -> None:
    """Run them, with a line each, and sum up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--only", type=int, nargs="*")
    parser.add_argument(
        "--deadline", type=float, default=100.0, help="a run hangs to which nothing has come for so many seconds"
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "pecan-faults")
    asked = parser.parse_args()
    numbers = asked.only if asked.only is not None else range(asked.first, asked.first + asked.runs)
    outcomes = run_all(asked.seed, numbers, asked.folder, asked.minutes * 60, asked.deadline)
    print(table(outcomes))


def run_all(
    seed: int,
    numbers: Iterable[int],
    folder: Path,
    most_s: float,
    deadline_s: float,
    draw: Callable[[int, int], FaultCase] = random_case,
    apart: bool = False,
) -> list[FaultOutcome]:
    """Run cases on one cluster; `draw`: makes one of the seed and a run's number; `apart`: see `machine`."""
    ends = time.monotonic() + most_s
    outcomes: list[FaultOutcome] = []
    with machine(folder, apart) as made:
        for number in numbers:
            if time.monotonic() > ends:
                break
            outcome = FaultRun(draw(seed, number), made, folder).go(deadline_s)
            outcomes.append(outcome)
            said = "ok" if not outcome.problems else "; ".join(outcome.problems)
            happened = f" [{', '.join(outcome.done)}]" if outcome.done else ""
            print(f"{number:4} {outcome.seconds:6.1f} s  {said}  |  {outcome.case}{happened}", flush=True)
    return outcomes


def table(outcomes: Sequence[FaultOutcome]) -> str:
    """Sum up by fault: a run counts in the row of each kind of fault that hit it."""
    lines = [f"| what happened | runs | {' | '.join(KINDS)} |", f"| --- | {'| '.join(['---: '] * (len(KINDS) + 1))}|"]
    happened = {id(one): sorted({fault.partition(" at ")[0] for fault in one.done}) or ["no fault"] for one in outcomes}
    rows = sorted({kind for kinds in happened.values() for kind in kinds})
    for row in (*rows, "all"):
        here = [one for one in outcomes if row == "all" or row in happened[id(one)]]
        count = Counter(kind for one in here for kind in {problem.partition(":")[0] for problem in one.problems})
        lines.append(f"| {row} | {len(here)} | {' | '.join(str(count[kind]) for kind in KINDS)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
