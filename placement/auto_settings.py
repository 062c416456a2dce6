"""The step sizes and bounds of our own search: found by `pecan tune` on random workloads."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pecan_ray.errors import PlanError


@dataclass(frozen=True)
class AutoSettings:
    """How boldly the search goes, and how sure it wants to be; the defaults are good for every job that we know."""

    optimism: float = 0.5
    """Standard deviations by which an unmeasured deployment is given credit."""
    tie: float = 0.01
    """Deployments whose costs differ by less than this share are equally cheap."""
    sure: float = 1.64
    """Standard errors in the interval that must clear T before a window decides (90 %)."""
    most_repeats: int = 5
    """Windows of one deployment after which it is judged whatever the noise, at least."""
    surprise: float = 0.10
    """A step that is by this share longer or shorter than expected is measured again, however vague the expectation."""
    most_probes: int = 24
    """Deployments measured in one search."""
    least_jump: int = 8
    """So many workers may be asked for at once,"""
    jump: int = 4
    """or so many times the present ones."""
    starving: float = 0.25
    """While the trainer waits for more than T, a saving of this share of T is worth a look."""
    certain: int = 3
    """So many windows without waiting are no accident."""
    some: int = 8
    """Of a kind of worker that was never measured, one for so many of the present ones is tried."""
    generous: float = 1.5
    """Standard deviations of credit for fewer workers, before it counts as shown that they do not suffice."""
    leaner: float = 0.8
    """Fewer workers at the same cost are tried if they are this share of the present ones, or less."""
    watched: int = 5
    """Newest windows that are compared with the reference, at least."""
    lot_batches: int = 200
    """Batches of windows that are judged together whatever the noise, if twenty windows hold so many."""
    piled_up: int = 100
    """Batches that more workers may have piled up before, besides two of each: as long as the shortfall can have come
    out of these, the choice was wrong, and the job has not changed."""
    queue_growth: float = 0.40
    """A queue that has grown by more than this share, and by a batch, says that there are too many workers."""
    filled: float = 5.0
    """A queue of so many batches says already that workers supply enough: from here on it comes and goes by chance."""
    second_thoughts: int = 8
    """How often the windows after a choice may overturn it."""

    audit_after: int = 40
    """Windows after which other deployments than the one settled on are looked at again; then three times as many,"""
    audit_at_last: int = 3240
    """up to so many."""
    audit_spread: float = 0.10
    """Relative standard deviation of what was measured so long ago."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value < float("inf"):
                raise PlanError(f"AutoSettings({field.name}=...) must be a number >= 0, but got {value!r}.")
        if self.most_probes < 1 or self.some < 1:
            raise PlanError(f"most_probes and some must be at least 1, but got {self.most_probes} and {self.some}.")


DEFAULT_SETTINGS = AutoSettings()
"""What every job runs with."""
