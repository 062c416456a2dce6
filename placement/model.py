"""A small model of a job: how long its trainer steps and how much its workers supply, with its own uncertainty.

    batch_time(l, r) = max( step(l, r), 1 / supply(l, r), 1 / source )

step grows with the local workers l that disturb the trainer, supply with all of them.  Both are straight lines in l
and in r that may bend at a few knots, fitted by Bayesian linear regression: where nothing was measured the prior
speaks (workers of both kinds are equally fast, local ones disturb little), and the standard deviation says how much
that is worth.  Times are in units of the fastest step seen.  The source's pace is known once more remote workers have
brought nothing; what workers could supply at that pace is known to be as much at least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pecan_ray.placement.evidence import Reading
from pecan_ray.plan.windows import Deployment

Vector = NDArray[np.float64]

WAITING = 0.02
"""From this share of waiting on, the workers set the pace."""
HEADROOM = 0.25
"""Workers of a trainer that does not wait supply more than it takes; by how much is unknown: this much, and as much
again is one standard deviation."""
FIT = 0.01
"""Relative error of the model beside that of the measurement."""
DOUBT = 9.0
"""Explanations whose misfit is greater than the least by less than this are possible (three standard deviations)."""
BEND = 0.35
"""Standard deviation of a bend of the supply, in workers."""
LEAST_SPEED = 1e-3
"""Supply of a worker that seems to supply nothing, in the model's units."""
LEAST_SHARE = 0.2
"""Once measurements have aged, a worker counts as no slower than this share of one of the other kind."""
BELIEVED = 0.6
"""A step that was measured beside a wait is believed from this share of those without a wait on,"""
STEP_ERROR = 0.04
"""with this relative error."""
HIDDEN = 0.25
"""A step of less than this share of those without a wait was hidden by its wait: the program runs ahead."""
SOURCE_ERROR = 1.1
"""Workers whose pace is the source's but for this factor may be held up by it."""
AGED = 0.5
"""Relative standard deviation of what was learned before the job changed."""
UNSURE = 0.01
"""Share of a wait that may have counted as the trainer's own step: trainers in step wait for each other as well."""
STALL = 0.03
"""A step that is longer by this share than one beside more workers was no step, but a stall."""
FAR_STALL = 0.2
"""By this share, where only the local ones are more."""
UNSURE_STEP = 0.1
"""A step that is known to this share says whether local workers disturb it."""
CROWDING = 2.0
"""Standard deviation of a bend of the step, in those of its slope: a host that is full disturbs suddenly."""
USELESS = 0.2
"""Remote workers that bring less than this share of what they should show that the source gives no more,"""
TELLING = 0.25
"""if they are this share more workers at least,"""
COMPARABLE = 4
"""and not more than so many times the remote ones."""
LOCAL_KNOTS = (2.0, 4.0, 8.0, 12.0)
"""Numbers of local workers at which the lines may bend."""
REMOTE_KNOTS = (4.0, 8.0, 16.0, 32.0)
"""Numbers of remote workers at which the lines may bend."""


@dataclass(frozen=True)
class Prior:
    """What is believed before anything was measured."""

    local: float
    """Batches per second of one local worker."""
    remote: float
    """Batches per second of one remote worker."""
    spread: float = 2.0
    """Relative standard deviation of both."""
    interference: float = 0.005
    """Rise of the step by one local worker, as a share."""
    interference_spread: float = 0.02


@dataclass(frozen=True)
class FittedLine:
    """A fitted linear function and its uncertainty."""

    weights: Vector
    covariance: NDArray[np.float64]
    misfit: float
    """Twice the negative log of how likely the values and the weights are, but for a constant."""

    def at(self, features: NDArray[np.float64]) -> tuple[Vector, Vector]:
        """Return mean and standard deviation for each row of features."""
        variance = np.einsum("ij,jk,ik->i", features, self.covariance, features)
        return features @ self.weights, np.sqrt(np.maximum(variance, 0.0))


def fit(features: NDArray[np.float64], values: Vector, errors: Vector, mean: Vector, spread: Vector) -> FittedLine:
    """Return the posterior of the weights: values = features @ weights + noise, weights ~ N(mean, spread**2)."""
    # In units of the prior's spread and by singular values: sound however far apart the measurements are.
    left, singular, right = np.linalg.svd(features * spread / errors[:, None])
    kept = np.zeros(len(mean))
    kept[: len(singular)] = singular
    shrink = 1 / (1 + kept**2)
    covariance = right.T * shrink @ right
    along = np.zeros(len(mean))
    along[: len(singular)] = (left.T @ ((values - features @ mean) / errors))[: len(singular)]
    shift = right.T @ (shrink * kept * along)
    weights = mean + spread * shift
    residuals = (values - features @ weights) / errors
    return FittedLine(weights, covariance * np.outer(spread, spread), float(residuals @ residuals + shift @ shift))


def bent(local: Vector, remote: Vector) -> list[Vector]:
    """Return the parts of the features that let a line bend."""
    return [np.maximum(local - knot, 0.0) for knot in LOCAL_KNOTS] + [
        np.maximum(remote - knot, 0.0) for knot in REMOTE_KNOTS
    ]


def supply_features(local: Vector, remote: Vector) -> NDArray[np.float64]:
    """Columns: local, remote, bends."""
    return np.stack([local, remote, *bent(local, remote)], axis=1)


def step_features(local: Vector, remote: Vector) -> NDArray[np.float64]:
    """Columns: 1, local, remote, bends."""
    return np.stack([np.ones_like(local), local, remote, *bent(local, remote)], axis=1)


@dataclass(frozen=True)
class Model:
    """A fitted job."""

    unit: float
    """Seconds of one unit of time."""
    supply: FittedLine
    step: FittedLine
    source: float = math.inf
    """Batches that the source gives in a unit of time, as far as is known."""

    def learned(self, at: Deployment, spread: float) -> Prior:
        """Return what the job has taught, to that relative deviation, once the measurements themselves have aged.

        Local workers disturb as they do on average beside `at`, as a share of the step there.
        """
        speeds = np.maximum(self.supply.weights[:2], LEAST_SPEED) / self.unit
        local, remote = np.maximum(speeds, LEAST_SHARE * speeds.max())
        beside, alone = self.predict(np.array([max(1.0, at.local), 0.0]), np.array([float(at.remote)] * 2))[0]
        interference = max(0.0, float(beside - alone) / max(1, at.local)) / max(
            1.0, float(beside if at.local else alone)
        )
        unknown = Prior.interference_spread * min(1.0, spread / AGED)
        return Prior(float(local), float(remote), spread, interference, unknown)

    def predict(self, local: Vector, remote: Vector) -> tuple[Vector, Vector, Vector, Vector]:
        """Return step and its deviation (in units), supply of workers and its deviation (in batches a unit)."""
        step, step_sd = self.step.at(step_features(local, remote))
        supply, supply_sd = self.supply.at(supply_features(local, remote))
        return step, step_sd, supply, supply_sd


def fit_step(readings: Sequence[Reading], steps: Sequence[float], unit: float, prior: Prior) -> FittedLine:
    """Fit the trainer's own time to the readings of which it is known."""
    local, remote = places(readings)
    spread = prior.interference_spread
    bend = [spread * CROWDING] * len(LOCAL_KNOTS) + [spread / 8] * len(REMOTE_KNOTS)
    mean = np.array([1.0, prior.interference, 0.0] + [0.0] * len(bend))
    values = np.array(steps) / unit
    errors = values * FIT + np.array(step_errors(readings, steps)) / unit
    # Where steps differ by more than was believed possible, local workers disturb that much from the first one on.
    sure = errors < UNSURE_STEP * values
    shown = float(np.ptp(values[sure]) / max(1.0, np.ptp(local[sure]))) if sure.any() else 0.0
    slope = max(spread, shown)
    return fit(step_features(local, remote), values, errors, mean, np.array([1.0, slope, spread / 8, *bend]))


def step_errors(readings: Sequence[Reading], steps: Sequence[float]) -> list[float]:
    """Return the standard errors of the trainer's own times, in seconds.

    Beside a long wait a short step may be anything up to the error of their sum: a program that runs ahead of its
    accelerators asks at once for the next batch.  It is believed where it is of the size of a step without a wait.
    """
    calm = [step for reading, step in zip(readings, steps, strict=True) if reading.wait_share <= WAITING]
    trusted = BELIEVED * min(calm, default=math.inf)
    return [
        max(min(reading.error * reading.batch_time, STEP_ERROR * step), UNSURE * (reading.wait or 0.0))
        if step >= trusted
        else reading.error * reading.batch_time
        for reading, step in zip(readings, steps, strict=True)
    ]


def fit_supply(readings: Sequence[Reading], bound: Sequence[bool], unit: float, prior: Prior) -> FittedLine:
    """Fit the workers' supply: equal to the pace where the trainer waits (`bound`), at least the pace elsewhere."""
    local, remote = places(readings)
    features = supply_features(local, remote)
    each = [prior.local * unit, prior.remote * unit]
    bends = features.shape[1] - len(each)
    mean = np.array([*each, *[0.0] * bends])
    spread = np.array([prior.spread * each[0], prior.spread * each[1], *[BEND * min(each)] * bends])
    pace = unit / np.array([reading.batch_time for reading in readings])
    errors = pace * (FIT + np.array([reading.error for reading in readings]))
    known = np.array(bound, dtype=bool)
    line = fit(features[known], pace[known], errors[known], mean, spread)
    short = ~known & (line.at(features)[0] < pace)
    values = np.where(short, pace * (1 + HEADROOM), pace)
    errors = np.where(short, pace * HEADROOM, errors)
    used = known | short
    return fit(features[used], values[used], errors[used], mean, spread)


def fit_model(readings: Sequence[Reading], bound: Sequence[bool], prior: Prior | None) -> Model:
    """Fit a job, given where the workers set the pace (`bound`)."""
    own = credible(
        seen_whole(
            [
                (reading, reading.batch_time if reading.own_time is None else reading.own_time)
                for reading, waits in zip(readings, bound, strict=True)
                if reading.own_time is not None or not waits
            ]
        )
    )
    if not own:
        # Nobody has seen the trainer without a wait: believe that twice the workers would be of use.
        fastest = min(readings, key=lambda reading: reading.batch_time)
        own = [(replace(fastest, error=0.5), fastest.batch_time / 2)]
    unit = min(step for _, step in own)
    source = source_pace(readings, bound)
    at_source = [
        waits and 1 / reading.batch_time > source / SOURCE_ERROR for reading, waits in zip(readings, bound, strict=True)
    ]
    by_workers = [waits and not dry for waits, dry in zip(bound, at_source, strict=True)]
    prior = prior or first_prior(readings, by_workers)
    step = fit_step([reading for reading, _ in own], [step for _, step in own], unit, prior)
    return Model(unit, fit_supply(readings, by_workers, unit, prior), step, source * unit)


def source_pace(readings: Sequence[Reading], bound: Sequence[bool]) -> float:
    """Return how many batches a second the source gives: those of workers to which more remote ones added nothing."""
    waiting = [reading for reading, waits in zip(readings, bound, strict=True) if waits]
    pace = 0.0
    for few in waiting:
        for many in waiting:
            at, more = few.deployment, many.deployment
            should = (more.remote - at.remote) / at.workers
            if more.local < at.local or should < TELLING or more.remote > COMPARABLE * at.remote:
                continue
            did = few.batch_time / many.batch_time - 1
            if did + math.hypot(few.error, many.error) < USELESS * should:
                pace = max(pace, 1 / few.batch_time, 1 / many.batch_time)
    return pace or math.inf


def seen_whole(own: list[tuple[Reading, float]]) -> list[tuple[Reading, float]]:
    """Leave out steps of which a wait hid the most, as those without a wait show: the trainer runs ahead."""
    without_wait = [step for reading, step in own if reading.wait is not None and reading.wait_share <= WAITING]
    calm = min(without_wait, default=0.0)
    return [(reading, step) for reading, step in own if step >= HIDDEN * calm]


def credible(own: list[tuple[Reading, float]]) -> list[tuple[Reading, float]]:
    """Leave out steps that were longer than those beside more workers: the trainer stalled itself.

    Remote ones hardly disturb it, so more local ones are more where the step beside them is known without a wait.
    """
    kept = []
    for reading, step in own:
        at = reading.deployment
        beside_more = [
            other_step * (1 + (STALL if other.deployment.remote >= at.remote else FAR_STALL) + 2 * other.error)
            for other, other_step in own
            if other.deployment.local >= at.local
            and (other.deployment.remote >= at.remote or (other.wait_share <= WAITING and other.windows > 1))
            and other is not reading
        ]
        if all(step <= most for most in beside_more):
            kept.append((reading, step))
    return kept


def first_prior(readings: Sequence[Reading], bound: Sequence[bool]) -> Prior:
    """Believe that every worker is as fast as those of the smallest deployment in which they set the pace."""
    waiting = [reading for reading, waits in zip(readings, bound, strict=True) if waits] or readings
    smallest = min(waiting, key=lambda reading: reading.deployment.workers)
    each = 1 / smallest.batch_time / smallest.deployment.workers
    return Prior(each, each)


def places(readings: Sequence[Reading]) -> tuple[Vector, Vector]:
    """Return the counts of local and of remote workers, as vectors."""
    local = np.array([float(reading.deployment.local) for reading in readings])
    return local, np.array([float(reading.deployment.remote) for reading in readings])


def explanations(readings: Sequence[Reading], prior: Prior | None) -> list[Model]:
    """Return the models that explain the readings, the likeliest first.

    Where waiting was measured it shows whether the workers set the pace, or the trainer does.  Elsewhere the
    assignment is sought that makes all readings together most likely, by changing one reading at a time; the changes
    that are nearly as likely are other explanations.
    """
    open_ones = [place for place, reading in enumerate(readings) if reading.wait is None]
    slowest_first = sorted(open_ones, key=lambda place: -readings[place].batch_time)
    starts = [shown_or(readings, set(slowest_first[:count])) for count in range(len(open_ones), -1, -1)]
    bound = min(starts, key=lambda start: misfit(readings, start, prior)) if open_ones else starts[0]
    least, improved = misfit(readings, bound, prior), bool(open_ones)
    while improved:
        improved = False
        for place in open_ones:
            other = [waits != (place == number) for number, waits in enumerate(bound)]
            value = misfit(readings, other, prior)
            if value < least - 1e-9:
                bound, least, improved = other, value, True
    others = [[waits != (place == number) for number, waits in enumerate(bound)] for place in open_ones]
    likely = [other for other in others if misfit(readings, other, prior) < least + DOUBT]
    return [fit_model(readings, assignment, prior) for assignment in (bound, *likely)]


def shown_or(readings: Sequence[Reading], guessed: set[int]) -> list[bool]:
    """Say where the workers set the pace: as the wait shows, else where it is guessed."""
    return [
        place in guessed if reading.wait is None else reading.wait_share > max(WAITING, 2 * reading.error)
        for place, reading in enumerate(readings)
    ]


def misfit(readings: Sequence[Reading], bound: Sequence[bool], prior: Prior | None) -> float:
    """Return how badly the model explains the readings under an assignment, in squared standard deviations."""
    model = fit_model(readings, bound, prior)
    local, remote = places(readings)
    step, _, supply, _ = model.predict(local, remote)
    time = np.array([reading.batch_time for reading in readings]) / model.unit
    error = FIT + np.array([reading.error for reading in readings])
    waits = np.array(bound, dtype=bool)
    too_slow = np.maximum(step / time - 1, 0) / error
    too_fast = np.maximum(1 - supply * time, 0) / error
    return float(model.step.misfit + model.supply.misfit + (too_slow[waits] ** 2).sum() + (too_fast[~waits] ** 2).sum())
