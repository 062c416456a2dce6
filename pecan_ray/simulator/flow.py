"""Batches of one job, from its workers through bounded queues to its trainers: exact to the batch, without an event each.

For batch n of a client, with f the time at which the next worker finishes, K the places for finished batches, a(n) when
the client asks, g(n) when it gets, and d(n) when the accelerators are done:

    e(n) = max( f, g(n - K) )                      the batch enters the queue as soon as there is a place
    g(n) = max( a(n), e(n) )                       wait = g(n) - a(n)
    d(n) = max( d(n - 1), g(n) of all clients ) + step
    a(n + 1) = max( g(n) + dispatch, d(n - run_ahead) ), and d(n) where the program waits for the accelerators

The worker starts its next batch at e(n): while the queue is full it stands still.  Workers are kept in a heap by the time
at which they finish; production is computed when it is consumed, or up to a moment at which workers come or go.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import astuple, dataclass, field
from heapq import heapify, heappush, heapreplace

from pecan_ray.simulator.noise import BLOCK, Services, Steps
from pecan_ray.simulator.workload import Trainer

NEVER = math.inf
PAUSE_FACTOR, PAUSE_S = 20.0, 2.0
"""What the live client takes for a pause: so many times the usual step, and longer than this."""


@dataclass
class Totals:
    """Sums over the batches of one client since the job began."""

    batches: int = 0
    seconds: float = 0.0
    squares: float = 0.0
    waited: float = 0.0
    queued: float = 0.0
    """Sum of the times that batches lay in the queue."""
    worked: float = 0.0
    """Sum of the times that remote workers worked."""
    received: int = 0
    """Batches that remote workers have made."""
    pauses: int = 0
    """Steps that were left out: the trainer did something else meanwhile."""

    def since(self, before: Totals) -> Totals:
        """Return the sums of what came after."""
        return Totals(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


@dataclass
class Feed:
    """The workers of one client and what they have finished for it."""

    services: Services
    capacity: int
    heap: list[tuple[float, int]] = field(default_factory=list)
    """(when it finishes its batch, worker), of those at work."""
    service_s: dict[int, float] = field(default_factory=dict)
    """Mean time of a batch of each worker."""
    remote: set[int] = field(default_factory=set)
    ready: deque[tuple[float, int]] = field(default_factory=deque)
    """(when it entered, worker) of finished batches that were computed before they were taken."""
    taken: deque[float] = field(default_factory=deque)
    """When the last batches were taken, as many as there are places."""
    got: float = 0.0
    asked: float = 0.0
    totals: Totals = field(default_factory=Totals)
    produced: int = 0
    lost: int = 0
    noise: list[float] = field(default_factory=list)
    drawn: int = BLOCK

    def __post_init__(self) -> None:
        self.taken = deque(maxlen=self.capacity)

    def factor(self) -> float:
        """Return the next factor of a service time."""
        if self.drawn >= BLOCK:
            self.noise, self.drawn = self.services.block(), 0
        self.drawn += 1
        return self.noise[self.drawn - 1]

    def resize(self, capacity: int) -> None:
        """Change the number of places in the queue."""
        self.capacity = max(1, capacity)
        self.taken = deque(self.taken, maxlen=self.capacity)

    def join(self, worker: int, service_s: float, now: float, remote: bool) -> None:
        """A worker begins."""
        self.service_s[worker] = service_s
        if remote:
            self.remote.add(worker)
        heappush(self.heap, (now + service_s * self.factor(), worker))

    def leave(self, worker: int, keep: int | None) -> None:
        """A worker ends with the batch in its hands; of its finished ones those stay that are among the first `keep`
        in the queue (None: all)."""
        self.heap = [entry for entry in self.heap if entry[1] != worker]
        heapify(self.heap)
        self.service_s.pop(worker, None)
        self.remote.discard(worker)
        if keep is None:
            return
        held = [entry for place, entry in enumerate(self.ready) if place < keep or entry[1] != worker]
        self.lost += len(self.ready) - len(held)
        self.ready = deque(held)

    def entry(self) -> float:
        """Return when the next batch enters the queue, or has; never if nobody works."""
        if self.ready:
            return self.ready[0][0]
        if not self.heap:
            return NEVER
        finished = self.heap[0][0]
        return max(finished, self.taken[0]) if len(self.taken) == self.capacity else finished

    def produce_until(self, now: float) -> None:
        """Compute what is finished by now and finds a place."""
        while self.heap and len(self.ready) < self.capacity:
            place = len(self.ready)
            freed = self.taken[place] if len(self.taken) == self.capacity else -NEVER
            entered = max(self.heap[0][0], freed)
            if entered > now:
                return
            self._produce(entered)

    def _produce(self, entered: float) -> None:
        worker = self.heap[0][1]
        service = self.service_s[worker] * self.factor()
        heapreplace(self.heap, (entered + service, worker))
        if worker in self.remote:
            self.totals.worked += service
            self.totals.received += 1
        self.produced += 1
        self.ready.append((entered, worker))

    @property
    def waiting(self) -> int:
        """Finished batches that were computed and not taken."""
        return len(self.ready)


class Flow:
    """All clients of one job, in step."""

    def __init__(
        self,
        trainer: Trainer,
        feeds: list[Feed],
        steps: Steps,
        begin: float,
        batches_per_epoch: int,
        pauses: bool = True,
    ) -> None:
        """`pauses`: leave out of the totals a step that is far out of line, as the live client does."""
        self.trainer, self.steps = trainer, steps
        self.feeds = feeds
        self._per_epoch = batches_per_epoch
        self.long_s = max(PAUSE_S, PAUSE_FACTOR * trainer.step_s) if pauses else NEVER
        self.step_s = trainer.step_s
        self.consumed = 0
        self.done = begin
        self.paused = 0.0
        """Seconds of pauses."""
        self.starved = 0.0
        """Seconds in which the accelerators had nothing to do, pauses left out."""
        self.dispatch_s = trainer.dispatch_s
        self.ahead: deque[float] = deque(maxlen=max(1, trainer.run_ahead))
        self.noise: list[float] = []
        self.special = self._next_special()
        for feed in feeds:
            feed.got = feed.asked = begin

    @property
    def idle(self) -> bool:
        """Whether nobody works and nothing is left."""
        return all(not feed.heap and not feed.ready for feed in self.feeds)

    @property
    def latest(self) -> float:
        """When the last batch was taken."""
        return max(feed.got for feed in self.feeds)

    def advance(self, until: float, most: int) -> bool:
        """Take `most` batches, but none after `until`; return whether all could be taken."""
        if len(self.feeds) == 1:
            return advance_alone(self, self.feeds[0], until, most)
        return self.advance_together(until, most)

    def advance_together(self, until: float, most: int) -> bool:
        """The same for any number of clients, whose accelerators step together."""
        for _ in range(most):
            times = [max(feed.asked, feed.entry()) for feed in self.feeds]
            got = max(times)
            if got > until:
                return False
            for feed, time in zip(self.feeds, times, strict=True):
                self._take(feed, time)
            self._step(got)
        return True

    def _take(self, feed: Feed, got: float) -> None:
        if feed.ready:
            entered, _ = feed.ready.popleft()
        else:
            entered = feed.entry()
            worker = feed.heap[0][1]
            drawn = feed.drawn
            if drawn >= BLOCK:
                feed.noise, drawn = feed.services.block(), 0
            feed.drawn = drawn + 1
            service = feed.service_s[worker] * feed.noise[drawn]
            heapreplace(feed.heap, (entered + service, worker))
            if worker in feed.remote:
                feed.totals.worked += service
                feed.totals.received += 1
            feed.produced += 1
        interval = got - feed.got
        totals = feed.totals
        if interval > self.long_s and feed.asked - feed.got > self.long_s:
            totals.pauses += 1
            feed.got = got
            feed.taken.append(got)
            return
        totals.batches += 1
        totals.seconds += interval
        totals.squares += interval * interval
        totals.waited += got - feed.asked
        totals.queued += got - entered
        feed.got = got
        feed.taken.append(got)

    def _step(self, got: float) -> None:
        """Run the accelerators on a batch, and find out when the clients ask again."""
        if not self.noise:
            self.noise = self.steps.block()
        if got > self.done:
            self.starved += got - self.done
            self.done = got
        self.done += self.step_s * self.noise.pop()
        self.consumed += 1
        ahead = self.ahead
        ask = ahead[0] if len(ahead) == ahead.maxlen else got
        ahead.append(self.done)
        if not self.trainer.run_ahead:
            ask = self.done
        if self.consumed >= self.special:
            ask = self.pause()
        for feed in self.feeds:
            least = feed.got + self.dispatch_s
            feed.asked = ask if ask > least else least

    def pause(self) -> float:
        """Do what happens every so many batches: wait for the accelerators, write a checkpoint, evaluate."""
        trainer, seconds = self.trainer, 0.0
        if trainer.pause_every and self.consumed % trainer.pause_every == 0:
            seconds += trainer.pause_s
        if trainer.epoch_pause_s and self.consumed % self._per_epoch == 0:
            seconds += trainer.epoch_pause_s
        self.done += seconds
        self.paused += seconds
        self.special = self._next_special()
        return self.done

    def _next_special(self) -> float:
        trainer = self.trainer
        periods = [trainer.sync_every, trainer.pause_every, self._per_epoch if trainer.epoch_pause_s else 0]
        return min((self.consumed // period + 1) * period for period in periods if period) if any(periods) else NEVER

    def settle(self, now: float) -> None:
        """Bring production up to a moment at which workers come or go."""
        for feed in self.feeds:
            feed.produce_until(now)


def advance_alone(flow: Flow, feed: Feed, until: float, most: int) -> bool:
    """Do what `Flow.advance_together` does, for one client and written out: this loop is where simulations spend time.

    Everything is kept in local variables meanwhile.
    """
    heap, ready, taken, capacity = feed.heap, feed.ready, feed.taken, feed.capacity
    service_s, remote, totals, ahead = feed.service_s, feed.remote, feed.totals, flow.ahead
    most_ahead, at_once = ahead.maxlen, not flow.trainer.run_ahead
    got, asked, done, step_s, dispatch_s = feed.got, feed.asked, flow.done, flow.step_s, flow.dispatch_s
    noise, drawn, steps = feed.noise, feed.drawn, flow.noise
    seconds = squares = waited = queued = worked = starved = 0.0
    batches = produced = received = 0
    places = len(taken)
    complete = True
    for _ in range(most):
        if ready:
            entered = ready[0][0]
        elif heap:
            entered = heap[0][0]
            if places == capacity and taken[0] > entered:
                entered = taken[0]
        else:
            complete = False
            break
        now = asked if asked > entered else entered
        if now > until:
            complete = False
            break
        if ready:
            ready.popleft()
        else:
            if drawn >= BLOCK:
                noise, drawn = feed.services.block(), 0
            worker = heap[0][1]
            service = service_s[worker] * noise[drawn]
            drawn += 1
            heapreplace(heap, (entered + service, worker))
            produced += 1
            if worker in remote:
                worked += service
                received += 1
        interval = now - got
        if interval > flow.long_s and asked - got > flow.long_s:
            totals.pauses += 1
        else:
            batches += 1
            seconds += interval
            squares += interval * interval
            waited += now - asked
            queued += now - entered
        got = now
        taken.append(now)
        if places < capacity:
            places += 1
        if not steps:
            steps = flow.steps.block()
        if now > done:
            starved += now - done
            done = now
        done += step_s * steps.pop()
        flow.consumed += 1
        asked = ahead[0] if len(ahead) == most_ahead else now
        ahead.append(done)
        if at_once:
            asked = done
        if flow.consumed >= flow.special:
            flow.done = done
            asked = flow.pause()
            done = flow.done
        if asked < now + dispatch_s:
            asked = now + dispatch_s
    feed.got, feed.asked, feed.noise, feed.drawn = got, asked, noise, drawn
    feed.produced += produced
    flow.done, flow.noise = done, steps
    flow.starved += starved
    totals.batches += batches
    totals.seconds += seconds
    totals.squares += squares
    totals.waited += waited
    totals.queued += queued
    totals.worked += worked
    totals.received += received
    return complete
