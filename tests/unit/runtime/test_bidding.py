"""A controller that cannot ask the cluster for a moment asks again: its job goes on."""

from __future__ import annotations

import asyncio

import pytest
import ray

from pecan_ray.job.events import BidsHeard
from pecan_ray.runtime import bidding
from pecan_ray.runtime.bidding import Bidding
from pecan_ray.runtime.cluster import SharedNodes

pytestmark = pytest.mark.usefixtures("each_event_loop")


def test_a_round_in_which_ray_does_not_answer_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def nodes_for(nodes: tuple[str, ...], labels: dict[str, str]) -> SharedNodes:
        asked.append(nodes)
        if len(asked) < 3:
            raise ray.exceptions.RayError("the control store does not answer")
        return SharedNodes({"local": nodes, "remote": ()}, {"a": 4.0})

    monkeypatch.setattr(bidding, "nodes_for", nodes_for)
    monkeypatch.setattr(bidding, "other_jobs", lambda job: {})
    monkeypatch.setattr(bidding, "ROUND_S", 0.0)

    async def run() -> BidsHeard:
        heard: asyncio.Future[BidsHeard] = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(Bidding("job", heard.set_result).run(("a",), {}))
        try:
            return await asyncio.wait_for(heard, 60)
        finally:
            task.cancel()

    assert asyncio.run(run()).cpus == (("a", 4.0),) and len(asked) >= 3
