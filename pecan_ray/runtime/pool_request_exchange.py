"""The controllers of a cluster ask each other, every few seconds, what their jobs bid for workers."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import ray

from pecan_ray.job.events import PoolRequestsReceived
from pecan_ray.job.sharing import ROUND_S, PoolBid
from pecan_ray.runtime.cluster import NAMESPACE, nodes_for, other_jobs

logger = logging.getLogger("pecan_ray.controller")

ANSWER_S = ROUND_S / 2
"""Who has not answered by then is asked again in the next round."""


# Why there is no arbiter: docs/decisions/placement.md#26-one-pool-for-many-jobs
class PoolRequestExchange:
    """One controller's part."""

    def __init__(self, job: str, heard: Callable[[PoolRequestsReceived], None]) -> None:
        self._job, self._received = job, heard
        self._controllers: dict[str, Any] = {}
        """Other jobs' controllers, by job."""
        self._known: PoolRequestsReceived | None = None

    async def run(self, trainer_nodes: tuple[str, ...], labels: Mapping[str, str]) -> None:
        """Ask in rounds, until the task is cancelled."""
        while True:
            try:
                where = await asyncio.to_thread(nodes_for, trainer_nodes, labels)
                gone = await asyncio.to_thread(self._find_others)
            except ray.exceptions.RayError as error:  # no reason to end a job that has its workers
                logger.warning("job %s does not hear what others bid, since Ray does not answer: %s", self._job, error)
                await asyncio.sleep(ROUND_S)
                continue
            pool_requests = await self._ask()
            heard = PoolRequestsReceived(
                tuple(pool_requests), tuple(where.by_placement.items()), tuple(where.cpus.items()), gone
            )
            if heard != self._known:
                self._received(heard)
            self._known = (
                heard if not pool_requests else None
            )  # others are heard anew each time: what is old is dropped
            await asyncio.sleep(ROUND_S)

    def _find_others(self) -> tuple[str, ...]:
        """Look for other jobs' controllers; return the jobs that have ended."""
        named = other_jobs(self._job)
        gone = tuple(sorted(self._controllers.keys() - named.keys()))
        for job in gone:
            del self._controllers[job]
        for job in named.keys() - self._controllers.keys():
            try:
                self._controllers[job] = ray.get_actor(named[job], namespace=NAMESPACE)
            except ValueError:  # it has ended meanwhile
                continue
        return gone

    async def _ask(self) -> list[PoolBid]:
        # In one order, so that bids that have not changed are equal to those before.
        answers = await asyncio.gather(*(self._fetch_pool_requests(job) for job in sorted(self._controllers)))
        return [bid for answer in answers for bid in answer]

    async def _fetch_pool_requests(self, job: str) -> tuple[PoolBid, ...]:
        """Return what a job bids; nothing where its controller is busy, or gone."""
        try:
            pickled = await asyncio.wait_for(_ask_controller(self._controllers[job]), ANSWER_S)
        except (ray.exceptions.RayError, asyncio.TimeoutError) as error:
            # Decision 26: one silence changes no deal.  What a job has bid counts for three rounds.
            logger.debug("job %s has not told what it bids: %s", job, error)
            return ()
        pool_requests: tuple[PoolBid, ...] = pickle.loads(pickled)
        return pool_requests


async def _ask_controller(controller: Any) -> bytes:
    return bytes(await controller.pool_requests.remote())
