"""The certificates with which a cluster encrypts its own traffic: ours is encrypted with them too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pecan_ray.errors import ClusterError

VARIABLES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")


@dataclass(frozen=True)
class TlsCredentials:
    """PEM texts; both ends of a connection show `chain` and trust `root_cert`, as Ray's own processes do."""

    chain: bytes
    key: bytes = field(repr=False)
    root_cert: bytes


def cluster_tls_credentials(environment: Mapping[str, str] = os.environ) -> TlsCredentials | None:
    """Return the certificates that Ray was told to use (RAY_USE_TLS), or None where it encrypts nothing.

    Raises `ClusterError` if it was told to, and they are not there.
    """
    if environment.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    texts = []
    for variable in VARIABLES:
        path = environment.get(variable)
        if not path:
            raise ClusterError(f"RAY_USE_TLS is set, but {variable} is not: set it to the path of a PEM file.")
        try:
            texts.append(Path(path).read_bytes())
        except OSError as error:
            raise ClusterError(f"{variable}={path} cannot be read: {error.strerror}. Mend the path.") from error
    return TlsCredentials(*texts)
