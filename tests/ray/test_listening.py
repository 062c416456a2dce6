"""Who listens while a job runs: nobody but Ray, and a worker that sends by Flight, to those with its token."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil
import pytest
import ray
from pyarrow import ArrowException, flight

import pecan_ray as pecan
from tests.ray import workers
from tests.ray.test_journal import process_of
from tests.ray.waiting import until

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")


class Nothing:
    def process(self) -> int:
        return psutil.Process().pid


def ports(pid: int) -> set[tuple[str, int]]:
    """The addresses at which a process listens."""
    found = psutil.Process(pid).net_connections(kind="inet")
    return {(one.laddr.ip, one.laddr.port) for one in found if one.status == psutil.CONN_LISTEN}


def test_only_a_worker_that_sends_by_flight_listens_and_it_refuses_who_has_no_token() -> None:
    """A local worker sends by a ring, and a remote one by Flight."""
    me = psutil.Process().pid
    before = ports(me)
    remote: Any = ray.remote
    actor = remote(Nothing).options(num_cpus=0).remote()
    by_ray = len(ports(ray.get(actor.process.remote())))
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(4000)), name="heard").batch(8)
    placed = pecan.Workers(local=1, remote=1)
    with pipe.iter_batches(job="heard", epochs=None, workers=placed, **workers.ONE_BY_ONE) as batches:
        used = set[str]()

        def both_have_sent() -> bool:
            next(batches)
            used.add(workers.maker(batches))
            return len(used) == 2

        until(both_have_sent, "one of the workers sends nothing")
        for name, extra in (("pecan:heard:local-0", 0), ("pecan:heard:remote-0", 1)):
            listening = ports(workers.process_of(name))
            assert len(listening) == by_ray + extra, name
            assert sum(refuses(*address) for address in listening) == extra, name
        assert len(ports(process_of("heard"))) == by_ray and ports(me) == before


def refuses(host: str, port: int) -> bool:
    """Tell whether Flight listens there, which must refuse whoever shows no token."""
    options = flight.FlightCallOptions(timeout=20.0)
    host = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    with flight.FlightClient(f"grpc://[{host}]:{port}" if ":" in host else f"grpc://{host}:{port}") as client:
        try:
            list(client.list_flights(options=options))
        except flight.FlightUnauthenticatedError:
            return True
        except ArrowException:  # it is not Flight: Ray's own port
            return False
    raise AssertionError(f"{host}:{port} answers whoever asks")
