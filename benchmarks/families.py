"""How near the cheapest deployment policies end on random workloads of a family: one trainer, several, one that runs
ahead of its accelerator.

    python -m benchmarks.families [--family "several trainers"] [--workloads 100] [--seed 10000] [--modes auto]

Every workload is simulated batch by batch and compared with an exhaustive search over its deployments; those that end
further than 5 % from the cheapest one are printed.  See `pecan_ray.simulator.random_workloads` for the ranges.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pecan_ray.simulator.random_workloads import (
    FAMILIES,
    FAR,
    NEAR,
    TUNED,
    PolicyEvaluation,
    draw,
    evaluate_policies,
    score,
)


def main() -> int:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=FAMILIES, default="several trainers")
    parser.add_argument("--workloads", type=int, default=100)
    parser.add_argument("--seed", type=int, default=TUNED, help="of the first workload")
    parser.add_argument("--modes", default="auto")
    options = parser.parse_args()
    began, found = time.perf_counter(), list[PolicyEvaluation]()
    for seed in range(options.seed, options.seed + options.workloads):
        for comparison_result in evaluate_policies(draw(seed, options.family), options.modes.split(","), seed):
            found.append(comparison_result)
            if comparison_result.excess > NEAR:
                print(comparison_result, flush=True)
    for mode, one in score(found).items():
        print(
            f"{options.family}, {mode}: {one.workloads} workloads, {one.near:.1%} within {NEAR:.0%}, {one.far:.1%} "
            f"within {FAR:.0%}, mean {one.mean_excess:.2%}, worst {one.worst_excess:.1%}, paid {one.mean_paid:.1%}"
        )
    print(f"{time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
