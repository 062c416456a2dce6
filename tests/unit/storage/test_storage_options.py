"""Options of a source's storage: they reach it, and no secret is in anything that travels."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

import pecan_ray as pecan
from pecan_ray import storage
from pecan_ray.errors import PlanError, SourceError, SourcePermissionError
from pecan_ray.plan.fingerprint import describe_plan
from pecan_ray.sources import Csv, Env, ImageFolder, JsonLines, Parquet, TextLines, TFRecords, WebDataset
from tests.object_stores import reaching_s3, s3_bucket

fsspec = pytest.importorskip("fsspec")

SECRET = "sesame-open-7"


class Asking(fsspec.AbstractFileSystem):  # type: ignore[misc, name-defined]  # fsspec has no types
    """A storage that says what it was opened with, in its only file."""

    protocol = "asking"

    def __init__(self, account: str = "", account_key: str = "", **rest: Any) -> None:
        super().__init__(**rest)
        self.text = f"{account} {account_key}\n".encode()

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": self._strip_protocol(path), "size": len(self.text), "type": "file", "etag": "1"}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        return self.text[start:end]


@pytest.fixture(autouse=True)
def asking() -> Iterator[None]:
    """The storage, known by its scheme."""
    fsspec.register_implementation("asking", Asking, clobber=True)
    storage.reset_clients()
    yield
    storage.reset_clients()


def line_of(source: TextLines) -> str:
    (split,) = source.splits()
    return str(next(iter(source.read(split)))["text"])


def test_options_reach_the_storage_also_of_a_source_that_was_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCOUNT_KEY", SECRET)
    source = TextLines("asking://a/x.txt", storage_options={"account": "mine", "account_key": Env("ACCOUNT_KEY")})
    other = TextLines("asking://b/*.txt/y.txt", storage_options={"account": "yours"})
    assert line_of(source) == f"mine {SECRET}" and line_of(TextLines("asking://c/x.txt")) == " "
    assert storage.read_all("asking://b/1.txt") == b"yours \n"
    copy, sent = pickle.loads(pickle.dumps(source)), pickle.dumps(source)
    assert copy == source != other and line_of(copy) == f"mine {SECRET}"
    pipe = pecan.PecanPipeline(source).batch(1)
    shown = (sent, repr(source), str(source.storage_options), repr(pipe), str(describe_plan(pipe.plan)))
    assert not any(SECRET in str(one) for one in shown)
    assert pipe.fingerprint() == pecan.PecanPipeline(copy).batch(1).fingerprint()


SECRETS: list[Any] = [
    {"token": SECRET},
    {"account_key": SECRET},
    {"client_kwargs": {"aws_secret_access_key": SECRET}},
    {"headers": [{"Authorization": SECRET}]},
    {"connection_string": SECRET.encode()},
    {"credential": object()},
    {"accountKey": SECRET},
    {"Api-Key": SECRET},
    {"client_kwargs": [{"bearer": SECRET}]},
    {"params": {"sig": SECRET}},
]
SECRET_VALUES = [
    f"https://me:{SECRET}@minio:9000",
    f"sig={SECRET}",
    f"DefaultEndpointsProtocol=https;AccountKey={SECRET};EndpointSuffix=x",
    f"Bearer {SECRET}",
    b"-----BEGIN PRIVATE KEY-----",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "ghp_0123456789abcdefghij",
]
NO_SECRETS: list[Any] = [
    *({"token": one} for one in (None, "anon", Env("X"))),
    *({"client_kwargs": {"x": one}} for one in (True, 3, "eu-central-1", "https://minio.example:9000/a?b", None)),
    {"project": "my-team-Project2024-production-west"},
    {"arn": "arn:aws:iam::123456789012:role/TrainingReaderProduction"},
    {"subscription": "6f1c3b0e-6d0b-4a43-9b6b-0a1d5f0a4c11"},
    {"user_agent": "pecan/1.0 (team=vision; mode:fast)"},
    {"endpoint_url": "https://0123456789abcdef0123456789abcdef.r2.cloudflarestorage.com"},
]


def test_a_secret_by_value_is_refused_and_not_repeated() -> None:
    for options in SECRETS:
        with pytest.raises(PlanError, match=r"is a secret, and a source travels .*Env\(") as caught:
            TextLines("asking://a/x.txt", storage_options=options)
        assert SECRET not in str(caught.value)
    for value in SECRET_VALUES:
        for held in (value, [{"y": value}]):
            with pytest.raises(PlanError, match="looks like a secret") as caught:
                TextLines("asking://a/x.txt", storage_options={"x": held})
            assert str(value) not in str(caught.value) and SECRET not in str(caught.value)
    for options in NO_SECRETS:
        TextLines("gs://bucket/x.txt", storage_options=options)


def test_every_source_of_files_takes_them_and_local_paths_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Csv, JsonLines, Parquet, TextLines, TFRecords, WebDataset, ImageFolder):
        made: Any = kind("asking://a/data", storage_options={"account": "mine"})
        assert made.storage_options == {"account": "mine"}
        with pytest.raises(PlanError, match="is on this machine"):
            kind("/data", storage_options={"account": "mine"})
    with pytest.raises(PlanError, match="must be a dict by name"):
        TextLines("asking://a/x", storage_options="mine")  # type: ignore[arg-type]  # what a user may try
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    unset = TextLines("asking://d/x.txt", storage_options={"account_key": Env("NO_SUCH_KEY")})
    with pytest.raises(SourcePermissionError, match="account_key is the environment variable NO_SUCH_KEY"):
        list(unset.splits())
    takes_none: dict[str, Any] = {"__init__": lambda self, skip_instance_cache=True, use_listings_cache=False: None}
    fsspec.register_implementation("strict", type("Strict", (Asking,), takes_none), clobber=True)
    with pytest.raises(SourceError, match=r"cannot be opened: .*unexpected keyword argument"):
        list(TextLines("strict://a/x", storage_options={"account": "mine"}).splits())


def test_s3_is_opened_with_them(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with reaching_s3(s3_endpoint) as proxy, s3_bucket(s3_endpoint) as url:
        storage.write_file(f"{url}/x.txt", b"a line\n")
        for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("MY_SECRET", SECRET)
        storage.reset_clients()
        keys = {"key": Env("MY_SECRET"), "secret": Env("MY_SECRET")}
        source = TextLines(f"{url}/x.txt", storage_options={"endpoint_url": proxy.url, **keys})
        assert line_of(source) == "a line"
        with pytest.raises(PlanError, match=r"s3:// takes key, secret, .* and no bucket_name"):
            list(TextLines(f"{url}/y.txt", storage_options={"bucket_name": "x"}).splits())
