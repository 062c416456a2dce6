"""Whether a job's images may be decoded on the trainer's accelerator, and what is said about it.

Decision: docs/decisions/placement.md#229-the-accelerator-as-a-place
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from pecan_ray.job.spec import AcceleratorChoice
from pecan_ray.job.stats import JobStats
from pecan_ray.known.accelerated_images import ImageFinisher, find_device, is_device
from pecan_ray.known.image_run import image_run
from pecan_ray.options import AutoWorkers, EngineName, IterOptions
from pecan_ray.plan.operators import Plan

NOTHING_TO_LEAVE = (
    "no operators can be left to it. It takes Decode, crops, Resize and flips of pecan_ray.images on one column, and "
    "between them and batch nothing but arithmetic on that"
)


@dataclass(frozen=True)
class OfferedAccelerator:
    """What a trainer offers to its workers."""

    choice: AcceleratorChoice = "off"
    images: ImageFinisher | None = None
    """None: the user allows none."""
    note: str = ""
    """What the report says."""
    images_stay: bool = False
    """The loop wants tensors on the device on which images are finished."""
    ops: str = ""
    """Names of the operators that may be left to a device; empty: there are none."""
    device: str = ""
    """The device that images may be left to; empty: none."""

    def tell(self, note: Callable[[str], None]) -> None:
        """Say it, if there is anything to say."""
        if self.note:
            note(self.note)

    def explain(self, facts: JobStats) -> str:
        """Return a line that says where images are decoded and why; empty for a pipeline that decodes none."""
        if facts.accelerator:
            why = "as AutoWorkers(accelerator) says" if self.choice == "always" else _last_reason(facts)
            return f"decoding: {self.ops} run on {self.device}, where batches arrive: {why}"
        if self.choice == "off":
            _, _, why = self.note.partition(": ")
            why = why or "AutoWorkers(accelerator=False), the default, and PyTorch has seen no GPU here"
            return f"decoding: on workers: {why}" if self.note or self.ops else ""
        refused = "an image could not be finished where its batch arrived, as the report's events say"
        why = refused if self.choice == "always" else _last_reason(facts) or f"{self.device} was not tried yet"
        return f"decoding: {self.ops} run on workers: {why}"


def offered_accelerator(
    plan: Plan, parts: Collection[tuple[str, str]], engine: EngineName, options: IterOptions
) -> OfferedAccelerator:
    """Return what this trainer offers; raises `MissingExtraError` where a library is missing for what is allowed."""
    workers = options.workers if isinstance(options.workers, AutoWorkers) else AutoWorkers()
    run = image_run(plan, parts) if engine == "python" else None
    ops = "" if run is None else run.names
    if not workers.accelerator:
        if run is None or not _has_cuda():
            return OfferedAccelerator(ops=ops)
        why = "AutoWorkers(accelerator=True) allows it, and pixels then differ by a few levels"
        return OfferedAccelerator(note=f"accelerator: {ops} could run on this trainer's GPU: {why}", ops=ops)
    device = find_device(options.device)
    # In each rank, whatever it has: workers leave images to all of them if the first one allows it.
    images, stay = ImageFinisher(device), options.format == "torch" and is_device(options.device, device)
    if run is not None and workers.accelerator == "always":
        note = f"accelerator: {ops} run on {device} from the start"
        return OfferedAccelerator("always", images, note, stay, ops, device)
    reason = _reason_against(workers, engine, has_run=run is not None, device=device)
    if run is None or reason:
        return OfferedAccelerator("off", images, f"accelerator: it is not used, because {reason}", ops=ops)
    note = f"accelerator: {ops} may run on {device}, if that is faster"
    return OfferedAccelerator("auto", images, note, stay, ops, device)


def _last_reason(facts: JobStats) -> str:
    """Return why AutoPlacement moved decoding last; empty if it never did."""
    moved = [one.decision for one in facts.timeline if one.decision.phase in ("accelerator", "back")]
    reasons = [one.reason for one in moved if one.phase == "accelerator" or "decode again" in one.reason]
    return reasons[-1] if reasons else ""


def _reason_against(workers: AutoWorkers, engine: EngineName, *, has_run: bool, device: str) -> str:
    if engine != "python":
        return f"the {engine} engine leaves nothing to the trainer"
    if not has_run:
        return NOTHING_TO_LEAVE
    if device == "cpu":
        return "PyTorch sees no CUDA device in this process"
    return "" if workers.mode == "auto" else f'mode "{workers.mode}" does not decide about it'


def _has_cuda() -> bool:
    """Tell whether this process trains on a CUDA device, as far as it has imported PyTorch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())
