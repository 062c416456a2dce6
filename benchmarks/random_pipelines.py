"""AutoOrder on pipelines that it has not seen: does it change what the user meant, and does it gain?

    python benchmarks/random_pipelines.py [--pipelines 300] [--seed 0] [--seconds 5] [--data FOLDER] [--verbose]

Each pipeline is drawn from a family of operators (NumPy and OpenCV, Pillow, PyTorch, photographs with masks, sounds,
sentences with fields), with filters and flat_maps, casts, and operators that ask for the dtype or the scale of what
they are given, record something, do nothing for what they do not know, or follow another one by a variable.  AutoOrder
looks at one half of the elements in mode "safe".  Both orders are then run on the other half, and compared:

- *wrong*: numbers, texts or masks are others, a mean or a spread is another, a picture shows something else; or an
  operator is given what it never was in the user's order (values out of 1 rather than 255, an image that is a square),
  or another dtype of which it makes something else than rounding explains;
- *slower*: the CPU time of an element is more than 5 % above that in the user's order.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import statistics
import sys
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cv2
import numpy as np

import pecan_ray as pecan
from benchmarks.guard import plans
from benchmarks.guard.elements import elements
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.engines.foreign import as_array
from pecan_ray.engines.in_process import run_in_process
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.splits import Element

ROUNDS, MOST_ROUNDS = 3, 200
LEAST_TIMED_S = 0.3
MOST_SHIFT = 0.25
"""Standard deviations by which a mean may move,"""
MOST_SPREAD = 1.35
"""and factor by which a spread may change."""
MOST_ROUNDED = 0.01
"""Share of their span by which an operator's results may differ where it is given another dtype."""
SLOWER = 1.05


@dataclass(frozen=True)
class PipelineOutcome:
    """What became of one pipeline."""

    case: plans.GuardCase
    order: tuple[str, ...]
    changed: bool
    wrong: str = ""
    told: float = 1.0
    """Speed-up of the whole as AutoOrder has told it."""
    gained: float = 1.0
    """And on the elements that it has not seen."""
    seconds: float = 0.0
    """That it took."""


def encoded(given: Sequence[Element]) -> list[Element]:
    """Return the elements with their photographs as JPEG."""
    return [{**e, "image": cv2.imencode(".jpg", e["image"][..., ::-1])[1].tobytes()} for e in given]


def judged(seed: int, seen: Sequence[Element], unseen: Sequence[Element], seconds: float) -> PipelineOutcome:
    """Draw a pipeline, let AutoOrder look at some elements, and compare both orders on others."""
    case = plans.draw(seed, seen)
    pipe = case.pipe
    found = order_plan(OrderRequest(pipe.plan, mode="safe", seed=pipe.seed, elements=len(seen), seconds=seconds))
    order = tuple(op.name for op in found.plan.all_ops())
    if not found.changed:
        return PipelineOutcome(case, order, False, seconds=found.seconds)
    (stretch,) = found.sequences
    source = pecan.sources.Items([{name: one[name] for name in _columns(case)} for one in unseen])
    user, new = (replace(plan, head=source) for plan in (found.before, found.plan))
    plans.NOTES.begin()
    before, saw = _run(case.watched(user), pipe.seed)
    after, sees = _run(case.watched(new), pipe.seed)
    plans.NOTES.on = False
    wrong = _taken_for_granted(saw, sees) or _dtypes() or _values(before, after)
    usual, other = _times(user, new, pipe.seed)
    return PipelineOutcome(case, order, True, wrong, stretch.whole_speedup or 1.0, usual / other, found.seconds)


def _columns(case: plans.GuardCase) -> tuple[str, ...]:
    return next(family.columns for family in plans.all_families() if family.name == case.family)


def _run(plan: Plan, seed: int) -> tuple[list[Element], dict[str, set[Hashable]]]:
    plans.NOTES.seen = {}
    return list(run_in_process(plan, seed=seed)), plans.NOTES.seen


def _taken_for_granted(saw: dict[str, set[Hashable]], sees: dict[str, set[Hashable]]) -> str:
    for name, values in sees.items():
        if new := values - saw.get(name, set()):
            return f"{name} is given {sorted(map(str, new))[:2]}, which it never was"
    return ""


def _dtypes() -> str:
    for name, apart in plans.NOTES.apart.items():
        if apart > MOST_ROUNDED:
            return f"{name} is given another dtype, of which it makes something else ({apart:.1%} of its span)"
    return ""


def _values(before: Sequence[Element], after: Sequence[Element]) -> str:
    if len(before) != len(after):
        return f"{len(after)} elements instead of {len(before)}"
    for name in sorted({name for element in before for name in element}):
        pairs = [(one.get(name), other.get(name)) for one, other in zip(before, after, strict=True)]
        if refused := _column(pairs):
            return f"{name}: {refused}"
    return ""


def _column(pairs: Sequence[tuple[Any, Any]]) -> str:
    arrays = [tuple(_array(one) for one in pair) for pair in pairs]
    if any(one is None for pair in arrays for one in pair):
        others = sum(one != other for one, other in pairs)
        return f"{others} values are others" if others else ""
    usual, new = ([np.asarray(pair[side]) for pair in arrays] for side in (0, 1))
    if any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(usual, new, strict=True)):
        shapes = {(a.shape, b.shape) for a, b in zip(usual, new, strict=True) if a.ndim != b.ndim}
        if shapes or any(a.size <= 64 or a.dtype != b.dtype for a, b in zip(usual, new, strict=True)):
            return "shapes or dtypes are others"
    whole = usual[0].dtype.kind in "iub" and usual[0].ndim <= 1 and usual[0].dtype.itemsize >= 4
    if whole or max(a.size for a in usual) <= 64 or max(len(np.unique(a)) for a in usual) <= 8:
        both = zip(usual, new, strict=True)
        off = sum(a.shape == b.shape and float((~np.isclose(a, b, 0.02)).mean()) > 0.05 for a, b in both)
        return f"{off} of {len(usual)} elements are others" if off > 0.02 * len(usual) else ""
    return _large(usual, new)


def _array(value: Any) -> Any:
    found = as_array(value)
    if found is None and isinstance(value, (int, float, np.ndarray, np.generic)):
        found = np.asarray(value)
    return None if found is None or found.dtype.kind not in "biuf" else found


def _large(usual: Sequence[Any], new: Sequence[Any]) -> str:
    flat, other = (np.concatenate([one.ravel()[:: max(1, one.size // 4000)] for one in side]) for side in (usual, new))
    flat, other = flat.astype(np.float64), other.astype(np.float64)
    spread = max(float(flat.std()), 1e-9)
    shift = abs(float(other.mean() - flat.mean())) / spread
    if shift > MOST_SHIFT or not 1 / MOST_SPREAD < float(other.std()) / spread < MOST_SPREAD:
        return f"the mean moves by {shift:.2f} standard deviations, the spread becomes {other.std() / spread:.2f}x"
    if usual[0].ndim < 2:
        return ""
    alike = [_alike(a, b) for a, b in zip(usual, new, strict=True)]
    low = sum(one < 0.5 for one in alike)
    return f"{low} of {len(alike)} pictures show something else" if low > 0.25 * len(alike) else ""


def _alike(a: Any, b: Any) -> float:
    """Return the correlation of two pictures made small."""
    small = []
    for one in (a, b):
        picture = np.moveaxis(one, 0, -1) if one.ndim == 3 and one.shape[0] <= 4 else one
        picture = picture.astype(np.float32) if picture.ndim == 2 else picture.astype(np.float32).mean(-1)
        small.append(cv2.resize(picture, (8, 8), interpolation=cv2.INTER_AREA).ravel())
    if min(one.std() for one in small) < 1e-6:
        return 1.0
    return float(np.corrcoef(*small)[0, 1])


def _times(user: Plan, new: Plan, seed: int) -> tuple[float, float]:
    """Return the CPU time of both orders: of several runs in turn, the shortest."""
    times: dict[bool, list[float]] = {False: [], True: []}
    number = 0
    while number < 2 * ROUNDS or (sum(times[False]) < LEAST_TIMED_S and number < MOST_ROUNDS):
        which = bool((number + number // 2) % 2)
        began = time.thread_time()
        for _ in run_in_process(new if which else user, seed=seed):
            pass
        times[which].append(time.thread_time() - began)
        number += 1
    return min(times[False]), min(times[True])


def summary(found: Sequence[PipelineOutcome]) -> str:
    """Say what was found."""
    changed = [one for one in found if one.changed]
    wrong, slower = [one for one in changed if one.wrong], [one for one in changed if one.gained < 1 / SLOWER]
    lines = [
        f"{len(found)} pipelines, {len(changed)} with another order; {len(wrong)} wrong, {len(slower)} slower by 5 %; "
        f"AutoOrder took {statistics.median(one.seconds for one in found):.1f} s (median), "
        f"{max(one.seconds for one in found):.1f} s at most"
    ]
    if changed:
        gains = [one.gained for one in changed]
        error = statistics.median(abs(one.told / one.gained - 1) for one in changed)
        lines.append(
            f"gain of those: {math.exp(statistics.fmean(map(math.log, gains))):.2f}x (geometric mean), "
            f"{min(gains):.2f}x to {max(gains):.2f}x; told and gained differ by {error:.0%} (median)"
        )
    return "\n".join(lines)


def main() -> None:
    """Draw and judge pipelines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipelines", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--elements", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a look; more where other load takes the CPUs")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    if importlib.util.find_spec("torch") is not None:
        importlib.import_module("torch").set_num_threads(1)
    cv2.setNumThreads(1)
    photographs = sorted(given.data.rglob("*.jpg")) if given.data else None
    drawn = encoded(elements(2 * given.elements, seed=given.seed, photographs=photographs))
    seen, unseen = drawn[: given.elements], drawn[given.elements :]
    found = []
    for seed in range(given.seed, given.seed + given.pipelines):
        one = judged(seed, seen, unseen, given.seconds)
        found.append(one)
        mark = f"WRONG ({one.wrong})" if one.wrong else "slower" if one.gained < 1 / SLOWER else ""
        if mark or given.verbose:
            print(f"{seed} {one.case.family}: {' '.join(one.case.parts)}", flush=True)
            if one.changed:
                print(
                    f"    -> {' '.join(one.order)}: told {one.told:.2f}x, gained {one.gained:.2f}x {mark}", flush=True
                )
    print(summary(found))


if __name__ == "__main__":
    main()
