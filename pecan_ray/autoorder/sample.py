"""Running the first elements through a stretch in this process: some operator by operator, timed, then all others."""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import statistics
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import cloudpickle

from pecan_ray.autoorder.call_in_subprocess import call_in_subprocess, needs_own_process
from pecan_ray.autoorder.element_spec import ElementSpec, equal
from pecan_ray.autoorder.facts import SampleProfile, StretchSample
from pecan_ray.autoorder.op_runner import (
    OP_FAILURES,
    GlobalRandomness,
    OpRunner,
    Passed,
    SampleClock,
    SampleLimits,
    Stage,
    Token,
    run_through,
)
from pecan_ray.autoorder.op_tally import ENOUGH_TIMED, OpTally
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.own_globals import globals_of_its_own
from pecan_ray.autoorder.run_in_threads import in_threads
from pecan_ray.by_value import dumps
from pecan_ray.engines.counting import element_bytes
from pecan_ray.engines.registry import ENGINES
from pecan_ray.errors import ElementError
from pecan_ray.options import EngineName
from pecan_ray.plan.operators import ElementOp, Join, Op, Plan
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.stretches import Stretch, stretches, with_ops
from pecan_ray.reorder.profile import ProfiledOp
from pecan_ray.storage.retry import patience_at_most

READ_SHARE = 1 / 3
"""Share of the time that reading the elements may take."""
FEW = 48
"""So many elements are enough where the operators are slow."""
LEAST_ELEMENTS = 8
"""On fewer elements no time can be measured."""
ALWAYS_WATCHED = 2
"""First elements on which every operator is watched."""
OFTEN_WATCHED = 16
"""First elements of which each, and not every second one, is watched as long as there is time."""
WATCHED_IF_TRACED = 8
"""A graph has told what it reads and writes: what is watched is whether its results are the same twice."""
WATCHED_SHARE = 0.25
"""Share of the time that the watched runs may take, beyond the first elements."""
LIMITED_AFTER = (4, 16, 64)
"""After so many elements it is known, each time better, what one takes."""
MOST_TIMED = 160
"""After so many elements the others are only counted, also where some operator was timed on few."""


PendingOutputs: TypeAlias = Callable[[], "list[Token] | None"]


class Pipeline(Protocol):
    """What is sampled: a `pecan_ray.PecanPipeline`."""

    @property
    def plan(self) -> Plan:
        """Its description."""
        ...

    @property
    def engine(self) -> EngineName:
        """The engine that runs it."""
        ...

    @property
    def seed(self) -> int:
        """What its random numbers are derived from."""
        ...


def sample_profile(pipeline: Pipeline, elements: int = 300, seconds: float = 20.0) -> SampleProfile:
    """Run a pipeline's first elements through its operators and return what they do and take.

    Runs in this process (where TensorFlow would take an accelerator: in a process of its own), on an iterator and on
    copies of the functions of its own.  Until each operator was timed 64 times, elements go through one by one; of the
    others, which go through in several threads, bytes and elements are counted.  Ends after `seconds` (an operator that
    runs is not interrupted) or when 256 MiB of elements are held, with a note.  Raises `OpError` where an operator
    does, with its name and the element.
    """
    request = OrderRequest(
        pipeline.plan, pipeline.engine, seed=pipeline.seed, elements=elements, seconds=seconds, sample_all=True
    )
    plan, engine = request.plan, request.engine
    if needs_own_process(engine):
        found = call_in_subprocess(_profile, request, engine=engine, seconds=seconds)
    else:
        found = _profile(request)
    return replace(found, stretches=tuple(with_ops_of(plan, sample) for sample in found.stretches))


def with_ops_of(plan: Plan, sample: StretchSample) -> StretchSample:
    """Return the facts with the plan's own operators in place of the copies that were run."""
    ops = {op.name: op for op in plan.all_ops() if isinstance(op, ElementOp)}
    return replace(sample, ops=tuple(replace(one, op=ops[one.name]) for one in sample.ops))


def _profile(request: OrderRequest) -> SampleProfile:
    load_engine(request.engine)
    began = time.perf_counter()
    plan = private_copy(request.plan)
    found = stretches(plan)
    samples: dict[tuple[str, ...], StretchSample] = {}
    with undisturbed(plan):
        for number, stretch in enumerate(found):
            now = time.perf_counter()
            deadline = now + (began + request.seconds - now) / (len(found) - number)
            limits = SampleLimits(request.elements, deadline, spread=not plan_shape(plan).serial)
            samples[stretch.names] = sample_stretch(stretch, request.engine, request.seed, limits).profile()
    taken = tuple(samples.values())
    return SampleProfile(
        stretches=taken,
        profiled=tuple(_profiled(plan, samples)),
        elements=max((sample.elements for sample in taken), default=0),
        seconds=time.perf_counter() - began,
        notes=tuple(dict.fromkeys(note for sample in taken for note in sample.notes)),
    )


def private_copy(plan: Plan) -> Plan:
    """Return the plan with copies of its functions, so that a sample leaves their closures and objects alone.

    A plan that cannot be pickled is returned as it is: who sends it to workers says why.
    """
    ops = list(plan.all_ops())
    try:
        copies: list[Op] = cloudpickle.loads(dumps(ops))
    except Exception:  # objects may refuse to be pickled in any way
        return plan
    return with_ops(plan, {op.name: op for op in copies})


@contextlib.contextmanager
def undisturbed(plan: Plan) -> Iterator[None]:
    """Put back what a sample of a plan changes in this process.

    That are globals of the user's modules, shared random generators, OpenCV's number of threads.
    """
    randomness = GlobalRandomness()
    cv2 = sys.modules.get("cv2")
    threads = cv2.getNumThreads() if cv2 is not None else 0
    if cv2 is not None:
        cv2.setNumThreads(1)  # as in a worker
    try:
        with globals_of_its_own(plan):
            yield
    finally:
        randomness.restore()
        if graphs := sys.modules.get("pecan_ray.engines.tensorflow.graph"):
            graphs.converted.cache_clear()  # it would keep the copies of functions that were sampled
        if cv2 is not None:
            cv2.setNumThreads(threads)


def load_engine(engine: EngineName) -> None:
    """Import an engine's framework, which may take longer than the sample."""
    if ENGINES[engine].framework is not None:
        importlib.import_module("pecan_ray.autoorder.tensorflow_runner")


def make_runner(stretch: Stretch, engine: EngineName, seed: int, limits: SampleLimits, clock: SampleClock) -> OpRunner:
    """Return the runner of an engine; a framework is imported only for its own engine."""
    if ENGINES[engine].framework is not None:
        from pecan_ray.autoorder.tensorflow_runner import TensorFlowRunner

        return TensorFlowRunner(stretch, engine, seed=seed, limits=limits, clock=clock)
    from pecan_ray.autoorder.python_runner import PythonRunner

    return PythonRunner(stretch, engine, seed=seed, limits=limits, clock=clock)


@dataclass
class Sampled:
    """A stretch after its elements were run in the user's order, ready for other orders."""

    stretch: Stretch
    runner: OpRunner
    limits: SampleLimits
    clock: SampleClock
    held: list[Token] = field(default_factory=list)
    """The elements that entered the stretch, and that all its operators took."""
    places: list[int] = field(default_factory=list)
    """Where each stood among those that were read."""
    results: list[int] = field(default_factory=list)
    """What became of each: the number of elements that came out."""
    most_aside: int = 0
    """So many elements are set aside, where more than a few are left."""
    aside: list[Token] = field(default_factory=list)
    """Elements on which the user's order has not run."""
    tallies: dict[str, OpTally] = field(default_factory=dict)
    spec: ElementSpec = field(default_factory=ElementSpec)
    """What the results have in common in the user's order."""
    notes: list[str] = field(default_factory=list)
    began: float = 0.0
    read_s: float = 0.0
    """Time of reading an element."""
    looked_from: float = 0.0
    allowed_until: float = float("inf")
    """When the look must end that may take so many times as long as one element."""

    def profile(self) -> StretchSample:
        """Return the facts."""
        samples = tuple(self.tallies[op.name].sample() for op in self.stretch.ops)
        return StretchSample(samples, len(self.held), tuple(self.notes), self.runner.reading_s)

    def token(self, number: int) -> Token:
        """Return a copy of an element to be run, with the shared generators in the same state for any order."""
        self.seed(number)
        return self.runner.fresh(self.held[number])

    def seed(self, number: int) -> None:
        """Put the shared generators into the state that belongs to an element, if an operator draws from them."""
        if any(tally.draws for tally in self.tallies.values()):
            GlobalRandomness.seed(number)

    def run(self, stages: Sequence[Stage], number: int, token: Token) -> list[Token]:
        """Return what becomes of a copy of an element, whatever has become of it before."""
        self.seed(number)
        return run_through(stages, self.runner.fresh(token))

    def untouched(self, count: int) -> list[Token]:
        """Return elements on which nothing has run, none of them twice: fewer where there are no more."""
        taken, self.aside = self.aside[:count], self.aside[count:]
        return taken

    def in_time(self) -> bool:
        """Tell whether something more may be begun."""
        return self.clock() <= min(self.limits.deadline, self.allowed_until)

    def left_s(self) -> float:
        """Return the seconds in which something may be begun."""
        return max(min(self.limits.deadline, self.allowed_until) - self.clock(), 0.0)

    def read(self, until: float) -> None:
        """Read the elements, within the limits."""
        size, began = 0, self.clock()
        for token in self.runner.inputs():
            self.held.append(token)
            size += element_bytes(self.runner.columns(token))
            if len(self.held) >= self.limits.elements or size >= self.limits.bytes or self.clock() > until:
                break
        self.runner.close()
        count, asked = len(self.held), self.limits.elements
        self.read_s = (self.clock() - began) / max(1, count)
        if count >= asked:
            return
        if size >= self.limits.bytes:
            self.notes.append(f"sampled {count} of {asked} elements: they fill {self.limits.bytes >> 20} MiB")
        elif self.clock() > until:
            self.notes.append(f"sampled {count} of {asked} elements: reading took the time that there was")
        elif count:
            self.notes.append(f"sampled {count} of {asked} elements: there are no more")
        else:
            self.notes.append("there is no element to sample: the order stays as it is written")

    def run_all(self, skip_bad: bool) -> None:
        """Run the elements that are held in the user's order; keep those that come through."""
        tokens, self.held = self.held, []
        count = max(0, min(self.most_aside, len(tokens) - FEW))
        tokens, self.aside = tokens[: len(tokens) - count], tokens[len(tokens) - count :]
        self.began, bad = self.clock(), 0
        with contextlib.closing(self._runs(tokens)) as runs:
            for number, (token, outcome) in enumerate(runs):
                if number in LIMITED_AFTER and self.limits.runs < math.inf:
                    self._limit(number)
                try:
                    outputs = outcome()
                except ElementError as error:
                    if not skip_bad:
                        raise
                    bad += 1
                    self.notes = [note for note in self.notes if not note.endswith("left out of the sample")]
                    self.notes.append(
                        f"{error.message.splitlines()[0]}; {bad} bad elements were left out of the sample"
                    )
                    continue
                enough = FEW if self.clock() <= self.limits.scarce else LEAST_ELEMENTS
                if len(self.held) >= enough and self.clock() > self.limits.enough:
                    few = f"ran {number} of {len(tokens)} elements, which are enough: the operators are slow"
                    self.notes.append(few)
                    return
                if outputs is None:
                    self.notes.append(f"ran {number} of {len(tokens)} elements: the time was over")
                    return
                self._keep(token, number, outputs)

    def _limit(self, number: int) -> None:
        """Bound the look by what one of its elements takes, as the first ones have shown."""
        took = self.read_s
        for tally in self.tallies.values():
            if runs := [seconds for _, seconds in (*tally.timed, *tally.watched)]:
                took += statistics.median(runs) * tally.elements_in / number
        self.allowed_until = self.looked_from + self.limits.runs * took

    def _keep(self, token: Token, place: int, outputs: list[Token]) -> None:
        self.held.append(token)
        self.places.append(place)
        self.results.append(len(outputs))
        for output in outputs:
            self.spec.add(self.runner.columns(output))

    def _runs(self, tokens: Sequence[Token]) -> Generator[tuple[Token, PendingOutputs], None, None]:
        """Yield each element and what tells what becomes of it: None if the time is over before that."""
        stages, number = self.runner.stages(self.stretch.names), 0
        while number < len(tokens) and not self._timed_enough(number):
            yield tokens[number], functools.partial(self._run, stages, self.runner.fresh(tokens[number]), number)
            number += 1
        if number < len(tokens):
            passage = self.runner.passage(self.stretch.names)
            for token, outcome in in_threads(passage, tokens[number:], self.runner.threads, self.in_time):
                yield token, functools.partial(self._counted, outcome)

    def _timed_enough(self, number: int) -> bool:
        return number >= MOST_TIMED or all(len(tally.timed) >= ENOUGH_TIMED for tally in self.tallies.values())

    def _counted(self, outcome: Callable[[], Passed | None]) -> list[Token] | None:
        passed = outcome()
        if passed is None:
            return None
        for op, count in zip(self.stretch.ops, passed.counts, strict=True):
            self.tallies[op.name].count(count)
        return passed.outputs

    def _run(self, stages: Sequence[Stage], token: Token, number: int) -> list[Token] | None:
        """Return what becomes of an element; None if the time is over before that."""
        pieces = [token]
        for stage in stages:
            made: list[Token] = []
            for piece in pieces:
                if not self.in_time():
                    return None
                made += self._watch(stage, piece) if self._watches(stage, number) else self._time(stage, piece)
            pieces = made
        return pieces

    def _watches(self, stage: Stage, number: int) -> bool:
        """Tell whether to watch an operator on an element: often, unless that would take long."""
        (name,) = stage.names
        if number < ALWAYS_WATCHED:
            return True
        if self.runner.traced and number >= WATCHED_IF_TRACED:
            return False
        share = WATCHED_SHARE * (self.clock() - self.began) / len(self.tallies)
        return (number < OFTEN_WATCHED or number % 2 == 0) and self.tallies[name].watching_s < share

    def _time(self, stage: Stage, piece: Token, *, watched: bool = False) -> list[Token]:
        (name,) = stage.names
        size = element_bytes(self.runner.columns(piece))
        timer = self.runner.timer()
        timer.start()
        outputs = stage(piece)
        seconds = timer.stop()
        self.tallies[name].ran(size, [self.runner.columns(output) for output in outputs], seconds, watched=watched)
        return outputs

    def _watch(self, stage: Stage, piece: Token) -> list[Token]:
        """Run an operator twice on equal input with equal random numbers, and compare."""
        (name,) = stage.names
        tally, began = self.tallies[name], self.clock()
        before = dict(self.runner.columns(piece))
        randomness = GlobalRandomness()
        try:
            examined = self.runner.examine(stage, piece, self.in_time)
        except OP_FAILURES:
            # It fails on any element, or on our recording of one: the next run tells.
            examined = None
        randomness.restore()
        tally.watching_s += self.clock() - began
        outputs = self._time(stage, piece, watched=True)
        began = self.clock()
        after = [self.runner.columns(output) for output in outputs]
        tally.compare(before, after)
        if examined is None:
            tally.reads |= before.keys()
            tally.writes |= before.keys() & {column for output in after for column in output}
        else:
            tally.reads |= examined.reads
            tally.writes |= examined.writes
            tally.draws |= examined.draws
            if examined.comparable:
                again = [self.runner.columns(output) for output in examined.outputs]
                tally.stateful |= not equal(again, after)
        tally.watching_s += self.clock() - began
        return outputs


def sample_stretch(
    stretch: Stretch,
    engine: EngineName,
    seed: int,
    limits: SampleLimits,
    *,
    clock: SampleClock = time.perf_counter,
    skip_bad: bool = False,
    aside: int = 0,
) -> Sampled:
    """Read the elements that enter a stretch and run them through its operators in the user's order.

    So many are set `aside`, where more than a few are left: another order can be run where the user's has not run.
    Raises `ElementError` for an element that an operator cannot take, unless `skip_bad`.
    """
    now = clock()
    until = now + (limits.deadline - now) * READ_SHARE
    runner = make_runner(stretch, engine, seed, replace(limits, deadline=until), clock)
    tallies = {op.name: OpTally(op) for op in stretch.ops}
    sampled = Sampled(stretch, runner, limits, clock, tallies=tallies, looked_from=now, most_aside=aside)
    with patience_at_most(max(until - now, 0.0)):  # the job waits out an outage, and says so
        sampled.read(until)
    if not sampled.held:
        return sampled
    sampled.run_all(skip_bad)
    return sampled


def _profiled(plan: Plan, samples: dict[tuple[str, ...], StretchSample]) -> Iterator[ProfiledOp]:
    """Yield all operators of a plan; those that are in no stretch are barriers."""
    found = {op.name: op.profiled for sample in samples.values() for op in sample.ops}

    def walk(plan: Plan) -> Iterator[ProfiledOp]:
        if isinstance(plan.head, Join):
            for number, branch in enumerate(plan.head.inputs):
                yield from walk(branch)
                end = next((op.name for op in reversed(list(branch.all_ops()))), str(number))
                yield ProfiledOp(f"{plan.head.kind} behind {end}", 1.0, fixed=plan.head.kind)
        for op in plan.ops:
            yield found[op.name] if op.name in found else ProfiledOp(op.name, 1.0, fixed=barrier_reason(op))

    yield from walk(plan)


def barrier_reason(op: Any) -> str:
    """Return why an operator outside of all stretches keeps its place."""
    return "works on batches" if isinstance(op, ElementOp) else f"{type(op).__name__} is a barrier"
