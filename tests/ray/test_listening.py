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

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")


class Nothing:
    def process(self) -> int:
        return psutil.Process().pid


def ports(pid: int) -> set[tuple[str, int]]:
    """The addresses at which a process listens."""
    found = psutil.Process(pid).net_connections(kind="inet")
    return {(one.laddr.ip, one.laddr.port) for one in found if one.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize(("transport", "extra"), [("ring", 0), ("flight", 1)])
def test_only_a_worker_that_sends_by_flight_listens_and_it_refuses_who_has_no_token(transport: Any, extra: int) -> None:
    me = psutil.Process().pid
    before = ports(me)
    remote: Any = ray.remote
    actor = remote(Nothing).options(num_cpus=0).remote()
    by_ray = len(ports(ray.get(actor.process.remote())))
    config = pecan.Config(transport=transport)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(4000)), name="heard", config=config).batch(8)
    with pipe.iter_batches(job="heard", epochs=None, workers=pecan.Workers(local=1)) as batches:
        next(batches)
        listening = ports(workers.process_of("pecan:heard:local-0"))
        assert len(listening) == by_ray + extra
        assert len(ports(process_of("heard"))) == by_ray and ports(me) == before
        assert sum(refuses(*address) for address in listening) == extra


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
