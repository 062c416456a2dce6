"""How many CPUs a worker takes, and what to reserve for one (tf.data service, §3.1: workers of the right size)."""

from __future__ import annotations

import math

from pecan_ray.plan.stage_seconds import StageSeconds

KNOWN_S = 5.0
"""Seconds at work from which on the CPUs of workers are known: the first ones load functions and models."""
STEP = 0.25
"""CPUs are advised in quarters: Ray schedules by ten thousandths, and what is measured differs by a tenth."""
SAME = 0.25
"""Nothing is advised where a worker takes what is reserved, but for this share: nodes would hold as many."""
ROUNDING = 0.05
"""CPUs by which what is measured may be above what is advised."""


def cpus_at_work(stages: StageSeconds) -> float:
    """Return the CPUs that were used while nothing held workers back; 0: not known."""
    at_work_s = stages.observed_s - stages.blocked_s
    # Those of functions in processes of their own are not in the sum.
    return stages.cpu_s / at_work_s if at_work_s >= KNOWN_S and not stages.in_processes else 0.0


def size_advice(stages: StageSeconds, reserved: float) -> str:
    """Say what to reserve for a worker; empty where that is not known, or nothing else.

    Args:
        stages: What all workers have done with their time.
        reserved: CPUs that are reserved for each; 0: others than what they use.
    """
    used = cpus_at_work(stages)
    wanted = max(STEP, math.ceil((used - ROUNDING) / STEP) * STEP)
    if not used or not reserved or wanted == reserved or abs(used - reserved) <= SAME * reserved:
        return ""
    why = "more workers fit on a node" if wanted < reserved else "no two workers share a CPU"
    return (
        f"a worker at work takes {used:.2f} CPUs, and {reserved:g} are reserved for it: with "
        f"Config(cpus_per_worker={wanted:g}) {why}"
    )
