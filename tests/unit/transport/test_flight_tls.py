"""Encrypted streams with self-made certificates, as a cluster with RAY_USE_TLS has them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pecan_ray.errors import ClusterError
from pecan_ray.transport.certificates import Certificates, cluster_certificates
from tests.unit.transport.flight_rig import Client, check_numbered, numbered, working

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


def set_variables(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> Certificates:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    certificates = cluster_certificates()
    assert certificates is not None
    return certificates


def test_batches_travel_encrypted_between_those_that_have_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = set_variables(monkeypatch, make_certificates(tmp_path / "cluster"))
    assert certificates.key.decode() not in repr(certificates) and "PRIVATE" not in repr(certificates)
    with working(numbered(20, (300, 300)), certificates=certificates) as worker:
        address = worker.endpoint.welcome(0)
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
        address = worker.endpoint.welcome(0)
        if fault == "another authority":
            set_variables(monkeypatch, make_certificates(tmp_path / "mine"))
        elif fault == "no certificate":
            monkeypatch.delenv("RAY_USE_TLS")
        client = Client(address)
        trouble = client.reader.run()
        assert trouble is not None and client.messages == []
        if fault == "no certificate":
            assert "RAY_USE_TLS is not set here" in trouble
        worker.endpoint.give_up(0, {})


def test_a_cluster_without_certificates_encrypts_nothing() -> None:
    assert cluster_certificates({}) is None
    assert cluster_certificates({"RAY_USE_TLS": "0", "RAY_TLS_CA_CERT": "missing"}) is None


def test_a_missing_certificate_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="RAY_TLS_SERVER_CERT is not: set it"):
        cluster_certificates({"RAY_USE_TLS": "1"})
    variables = make_certificates(tmp_path / "cluster")
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(ClusterError, match=rf"RAY_TLS_CA_CERT={missing} cannot be read"):
        cluster_certificates({**variables, "RAY_TLS_CA_CERT": missing})
