"""Object stores on this machine, each a real server behind a proxy that counts requests and can make them fail."""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from pecan_ray import storage
from tests.flaky_http import FlakyProxy, flaky_proxy

PAGE = 10
SECRET = "not-to-be-told"


class Bucket(NamedTuple):
    """An empty bucket named ``data``."""

    url: str
    proxy: FlakyProxy
    """What the code under test reaches it by."""

    def put(self, objects: dict[str, bytes]) -> None:
        """Write objects by key, without the proxy and without the code under test."""
        if self.url.startswith("s3:"):
            put_objects(self.proxy.upstream, objects)
            return
        for key, body in objects.items():
            place = f"upload/storage/v1/b/data/o?uploadType=media&name={quote(key, safe='')}"
            urlopen(Request(f"http://{self.proxy.upstream}/{place}", body, method="POST")).close()


@contextmanager
def serving_s3() -> Iterator[str]:
    """Run an S3 whose listings have pages of 10 keys; give its address."""
    moto_server = pytest.importorskip("moto.server")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", str(PAGE))
        server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        yield f"{host}:{port}"
        server.stop()


@cache
def descriptions_of_services(search_path: str | None = None) -> Any:
    """Return what reads Botocore's files: a client of each test has read them, and they take longer than it."""
    return importlib.import_module("botocore.loaders").create_loader(search_path)


@contextmanager
def reaching_s3(endpoint: str) -> Iterator[FlakyProxy]:
    """Let this process reach an S3 by a proxy, and nothing else."""
    with pytest.MonkeyPatch.context() as patch, flaky_proxy(endpoint) as proxy:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_ENDPOINT_URL", proxy.url)
        patch.setattr("botocore.session.create_loader", descriptions_of_services)
        storage.reset_clients()
        yield proxy
        storage.reset_clients()


@cache
def s3_writer(endpoint: str) -> Any:
    """Return what writes to an S3 without the proxy."""
    return importlib.import_module("boto3").resource(
        "s3",
        endpoint_url=f"http://{endpoint}",
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key=SECRET,
    )


@contextmanager
def s3_bucket(endpoint: str, name: str = "data") -> Iterator[str]:
    """Make a bucket, written to without the proxy; give its URL, and remove it."""
    bucket = s3_writer(endpoint).Bucket(name)
    bucket.create()
    yield f"s3://{name}"
    while list(bucket.objects.all()):  # a page of the listing holds only some of them
        bucket.objects.all().delete()
    bucket.delete()


def put_objects(endpoint: str, objects: dict[str, bytes], bucket: str = "data") -> None:
    """Write objects into a bucket without the proxy, by key."""
    for key, body in objects.items():
        s3_writer(endpoint).Bucket(bucket).put_object(Key=key, Body=body)


@contextmanager
def serving_gcs() -> Iterator[str]:
    """Run an emulator of Google Cloud Storage with an empty bucket ``data``; give its address."""
    emulator = pytest.importorskip("gcp_storage_emulator.server")
    pytest.importorskip("gcsfs")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="data")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop()


@contextmanager
def reaching_gcs(endpoint: str) -> Iterator[FlakyProxy]:
    """Let this process reach an emulator by a proxy."""
    with pytest.MonkeyPatch.context() as patch, flaky_proxy(endpoint) as proxy:
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        patch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        storage.reset_clients()
        yield proxy
        storage.reset_clients()


@contextmanager
def empty_bucket(kind: str, endpoint: str) -> Iterator[Bucket]:
    """Let this process reach a bucket of S3 ("s3") or of Google Cloud Storage ("gcs"), and empty it at the end."""
    if kind == "s3":
        with reaching_s3(endpoint) as proxy, s3_bucket(endpoint) as url:
            yield Bucket(url, proxy)
    else:
        with reaching_gcs(endpoint) as proxy:
            yield Bucket("gs://data", proxy)
            urlopen(f"http://{endpoint}/wipe?keep-buckets=1").close()
