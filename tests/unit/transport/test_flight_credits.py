"""Arrow Flight sends what clients have granted credits for, also where streams break."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.ray.waiting import until
from tests.unit.transport.flight_rig import Client, Wire, numbered, shut, working


def test_without_credits_nothing_is_sent_and_the_worker_stops_when_its_memory_is_full() -> None:
    clients: list[Client] = []
    ahead: list[int] = []

    def counted() -> Iterator[dict[str, Any]]:
        for number, batch in enumerate(numbered(400, (256, 256))):
            ahead.append(number - sum(len(client.messages) for client in clients))
            yield batch

    with working(counted(), limit=4 << 20) as worker:
        clients.append(client := Client(worker.endpoint.welcome(0), ahead=0))
        with client.reading():
            until(lambda: worker.produced >= 12, "the worker did not fill its memory")
            assert client.messages == []
            client.reader.grant(3)
            until(lambda: len(client.lots) == 3, "credits brought nothing")
            client.reader.grant(1000)
    assert client.numbers() == list(range(400))
    assert max(ahead) <= 18, "the worker went on without bound"


def test_the_end_needs_no_credit() -> None:
    with working([], streams=2) as worker:
        client = Client(worker.endpoint.welcome(0), ahead=0)
        with client.reading() as trouble:
            pass
    assert trouble == [None] and client.reader.ended


@pytest.mark.parametrize("streams", [1, 3])
def test_credits_are_of_a_rank_and_shared_by_its_streams(streams: int) -> None:
    with working(numbered(40, (300, 300)), streams=streams) as worker:
        client = Client(worker.endpoint.welcome(0), ahead=0)
        client.reader.grant(3)  # before there is a stream
        with client.reading():
            worker.join()
            until(lambda: len(client.lots) == 3, "credits from before the streams are lost")
            client.reader.grant(5)
            until(lambda: len(client.lots) == 8, "credits are lost")
            assert len(worker.outbox) == 40 - 8, "what was not asked for stays with the worker"
            client.reader.grant(32)
    assert client.reader.ended and sorted(client.numbers()) == list(range(40))
    client.reader.grant(1)


def test_what_a_client_without_credits_leaves_goes_to_another() -> None:
    with working(numbered(60, (300, 300))) as worker:
        poor, rich = Client(worker.endpoint.welcome(0), ahead=0), Client(worker.endpoint.welcome(1), rank=1)
        with poor.reading():
            poor.reader.grant(2)
            until(lambda: len(poor.lots) == 2, "two credits bring two messages")
            with rich.reading():
                pass
            assert rich.reader.ended
        assert poor.reader.ended
    assert len(poor.messages) == 2 and sorted(poor.numbers() + rich.numbers()) == list(range(60))


@pytest.mark.usefixtures("quick_retries")
def test_lots_that_a_broken_stream_has_lost_come_again_without_another_credit() -> None:
    with working(numbered(30, (300, 300))) as worker:
        wire = Wire(worker.endpoint.welcome(0), [1_000_000, 900_000])  # within the third lot, and again
        client = Client(wire.address, ahead=0)
        client.reader.grant(6)
        with client.reading():
            until(lambda: len(client.lots) == 6, "what was under way is lost")
            assert wire.cuts == 2
            worker.join()
            assert len(worker.outbox) == 30 - 6, "no credit was spent twice"
            client.reader.grant(24)
        wire.close()
    assert client.reader.ended and client.numbers() == list(range(30))


@pytest.mark.usefixtures("quick_retries")
def test_credits_that_a_broken_stream_has_lost_are_granted_again() -> None:
    with working(numbered(30, (300, 300))) as worker:
        wire = Wire(worker.endpoint.welcome(0), [])
        client = Client(wire.address, ahead=0)
        with client.reading():
            client.reader.grant(1)
            until(lambda: len(client.lots) == 1, "nothing came")
            for _ in range(5):
                shut(*wire._open)
                client.reader.grant(1)  # on a stream that is cut, or on none
            client.reader.grant(24)
        wire.close()
    assert client.reader.ended and client.numbers() == list(range(30))


def test_another_client_of_a_rank_gets_what_the_first_did_not_confirm_and_needs_credits_of_its_own() -> None:
    with working(numbered(20, (300, 300))) as worker:
        first = Client(worker.endpoint.welcome(0), ahead=0)
        with first.reading():
            first.reader.grant(9)
            until(lambda: len(first.lots) == 9, "nothing came")
            first.reader.stop()
        worker.join()
        second = Client(worker.endpoint.welcome(0), ahead=0)
        with second.reading():
            second.reader.grant(1)
            until(lambda: len(second.lots) == 1, "its first credit brought nothing")
            second.reader.grant(20)
    assert set(first.numbers() + second.numbers()) == set(range(20))
    assert second.numbers() == sorted(second.numbers())
