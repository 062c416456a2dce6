"""Batches of one job, from its workers through a bounded queue to its trainers: exact to the batch, without events.

For the n-th batch, with f the time at which the next worker finishes and K the places for finished batches, taken in
turn by clients that ask at a, get it at g, and whose accelerators, in step, are done with step m at d(m):

    e(n) = max( f, g(n - K), e(n - 1) + decode )   the batch enters the queue as soon as there is a place, and engines
                                                   that decode, if there are any, had time for it
    g(n) = max( a, e(n) )                          wait = g(n) - a
    d(m) = max( d(m - 1), last g of the step ) + step
    a    = max( g + dispatch, d(m - run_ahead) ), and d(m) where the program waits for the accelerators

The worker starts its next batch at e(n): while the queue is full it stands still.  Workers are kept in a heap by the
time at which they finish; production is computed when it is consumed, or up to a moment at which workers come or go.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from heapq import heapify, heappush, heapreplace

from pecan_ray.job.loop_steps import WARM_UP
from pecan_ray.job.windows import StepTotals
from pecan_ray.simulator.noise import Services, StepTimes
from pecan_ray.simulator.workload import Trainer

NEVER = math.inf


@dataclass
class Client:
    """One trainer."""

    got: float = 0.0
    requested_at: float = 0.0
    totals: StepTotals = field(default_factory=StepTotals)


@dataclass
class SimulatedFeed:
    """The workers of a job and what they have finished; every client takes of it."""

    services: Services
    capacity: int
    client_slots: float = NEVER
    """Finished batches that one client holds, and sees in its queue; workers hold the others."""
    heap: list[tuple[float, int]] = field(default_factory=list)
    """(when it finishes its batch, worker), of those at work."""
    service_s: dict[int, float] = field(default_factory=dict)
    """Mean time of a batch of each worker."""
    remote: set[int] = field(default_factory=set)
    ready: deque[tuple[float, int]] = field(default_factory=deque)
    """(when it entered, worker) of finished batches that were computed before they were taken."""
    taken: deque[float] = field(default_factory=deque)
    """When the last batches were taken, as many as there are places."""
    produced: int = 0
    lost: int = 0
    received: int = 0
    """Batches that remote workers have made."""
    work_done: float = 0.0
    """Sum of the times that remote workers worked."""
    blocked: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Sums of the times that local and remote workers stood still beside a full queue."""
    decode_s: float = 0.0
    """Of the engines of all clients, for a batch that workers have left to them; 0: they leave none."""
    engines_free: float = -NEVER
    """When the engines are done with the batch that has entered last."""

    def __post_init__(self) -> None:
        self.taken = deque(maxlen=self.capacity)

    def resize(self, capacity: int) -> None:
        """Change the number of places in the queue."""
        self.capacity = max(1, capacity)
        self.taken = deque(self.taken, maxlen=self.capacity)

    def join(self, worker: int, service_s: float, now: float, remote: bool) -> None:
        """A worker begins."""
        self.service_s[worker] = service_s
        if remote:
            self.remote.add(worker)
        heappush(self.heap, (now + service_s * self.services.factor(), worker))

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
        finished = max(self.heap[0][0], self.engines_free)
        return max(finished, self.taken[0]) if len(self.taken) == self.capacity else finished

    def produce_until(self, now: float) -> None:
        """Compute what is finished by now and finds a place."""
        while self.heap and len(self.ready) < self.capacity:
            place = len(self.ready)
            freed = self.taken[place] if len(self.taken) == self.capacity else -NEVER
            entered = max(self.heap[0][0], freed, self.engines_free)
            if entered > now:
                return
            self._produce(entered)

    def replace_workers(self, now: float, start_s: float, decode_s: float) -> None:
        """Let others take the places of all workers, which start meanwhile; what was begun is made anew."""
        self.decode_s, self.engines_free = decode_s, now if decode_s else -NEVER
        self.heap = [
            (now + start_s + self.service_s[worker] * self.services.factor(), worker) for _, worker in self.heap
        ]
        heapify(self.heap)

    def blocked_by(self, now: float) -> tuple[float, float]:
        """Return the times that workers have stood still by now, where all that is finished was computed."""
        sums = list(self.blocked)
        for finished, worker in self.heap:
            sums[worker in self.remote] += max(0.0, now - finished)
        return sums[0], sums[1]

    def _produce(self, entered: float) -> None:
        finished, worker = self.heap[0]
        self.blocked[worker in self.remote] += entered - finished
        if self.decode_s:
            self.engines_free = entered + self.decode_s
        service = self.service_s[worker] * self.services.factor()
        heapreplace(self.heap, (entered + service, worker))
        if worker in self.remote:
            self.work_done += service
            self.received += 1
        self.produced += 1
        self.ready.append((entered, worker))

    def take(self, now: float) -> None:
        """Give the next batch away; its entry is not after `now`."""
        if not self.ready:
            self._produce(self.entry())
        self.ready.popleft()
        self.taken.append(now)


class Flow:
    """One job: a feed and the clients that take of it in step."""

    def __init__(
        self,
        trainer: Trainer,
        feed: SimulatedFeed,
        steps: StepTimes,
        *,
        clients: int = 1,
        begin: float = 0.0,
        batches_per_epoch: int = 1,
    ) -> None:
        self.trainer, self.steps, self.feed = trainer, steps, feed
        self.clients = [Client(begin, begin) for _ in range(clients)]
        self._per_epoch = batches_per_epoch
        self.step_s = trainer.step_s
        self.consumed = 0
        """Steps that were begun: batches of each client."""
        self.waited = 0.0
        """Seconds in which the client that waited longest waited, in all steps."""
        self.done = begin
        self.paused = 0.0
        """Seconds of pauses."""
        self.starved = 0.0
        """Seconds in which the accelerators had nothing to do, pauses left out."""
        self.dispatch_s = trainer.dispatch_s
        self.in_flight: deque[float] = deque(maxlen=max(1, trainer.run_ahead))
        self.noise: list[float] = []
        self.special = self._next_special()

    @property
    def idle(self) -> bool:
        """Return whether nobody works and nothing is left."""
        return not self.feed.heap and not self.feed.ready

    def queued(self, asked: float, until: float) -> float:
        """Return how many batches lie ready at each client that asks, computing what is finished then."""
        self.feed.produce_until(min(asked, until))
        ready = self.feed.ready
        waits = not ready or ready[0][0] > asked
        return 0.0 if waits else min(len(ready) / len(self.clients), self.feed.client_slots)

    @property
    def latest(self) -> float:
        """When the last batch was taken."""
        return max(client.got for client in self.clients)

    def advance(self, until: float, most: int) -> bool:
        """Take `most` batches for each client, but begin none after `until`; return whether all could be taken.

        The accelerators step together, and the clients take turns in being first.  A step of which some clients have
        their batch is finished, also after `until`, unless nobody works.
        """
        count = len(self.clients)
        for _ in range(most):
            asked = min(client.requested_at for client in self.clients)
            first = max(asked, self.feed.entry())
            if first > until or first == NEVER or (not self.feed.heap and len(self.feed.ready) < count):
                return False
            got = longest = 0.0
            for place in range(count):
                client = self.clients[(self.consumed + place) % count]
                asked = client.requested_at
                got = max(got, self._take(client, until))
                longest = max(longest, client.got - asked)
            self.waited += longest
            self._step(got)
        return True

    def _take(self, client: Client, until: float) -> float:
        queued = self.queued(client.requested_at, until)
        got = max(client.requested_at, self.feed.entry())
        self.feed.take(got)
        if self.consumed >= WARM_UP:
            alone = len(self.clients) == 1
            client.totals = client.totals.step(got - client.got, got - client.requested_at, queued, alone=alone)
        else:
            client.totals = client.totals.after_skipped_step(got - client.requested_at)
        client.got = got
        return got

    def _step(self, got: float) -> None:
        """Run the accelerators on a batch, and find out when the clients ask again."""
        if not self.noise:
            self.noise = self.steps.block()
        if got > self.done:
            self.starved += got - self.done
            self.done = got
        self.done += self.step_s * self.noise.pop()
        self.consumed += 1
        ahead = self.in_flight
        ask = ahead[0] if len(ahead) == ahead.maxlen else got
        ahead.append(self.done)
        if not self.trainer.run_ahead:
            ask = self.done
        if self.consumed >= self.special:
            ask = self.pause()
        for client in self.clients:
            least = client.got + self.dispatch_s
            client.requested_at = ask if ask > least else least

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
