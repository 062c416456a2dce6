"""Strangers at a Flight port: they read nothing, run no code, and fill no memory; certificates, labels, bounds."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from pecan_ray.engines.contract import BadElement
from pecan_ray.engines.layout import ColumnPlace
from pecan_ray.errors import ClusterError
from pecan_ray.plan.splits import Origin
from pecan_ray.sampling.spans import PackedSpans
from pecan_ray.transport.choice import FlightAddress
from pecan_ray.transport.flight_guard import MOST_AHEAD
from pecan_ray.transport.flight_label import FRAME, MAGIC, Label, read_label, write_label
from pecan_ray.transport.flight_wire import HELLO, SCHEMA
from pecan_ray.transport.messages import Message
from pecan_ray.transport.tls_credentials import TlsCredentials, cluster_tls_credentials
from tests.ray.waiting import until
from tests.unit.test_quarantine import Evil
from tests.unit.transport.flight_rig import Client, Wire, check_numbered, numbered, working

KEY = b"k" * 32


def label(columns: dict[str, Any], **more: Any) -> Label:
    message = Message(columns, {(0, 1, 2): [(0, 1 << 40), (1 << 41, 1 << 42)]}, 7, 3, **more)
    return Label(5, ((64, 1000, message),), 1064)


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
    packed = PackedSpans(np.array([(7, 8), (1 << 40, 1 << 41)]))
    sent = label(columns, bad=bad, without_data={(0, 0, 0): [(np.int64(5), np.int64(6))], (0, 0, 1): packed})
    assert read_label(write_label(sent, KEY) + bytes(15), KEY) == sent


def unsigned(pickled: bytes, length: int | None = None) -> bytes:
    return FRAME.pack(MAGIC, bytes(32), len(pickled) if length is None else length) + pickled


EVIL = label({"evil": Evil()})
HOSTILE: dict[str, bytes] = {
    "a pickle": pickle.dumps(Evil()),
    "nothing": b"",
    "a short frame": MAGIC,
    "a long frame": unsigned(b"", 1 << 60),
    "no signature": unsigned(pickle.dumps(Evil())),
    "that of another": write_label(EVIL, b"another"),
    "that of another label": write_label(label({}), KEY)[: FRAME.size] + pickle.dumps(Evil()),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_no_label_that_the_worker_has_signed_is_refused_by_name_and_runs_no_code(case: str) -> None:
    Evil.ran = 0
    with pytest.raises(ConnectionError, match=r"what came is no label (that the worker has signed|of a worker)"):
        read_label(HOSTILE[case], KEY)
    assert Evil.ran == 0
    assert read_label(write_label(EVIL, KEY), KEY).messages[0][2].columns["evil"] == "ran"


class Impostor(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    text = b""

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        return [b""]

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        writer.begin(SCHEMA)
        writer.write_metadata(self.text)


IMPOSTURES = {
    "pickle": pickle.dumps(Evil()),
    "signed by another": write_label(EVIL, b"a key of its own"),
    "bomb": write_label(replace(label({}), number=0, size=1 << 62), KEY),
    "less than it says": write_label(replace(label({}), number=0, size=1064), KEY),
}


@pytest.mark.parametrize("text", IMPOSTURES.values(), ids=IMPOSTURES)
def test_an_impostor_runs_no_code_and_brings_no_batch(text: bytes) -> None:
    Evil.ran = 0
    with Impostor("grpc://127.0.0.1:0") as server:
        server.text = text
        client = Client(FlightAddress("127.0.0.1", server.port, "token", key=KEY))
        trouble = client.reader.run()
    assert trouble is not None and trouble.startswith("ConnectionError"), trouble
    assert client.messages == [] and Evil.ran == 0


LARGE = 8 << 20


def in_an_action(client: Any, options: Any, data: bytes) -> None:
    list(client.do_action(flight.Action(HELLO, pa.py_buffer(data)), options))


def in_a_descriptor(client: Any, options: Any, data: bytes) -> None:
    client.get_flight_info(flight.FlightDescriptor.for_command(data), options)


def in_an_answer(client: Any, options: Any, data: bytes) -> None:
    exchange(client, options, json.dumps({"rank": 0, "received": 0, "granted": 0}).encode(), data)


def exchange(client: Any, options: Any, wish: bytes, data: bytes = b"") -> None:
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(wish), options)
    if data:
        writer.write_metadata(pa.py_buffer(data))
    writer.done_writing()
    reader.read_chunk()


def check_refused(
    address: FlightAddress, send: Callable[..., None], token: str, data: bytes, said: str | None = None
) -> None:
    options = flight.FlightCallOptions(timeout=60, headers=[(b"authorization", f"Bearer {token}".encode())])
    refused = (flight.FlightError, pa.ArrowException)
    with flight.FlightClient(address.location) as stranger, pytest.raises(refused, match=said):
        send(stranger, options, data)


@pytest.mark.parametrize(
    ("send", "knows_the_token"), [(in_an_action, False), (in_a_descriptor, False), (in_an_answer, True)]
)
def test_who_sends_more_than_clients_do_is_cut_before_all_has_come(
    send: Callable[..., None], knows_the_token: bool
) -> None:
    with working(numbered(20)) as worker:
        guard, address = worker.endpoint.guard, worker.endpoint.prepare_client(0)

        def hold(passed: int) -> None:
            if passed > 2 * MOST_AHEAD:
                until(lambda: guard.cut, "it is not cut")

        wire = Wire(address, [], before=hold)
        check_refused(wire.address, send, address.token if knows_the_token else "guessed", bytes(LARGE))
        wire.close()
        for wish in (b"\xff", b"3", b"{}", b'{"rank": 9, "received": 0, "granted": 0}'):
            check_refused(address, exchange, address.token, wish, "stream")
        client = Client(address)
        assert client.reader.run() is None and client.numbers() == list(range(20))


pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def make_certificates(folder: Path, host: str = "127.0.0.1") -> dict[str, str]:
    """An authority and a certificate that it has signed for a host; returns Ray's variables."""
    folder.mkdir(parents=True)
    ca, key, request, cert, names = (str(folder / name) for name in ("ca.crt", "tls.key", "csr", "tls.crt", "names"))
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *curve, "-keyout", str(folder / "ca.key"), "-out", ca, "-subj", "/CN=pecan-authority")
    openssl("req", *curve, "-keyout", key, "-out", request, "-subj", "/CN=pecan-node")
    Path(names).write_text(f"subjectAltName=IP:{host}\n")
    signing = ("-CA", ca, "-CAkey", str(folder / "ca.key"), "-CAcreateserial", "-extfile", names)
    openssl("x509", "-req", "-in", request, "-out", cert, "-days", "2", *signing)
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": cert,
        "RAY_TLS_SERVER_KEY": key,
        "RAY_TLS_CA_CERT": ca,
    }


def set_variables(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> TlsCredentials:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    certificates = cluster_tls_credentials()
    assert certificates is not None
    return certificates


def test_batches_travel_encrypted_between_those_that_have_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = set_variables(monkeypatch, make_certificates(tmp_path / "cluster"))
    assert certificates.key.decode() not in repr(certificates) and "PRIVATE" not in repr(certificates)
    with working(numbered(20, (300, 300)), certificates=certificates) as worker:
        address = worker.endpoint.prepare_client(0)
        assert address.tls and address.location.startswith("grpc+tls://")
        plain = Client(replace(address, tls=False))
        assert plain.reader.run() is not None and plain.messages == []
        client = Client(address)
        assert client.reader.run() is None
    check_numbered(client, 20)


@pytest.mark.parametrize("fault", ["another authority", "another host", "no certificate"])
def test_a_client_does_not_talk_to_a_server_that_it_cannot_verify(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = "198.51.100.7" if fault == "another host" else "127.0.0.1"
    theirs = make_certificates(tmp_path / "theirs", host)
    certificates = set_variables(monkeypatch, theirs)
    with working(numbered(1), certificates=certificates) as worker:
        address = worker.endpoint.prepare_client(0)
        if fault == "another authority":
            set_variables(monkeypatch, make_certificates(tmp_path / "mine"))
        elif fault == "no certificate":
            monkeypatch.delenv("RAY_USE_TLS")
        client = Client(address)
        trouble = client.reader.run()
        assert trouble is not None and client.messages == []
        if fault == "no certificate":
            assert "RAY_USE_TLS is not set here" in trouble
        worker.endpoint.close_stream(0, 0)


def test_a_cluster_without_certificates_encrypts_nothing_and_a_missing_one_is_named(tmp_path: Path) -> None:
    assert cluster_tls_credentials({}) is None
    assert cluster_tls_credentials({"RAY_USE_TLS": "0", "RAY_TLS_CA_CERT": "missing"}) is None
    with pytest.raises(ClusterError, match="RAY_TLS_SERVER_CERT is not: set it"):
        cluster_tls_credentials({"RAY_USE_TLS": "1"})
    variables = make_certificates(tmp_path / "cluster")
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(ClusterError, match=rf"RAY_TLS_CA_CERT={missing} cannot be read"):
        cluster_tls_credentials({**variables, "RAY_TLS_CA_CERT": missing})
