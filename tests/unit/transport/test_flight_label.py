"""Labels say what lies in a message without running anybody's code, and no hostile one does harm."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pyarrow import flight

from pecan_ray.engines.contract import BadElement
from pecan_ray.engines.layout import ColumnPlace
from pecan_ray.plan.splits import Origin
from pecan_ray.transport import flight_client
from pecan_ray.transport.choice import FlightAddress
from pecan_ray.transport.flight_label import FRAME, MAGIC, Label, read_label, write_label
from pecan_ray.transport.flight_wire import SCHEMA
from pecan_ray.transport.messages import Message
from tests.unit.transport.flight_rig import Client

KEY = b"k" * 32


class Evil:
    """Runs code when it is unpickled."""

    ran = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _run, ()


def _run() -> str:
    Evil.ran += 1
    return "ran"


def label(columns: dict[str, Any], **more: Any) -> Label:
    message = Message(columns, {(0, 1, 2): [(0, 1 << 40), (1 << 41, 1 << 42)]}, 7, 3, **more)
    return Label(5, ((64, 1000, message),), 1064, "lz4", "compressed")


def test_a_label_comes_back_as_it_was() -> None:
    origin = Origin(1, 0, 0, 3, 4, 2)
    bad = [
        BadElement("decode", "a.jpg", "broken", {"image": b"..."}, origin),
        BadElement("batch", "b.jpg", "", None, None, origin, 12),
    ]
    columns = {
        "place": ColumnPlace(64, np.dtype("<M8[ns]"), (3, 1, 2)),
        "records": ColumnPlace(0, np.dtype([("a", "i4")]), (3,)),
        "scalar": ColumnPlace(0, np.dtype("f8"), ()),
        "plain": np.float32(2),
    }
    sent = label(columns, bad=bad, without_data={(0, 0, 0): [(np.int64(5), np.int64(6))]})
    assert read_label(write_label(sent, KEY) + bytes(15), KEY) == sent


def test_a_pickle_is_opened_only_with_the_workers_signature() -> None:
    written = write_label(label({"evil": Evil()}), KEY)
    Evil.ran = 0
    with pytest.raises(ConnectionError, match="not signed by the worker"):
        read_label(written, b"another")
    assert Evil.ran == 0
    assert read_label(written, KEY).messages[0][2].columns["evil"] == "ran"


def made(messages: Any, size: Any = 100, codec: Any = "none", behind: bytes = b"", number: Any = 0) -> bytes:
    head = json.dumps([number, size, codec, "", messages]).encode()
    return FRAME.pack(MAGIC, len(head)) + head + behind


def message(columns: Any = (), spans: Any = (), rows: Any = 1, bad: Any = ()) -> Any:
    return [list(columns), list(spans), rows, 0, list(bad), []]


HOSTILE: dict[str, bytes] = {
    "a pickle": pickle.dumps(Evil()),
    "nothing": b"",
    "a short frame": b"pcn1",
    "a long frame": FRAME.pack(MAGIC, 1 << 60),
    "no JSON": FRAME.pack(MAGIC, 3) + b"[1,",
    "deep JSON": FRAME.pack(MAGIC, 200_000) + b"[" * 200_000,
    "another value": FRAME.pack(MAGIC, 1) + b"3",
    "a negative number": made([], number=-1),
    "a size that is none": made([], size=True),
    "a codec that is none": made([], codec="brotli"),
    "a batch behind the end": made([[64, 64, message()]]),
    "a negative start": made([[-64, 64, message()]]),
    "a column behind the end": made([[0, 100, message([["x", [96, "<f8", [1]]]])]]),
    "a column that overflows": made([[0, 100, message([["x", [0, "<f8", [1 << 32, 1 << 32]]]])]]),
    "a negative shape": made([[0, 100, message([["x", [0, "<f8", [-1]]]])]]),
    "a column of objects": made([[0, 100, message([["x", [0, "|O", [1]]]])]]),
    "a name that is none": made([[0, 100, message([[3, {"plain": 1}]])]]),
    "bytes behind the end": made([[0, 100, message([["x", {"plain": {"bytes": [0, 9]}}]])]], behind=b"12345678"),
    "negative bytes": made([[0, 100, message([["x", {"plain": {"bytes": [-1, 2]}}]])]], behind=b"12345678"),
    "an unsigned pickle": made([[0, 100, message([["x", {"pickle": [0, 8], "signature": ""}]])]], behind=b"12345678"),
    "a pickle without a signature": made([[0, 100, message([["x", {"pickle": [0, 8]}]])]], behind=b"12345678"),
    "a value without a kind": made([[0, 100, message([["x", {}]])]]),
    "spans that are none": made([[0, 100, message(spans=[[0, 0]])]]),
    "rows that are none": made([[0, 100, message(rows="1")]]),
    "a bad element that is none": made([[0, 100, message(bad=[["op"]])]]),
    "an origin that is none": made([[0, 100, message(bad=[["op", "", "", {"plain": 1}, {"__class__": 1}, None, 1]])]]),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_no_label_is_refused_by_name(case: str) -> None:
    Evil.ran = 0
    with pytest.raises(ConnectionError, match="what came is no label of a worker"):
        read_label(HOSTILE[case], KEY)
    assert Evil.ran == 0


class Impostor(flight.FlightServerBase):  # type: ignore[misc]
    """Answers in a worker's place."""

    text = b""

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        return [b""]

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        writer.begin(SCHEMA)
        writer.write_metadata(self.text)


@pytest.mark.parametrize(
    "text",
    [
        pickle.dumps(Evil()),
        write_label(label({"evil": Evil()}), b"a key of its own"),
        write_label(replace(label({}), number=0, codec="zstd", size=1 << 62), KEY),
        write_label(replace(label({}), number=0, codec="none", size=1064), KEY),
    ],
    ids=["pickle", "signed by another", "bomb", "less than it says"],
)
def test_an_impostor_runs_no_code_and_brings_no_batch(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_client, "PAUSE_S", 0.001)
    Evil.ran = 0
    with Impostor("grpc://127.0.0.1:0") as server:
        server.text = text
        client = Client(FlightAddress("127.0.0.1", server.port, "token", key=KEY))
        trouble = client.reader.run()
    assert trouble is not None and trouble.startswith("ConnectionError"), trouble
    assert client.messages == [] and Evil.ran == 0
