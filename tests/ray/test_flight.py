"""Arrow Flight on a real cluster: remote workers deliver by it, to who has its token, and fall back if it is closed."""

from __future__ import annotations

import gc
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from pyarrow import ArrowException, flight

import pecan_ray as pecan
from pecan_ray.transport.choice import FlightAddress
from tests.ray.conftest import living_actors
from tests.ray.pipelines import TWO, ids, numbers, times
from tests.ray.user_programs import run_program
from tests.ray.waiting import ENDS_S, until
from tests.ray.workers import ONE_BY_ONE, Together, controller_process, lose, maker, process_of, told
from tests.unit.transport.flight_rig import Wire
from tests.unit.transport.test_flight_strangers import make_certificates

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

ROWS = 400
SIDE = 96
"""A batch of 8 rows has 290 KB, so that it travels alone and without a copy."""


def square(i: Any) -> Any:
    return np.full((SIDE, SIDE), i, np.int32)


def squares(function: Callable[[Any], Any] = square, **config: Any) -> pecan.PecanPipeline:
    """Elements of 36 KB that hold their own number everywhere."""
    return numbers(ROWS, "squares", config=pecan.Config(**config)).map(function, on="i", name="square").batch(8)


def sound(batch: Any) -> list[int]:
    """The elements of a batch; fails if any of them is damaged."""
    assert (batch["i"] == batch["i"][:, :1, :1]).all()
    return ids([batch])


class Nothing:
    def process(self) -> int:
        return os.getpid()


def ports(pid: int) -> set[tuple[str, int]]:
    """The addresses at which a process listens."""
    found = psutil.Process(pid).net_connections(kind="inet")
    return {(one.laddr.ip, one.laddr.port) for one in found if one.status == psutil.CONN_LISTEN}


def refuses(host: str, port: int) -> bool:
    """Tell whether Flight listens there, which must refuse whoever shows no token."""
    options = flight.FlightCallOptions(timeout=ENDS_S)
    host = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    with flight.FlightClient(f"grpc://[{host}]:{port}" if ":" in host else f"grpc://{host}:{port}") as client:
        try:
            list(client.list_flights(options=options))
        except flight.FlightUnauthenticatedError:
            return True
        except ArrowException:  # it is not Flight: Ray's own port
            return False
    raise AssertionError(f"{host}:{port} answers whoever asks")


def test_a_remote_worker_alone_listens_with_a_token_and_what_the_trainer_keeps_of_it_is_its_own(tmp_path: Path) -> None:
    """A local worker sends by a ring, and a remote one by Flight; Ray itself listens in each of its processes."""
    before = ports(os.getpid())
    remote: Any = ray.remote
    actor = remote(Nothing).options(num_cpus=0).remote()
    by_ray = len(ports(ray.get(actor.process.remote())))
    together = Together(tmp_path, 2)
    pipe = squares(function=lambda i: square(together(i)))
    kept, used = [], set[str]()
    with pipe.iter_batches(epochs=2, workers=TWO, job="heard", **ONE_BY_ONE) as batches:

        def both_have_sent() -> bool:
            kept.append(next(batches))
            used.add(maker(batches))
            return len(used) == 2

        until(both_have_sent, "one of the workers sends nothing")
        for name, extra in (("pecan:heard:local-0", 0), ("pecan:heard:remote-0", 1)):
            listening = ports(process_of(name))
            assert len(listening) == by_ray + extra, name
            assert sum(refuses(*address) for address in listening) == extra, name
        assert len(ports(controller_process("heard"))) == by_ray and ports(os.getpid()) == before
        kept += batches
        text = told(batches.report())
    assert all(batch["i"].flags.aligned for batch in kept)
    until(lambda: not living_actors(), "the workers are not gone")
    gc.collect()
    assert Counter(i for batch in kept for i in sound(batch)) == times(ROWS, 2)
    for batch in kept:
        batch["i"] += 1
    assert Counter(i - 1 for batch in kept for i in sound(batch)) == times(ROWS, 2)
    assert "remote-0 -> rank 0 by flight: worker and trainer are on different nodes" in text
    assert "object_store" not in text


def test_the_object_store_steps_in_for_a_closed_port_and_a_worker_of_which_no_network_tells_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port of the first of two workers is closed; the other one is killed behind a connection that stays open."""
    closed: list[int] = []
    wires: dict[int, Wire] = {}
    real: Any = FlightAddress.location

    def faulty(address: FlightAddress) -> str:
        if not closed:
            closed.append(address.port)
        if address.port == closed[0]:
            return "grpc+tcp://127.0.0.1:9"
        if address.port not in wires:
            wires[address.port] = Wire(address, [], silent=True)
        return str(real.fget(wires[address.port].address))

    monkeypatch.setattr(FlightAddress, "location", property(faulty))
    seen: Counter[int] = Counter()
    together = Together(tmp_path, 2)
    pipe = squares(function=lambda i: square(together(i)))
    with pipe.iter_batches(epochs=2, workers=pecan.Workers(local=0, remote=2), **ONE_BY_ONE) as it:
        seen.update(sound(next(it)))
        until(lambda: "by object_store from now on" in told(it.report()), "the object store does not step in")
        while f"{maker(it)} -> rank 0: by object_store" in told(it.report()):
            seen.update(sound(next(it)))
        lose(it, maker(it))
        for batch in it:
            seen.update(sound(batch))
        report = it.report()
    assert seen == times(ROWS, 2) and report.workers_lost == 1
    assert told(report).count("by object_store from now on") == 1 and "cannot be read: Flight" in told(report)
    for wire in wires.values():
        wire.close()


ENCRYPTED = """
import numpy as np
import ray
import pecan_ray as pecan
from pecan_ray.transport.choice import FlightAddress

real, used = FlightAddress.location, []
FlightAddress.location = property(lambda address: used.append(real.fget(address)) or used[-1])
ray.init(num_cpus=2, include_dashboard=False)
pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(4000)), name="tls", config=pecan.Config(transport="flight"))
with pipe.map(lambda i: np.full(1000, i), on="i").batch(8).iter_batches(workers=pecan.Workers(local=1)) as batches:
    seen = sorted(int(row[0]) for batch in batches for row in batch["i"])
    told = " ".join(event.text for event in batches.report().events)
assert seen == list(range(4000))
assert "by flight" in told and "object_store" not in told, told
assert used and all(location.startswith("grpc+tls://") for location in used), used
print("all of them, encrypted")
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_batches_travel_by_encrypted_flight_where_the_cluster_encrypts(tmp_path: Path) -> None:
    """With RAY_USE_TLS, on a Ray of its own."""
    find_address: Any = ray.util.get_node_ip_address
    address = find_address()
    certificates = make_certificates(tmp_path / "cluster", f"127.0.0.1,IP:{address},DNS:localhost")
    done = run_program(ENCRYPTED, tmp_path, "local", **certificates)
    assert "all of them, encrypted" in done.stdout, done.stderr
