"""Running the first elements through a stretch in this process, operator by operator, watched and timed."""

from __future__ import annotations

import contextlib
import copy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import cloudpickle

from pecan_ray.autoorder.element_spec import ElementSpec, equal
from pecan_ray.autoorder.op_runner import (
    OP_FAILURES,
    GlobalRandomState,
    OpRunner,
    SampleClock,
    SampleLimits,
    Stage,
    Token,
    run_through,
)
from pecan_ray.autoorder.op_samples import OpAccumulator, OpSequenceSample
from pecan_ray.autoorder.python_runner import PythonRunner
from pecan_ray.by_value import dumps
from pecan_ray.engines.counting import OpCount, element_bytes
from pecan_ray.engines.registry import ENGINES
from pecan_ray.errors import ElementError
from pecan_ray.options import EngineName
from pecan_ray.plan.op_sequences import OpSequence, with_ops
from pecan_ray.plan.operators import Op, Plan
from pecan_ray.storage.retry import patience_at_most

READ_SHARE = 1 / 3
"""Share of the time that reading the elements may take."""
FEW = 48
"""Elements that are enough where the operators are slow."""
LEAST_ELEMENTS = 8
"""On fewer elements no time can be measured."""
ALWAYS_WATCHED = 2
"""First elements on which every operator is watched."""
COMPARED = 12
"""First elements of which an operator's input is compared with its output, however much time there is."""
WATCHED_EVERY = 8
"""Both go on with each so many elements: which they are must not depend on the time, since orders depend on them."""
WATCHED_SHARE = 0.25
"""Share of the time that the watched runs may take, beyond the first elements: more than two of eight."""


def private_copy(plan: Plan) -> Plan:
    """Return the plan with copies of its functions, so that a sample leaves their closures and objects alone.

    Where it cannot be pickled objects alone are copied; where those cannot be copied it is returned as it is.
    """
    ops = list(plan.all_ops())
    try:
        # All at once: functions that share an object share its copy, too.
        copies: list[Op] = cloudpickle.loads(dumps(ops))
    except Exception:  # objects may refuse it in any way, as those of a script's class that dispatches by type
        try:
            copies = copy.deepcopy(ops)
        except Exception:  # and to be copied
            return plan
    return with_ops(plan, {op.name: op for op in copies})


@contextlib.contextmanager
def restore_globals() -> Iterator[None]:
    """Put back what a sample changes in this process: shared random generators, and OpenCV's number of threads."""
    # A sample in the trainer's process must not move the numbers that the training script draws.
    randomness = GlobalRandomState()
    cv2 = sys.modules.get("cv2")
    threads = cv2.getNumThreads() if cv2 is not None else 0
    if cv2 is not None:
        cv2.setNumThreads(1)  # as in a worker
    try:
        yield
    finally:
        randomness.restore()
        if control_flow := sys.modules.get("pecan_ray.engines.tensorflow.control_flow"):
            control_flow.converted.cache_clear()  # it would keep the copies of functions that were sampled
        if cv2 is not None:
            cv2.setNumThreads(threads)


def load_engine(engine: EngineName) -> Callable[..., OpRunner]:
    """Import what runs an engine's operators, and its framework, which may take longer than the sample."""
    # A framework is imported for its own engine alone.
    if ENGINES[engine].framework is None:
        return PythonRunner
    from pecan_ray.autoorder.tensorflow_runner import TensorFlowRunner

    return TensorFlowRunner


@dataclass
class Sampled:
    """A stretch after its elements were run in the user's order, ready for other orders."""

    sequence: OpSequence
    runner: OpRunner
    limits: SampleLimits
    clock: SampleClock
    held: list[Token] = field(default_factory=list)
    """The elements that entered the stretch, and that all its operators took."""
    positions: list[int] = field(default_factory=list)
    """Where each stood among those that were read."""
    results: list[int] = field(default_factory=list)
    """What became of each: the number of elements that came out."""
    accumulators: dict[str, OpAccumulator] = field(default_factory=dict)
    spec: ElementSpec = field(default_factory=ElementSpec)
    """What the results have in common in the user's order."""
    failed: ElementError | None = None
    """How the first element failed that was left out."""
    notes: list[str] = field(default_factory=list)
    started: float = 0.0

    def profile(self) -> OpSequenceSample:
        """Return the facts."""
        samples = tuple(self.accumulators[op.name].sample() for op in self.sequence.ops)
        return OpSequenceSample(samples, len(self.held), tuple(self.notes), self.runner.reading_s)

    def token(self, number: int) -> Token:
        """Return a copy of an element to be run, with the shared generators in the same state for any order."""
        self.seed(number)
        return self.runner.fresh(self.held[number])

    def seed(self, number: int) -> None:
        """Put the shared generators into the state that belongs to an element, if an operator draws from them."""
        # Only then: seeding three generators for each element is slower than tiny operators.
        if any(tally.draws for tally in self.accumulators.values()):
            GlobalRandomState.seed(number)

    def run(self, stages: Sequence[Stage], number: int, token: Token) -> list[Token]:
        """Return what becomes of a copy of an element, whatever has become of it before."""
        self.seed(number)
        return run_through(stages, self.runner.fresh(token))

    def in_time(self) -> bool:
        """Tell whether something more may be begun."""
        return self.clock() <= self.limits.deadline

    def read(self, until: float) -> None:
        """Read the elements, within the limits."""
        size = 0
        for token in self.runner.inputs():
            self.held.append(token)
            size += element_bytes(self.runner.columns(token))
            if len(self.held) >= self.limits.elements or size >= self.limits.bytes or self.clock() > until:
                break
        # Files and prefetches are let go of before operators are timed.
        self.runner.close()
        count, asked = len(self.held), self.limits.elements
        self.notes += self.runner.scans.notes()
        if count >= asked:
            return
        if size >= self.limits.bytes or self.runner.scans.full:
            self.notes.append(f"sampled {count} of {asked} elements: they fill {self.limits.bytes >> 20} MiB")
        elif self.clock() > until:
            self.notes.append(f"sampled {count} of {asked} elements: reading took the time that there was")
        elif count:
            self.notes.append(f"sampled {count} of {asked} elements: there are no more")
        else:
            self.notes.append("there is no element to sample: the order stays as it is written")

    def run_all(self) -> None:
        """Run the elements that are held in the user's order; keep those that come through."""
        tokens, self.held = self.held, []
        self.started, bad, told = self.clock(), 0, ""
        stages = self.runner.stages(self.sequence.names)
        for number, token in enumerate(tokens):
            try:
                # A copy, because the element itself is kept for the other orders.
                outputs = self._run(stages, self.runner.fresh(token), number)
            except ElementError as error:
                if not self.limits.skip_bad:
                    raise
                bad += 1
                self.failed = self.failed or error
                # One note of them, with the newest count.
                self.notes = [note for note in self.notes if note != told]
                first = self.failed.message.splitlines()[0]
                told = f"{bad} of {len(tokens)} elements were left out of the sample: {first}"
                self.notes.append(told)
                continue
            if outputs is None:
                self.notes.append(f"ran {number} of {len(tokens)} elements: the time was over")
                return
            # Decision 24: slow operators are tried on few elements, because the trainer waits for its first batch.
            enough = FEW if self.clock() <= self.limits.hard_limit else LEAST_ELEMENTS
            if len(self.held) >= enough and self.clock() > self.limits.soft_limit:
                self.notes.append(f"ran {number} of {len(tokens)} elements, which are enough: the operators are slow")
                return
            self.held.append(token)
            self.positions.append(number)
            self.results.append(len(outputs))
            for output in outputs:
                self.spec.add(self.runner.columns(output))

    def _run(self, stages: Sequence[Stage], token: Token, number: int) -> list[Token] | None:
        """Return what becomes of an element; None if the time is over before that."""
        pieces = [token]
        for stage in stages:
            made: list[Token] = []
            for piece in pieces:
                if not self.in_time():
                    return None
                if self._should_watch(stage, number):
                    made += self._watch(stage, piece)
                    continue
                made += self._timed_run(stage, piece, compared=number < COMPARED or number % WATCHED_EVERY == 0)
            pieces = made
        return pieces

    def _timed_run(self, stage: Stage, piece: Token, *, compared: bool) -> list[Token]:
        """Return what becomes of an element behind one operator, and add what that shows to the operator's sums."""
        # A dict of its own, since the operator may put other values into the one that it is given.
        before, tally, timer = dict(self.runner.columns(piece)), self.accumulators[stage.names[0]], self.runner.timer()
        size = element_bytes(before)
        timer.start()
        outputs = stage.run(piece)
        seconds = timer.stop()
        after = [self.runner.columns(output) for output in outputs]
        tally.count += OpCount(1, len(after), size, sum(map(element_bytes, after)))
        tally.timed.append(seconds)
        # What was not written where it was watched counts as read, too: that can only keep operators in their places.
        written = self.runner.replaced_columns(before, after) - tally.columns.writes
        tally.columns.reads |= written
        tally.columns.writes |= written
        if compared:
            tally.compare(before, after)
        return outputs

    def _should_watch(self, stage: Stage, number: int) -> bool:
        """Tell whether to watch an operator on an element: on each eighth one, unless that would take long."""
        if number < ALWAYS_WATCHED or number % WATCHED_EVERY:
            return number < ALWAYS_WATCHED
        # Of the time that has passed, so a slow first operator cannot use up the share of the others.
        share = WATCHED_SHARE * (self.clock() - self.started) / len(self.accumulators)
        return self.accumulators[stage.names[0]].extra_s < share

    def _watch(self, stage: Stage, piece: Token) -> list[Token]:
        """Run an operator twice on equal input with equal random numbers, and compare."""
        (name,) = stage.names
        tally, started = self.accumulators[name], self.clock()
        before = dict(self.runner.columns(piece))
        randomness = GlobalRandomState()
        try:
            examined = self.runner.observe_run(stage, piece, self.in_time)
        except OP_FAILURES:
            # It fails on any element, or on our recording of one: the next run tells.
            examined = None
        # The timed run draws what the watched one drew: if results differ, the operator holds a state.
        randomness.restore()
        tally.extra_s += self.clock() - started
        if examined is not None:
            tally.columns.reads |= examined.reads
            tally.columns.writes |= examined.writes
            tally.draws |= examined.draws
        outputs = self._timed_run(stage, piece, compared=True)
        started = self.clock()
        after = [self.runner.columns(output) for output in outputs]
        if examined is None:
            tally.columns.reads |= before.keys()
            tally.columns.writes |= before.keys() & {column for output in after for column in output}
        elif examined.comparable:
            again = [self.runner.columns(output) for output in examined.outputs]
            tally.unequal |= not equal(again, after)
        tally.extra_s += self.clock() - started
        return outputs


def sample_op_sequence(
    stretch: OpSequence, engine: EngineName, seed: int, limits: SampleLimits, clock: SampleClock = time.perf_counter
) -> Sampled:
    """Read the elements that enter a stretch and run them through its operators in the user's order.

    Raises `ElementError` for an element that an operator cannot take, unless the limits say `skip_bad`.
    """
    now = clock()
    # A slow storage would leave no time for the operators, which the sample is for.
    until = now + (limits.deadline - now) * READ_SHARE
    reading = replace(limits, deadline=until)
    runner = load_engine(engine)(stretch, engine, seed=seed, limits=reading, clock=clock)
    accumulators = {op.name: OpAccumulator(op) for op in stretch.ops}
    sampled = Sampled(stretch, runner, limits, clock, accumulators=accumulators)
    with patience_at_most(max(until - now, 0.0)):  # the job waits out an outage, and says so
        sampled.read(until)
    sampled.run_all()
    return sampled
