"""Amazon S3, and what speaks its protocol, through boto3.

Credentials, region, profile and endpoint are found by boto3 (environment, ``~/.aws``, instance role,
``AWS_ENDPOINT_URL``).  Where it finds no credentials, requests are not signed: public buckets can be read.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from pecan_ray.errors import MissingExtraError, PlanError, SourceError, SourceNotFoundError, SourcePermissionError
from pecan_ray.storage.backend import FileInfo
from pecan_ray.storage.local_errors import passes
from pecan_ray.storage.objects import Page
from pecan_ray.storage.ranges import WHOLE_BYTES, FileRange, RangeRequest, replaced
from pecan_ray.storage.retry import Doing, is_cert_error, retry

T = TypeVar("T")

NOT_FOUND = frozenset({"404", "NoSuchKey", "NoSuchBucket", "NotFound", "NoSuchVersion"})
FORBIDDEN = frozenset(
    {"401", "403", "AccessDenied", "AllAccessDisabled", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken"}
    | {"Forbidden", "SignatureDoesNotMatch", "Unauthorized"}
)
PASSING = frozenset(
    {"InternalError", "OperationAborted", "PriorRequestNotComplete", "RequestTimeout", "RequestTimeTooSkewed"}
    | {"ServiceUnavailable", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests"}
)
NEVER = frozenset({501, 505})
"""Answers of a server that does not know such requests, and will not."""
RIGHTS: dict[Doing, str] = {
    "read": "s3:GetObject and s3:ListBucket",
    "write": "s3:PutObject",
    "remove": "s3:DeleteObject",
}
# Of a client's pool: more than the 2 x 16 requests that a process makes at a time, so none waits for a
# connection.
CONNECTIONS = 64
# Seconds; a request that fails is repeated by `storage.retry`, and not by the client.
CONNECT_S = 10.0
READ_S = 30.0
"""A store that sends nothing for so long is asked again."""
MOST_WRONG = 5
"""Answers with a wrong checksum that end a read: what is damaged on its way comes whole the next time."""


OPTIONS = ("key", "secret", "token", "profile", "anon", "endpoint_url", "client_kwargs")
"""Names in `storage_options`, with the meaning that they have for s3fs."""


def _known(options: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(options.keys() - set(OPTIONS))
    if unknown:
        raise PlanError(f"storage_options: s3:// takes {', '.join(OPTIONS)}, and no {', '.join(unknown)}.")
    return options


class S3:
    """An `ObjectApi` over one boto3 client, which belongs to this process."""

    scheme = "s3"

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        """`options`: those of s3fs (`OPTIONS`); raises PlanError for others."""
        options = _known(options or {})
        try:
            boto3 = importlib.import_module("boto3")
        except ImportError as error:
            raise MissingExtraError(
                "Reading s3:// paths needs boto3: pip install 'pecan_ray[s3]' (on the workers too).",
                extra="s3",
            ) from error
        botocore = importlib.import_module("botocore")
        core = importlib.import_module("botocore.session").get_session()
        # Nobody looks at the times that a listing tells, and making dates of them takes most of reading it.
        core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=str)
        config = importlib.import_module("botocore.config").Config
        self._errors: Any = importlib.import_module("botocore.exceptions")
        keys = {
            "aws_access_key_id": options.get("key"),
            "aws_secret_access_key": options.get("secret"),
            "aws_session_token": options.get("token"),
        }
        session = boto3.session.Session(botocore_session=core, profile_name=options.get("profile"), **keys)
        self._signed = not options.get("anon") and session.get_credentials() is not None
        # Retries are ours, because boto3 does not retry a body that breaks off.
        settings = {
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            "max_pool_connections": CONNECTIONS,
            "connect_timeout": CONNECT_S,
            "read_timeout": READ_S,
        }
        if not self._signed:
            settings["signature_version"] = botocore.UNSIGNED
        asked = dict(options.get("client_kwargs") or {})
        if options.get("endpoint_url"):
            asked["endpoint_url"] = options["endpoint_url"]
        asked.setdefault("region_name", session.region_name or "us-east-1")
        self._client: Any = session.client("s3", config=config(**settings), **asked)

    def pages(self, bucket: str, prefix: str, delimiter: str) -> Iterator[Page]:
        """Yield the pages of a listing, asking for one only when it is wanted."""
        more: dict[str, str] = {"Delimiter": delimiter} if delimiter else {}
        while True:
            listing = partial(self._client.list_objects_v2, Bucket=bucket, Prefix=prefix, **more)
            answer: dict[str, Any] = self._ask(f"s3://{bucket}/{prefix}", listing)
            yield Page(
                files=tuple(
                    FileInfo(
                        path=f"s3://{bucket}/{item['Key']}",
                        size=item["Size"],
                        version=_version(item),
                    )
                    for item in answer.get("Contents", ())
                ),
                folders=tuple(item["Prefix"] for item in answer.get("CommonPrefixes", ())),
            )
            if not answer.get("IsTruncated"):
                return
            more["ContinuationToken"] = answer["NextContinuationToken"]

    def head(self, bucket: str, key: str) -> FileInfo | None:
        """Describe an object; None: there is none."""
        path = f"s3://{bucket}/{key}"
        try:
            answer: dict[str, Any] = self._ask(path, partial(self._client.head_object, Bucket=bucket, Key=key))
        except SourceNotFoundError:
            return None
        return FileInfo(path=path, size=answer["ContentLength"], version=_version(answer))

    def get(self, bucket: str, key: str, asked: RangeRequest) -> FileRange:
        """Return a range of an object's bytes; fewer where it ends before."""
        return self._ask(asked.path, partial(self._get, bucket, key, asked))

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Write an object whole, in one request: it is there with all its bytes, or as it was before."""
        self._ask(
            f"s3://{bucket}/{key}", partial(self._client.put_object, Bucket=bucket, Key=key, Body=data), doing="write"
        )

    def delete(self, bucket: str, key: str) -> None:
        """Remove an object; nothing to do where there is none."""
        self._ask(f"s3://{bucket}/{key}", partial(self._client.delete_object, Bucket=bucket, Key=key), doing="remove")

    def _get(self, bucket: str, key: str, asked: RangeRequest) -> FileRange:
        wanted = asked.header()
        # A weak ETag matches nothing; what comes is compared with it all the same.
        match = {"IfMatch": f'"{asked.version}"'} if asked.version and not asked.version.startswith("W/") else {}
        try:
            answer = self._client.get_object(Bucket=bucket, Key=key, **wanted, **match)
        except self._errors.ClientError as error:
            code, status = _code(error)
            if code == "InvalidRange" or status == 416:
                told = error.response["ResponseMetadata"].get("HTTPHeaders", {}).get("content-range")
                if not told:  # an answer that is wrong would be an empty file
                    told = f"bytes */{self._client.head_object(Bucket=bucket, Key=key)['ContentLength']}"
                return asked.nothing(told)
            if code == "PreconditionFailed" or status == 412:
                raise replaced(asked.path, asked.start) from error
            raise
        body = answer["Body"]
        # An answer that is refused is closed unread: its connection goes, and the rest of the object is not
        # sent.
        with contextlib.closing(body):
            asked.check_version(_version(answer))
            status = int(answer["ResponseMetadata"]["HTTPStatusCode"])
            asked.check_response_source(status, _version(answer))
            # Before the body is read: a store that ignores ranges sends the whole of a large object.
            asked.check_size(status, answer.get("ContentLength"))
            data = body.read() if "ContentLength" in answer else _read_bounded(asked, body)
            return asked.parse_response(status, answer.get("ContentRange"), data, _version(answer))

    def _ask(self, path: str, call: Callable[[], T], doing: Doing = "read") -> T:
        wrong = itertools.count(1)

        def may_pass(error: Exception) -> bool:
            damaged = isinstance(error, self._errors.FlexibleChecksumError)
            return next(wrong) < MOST_WRONG if damaged else self._passes(error)

        try:
            return retry(call, passes=may_pass, path=path, doing=doing)
        except (self._errors.BotoCoreError, self._errors.ClientError, OSError) as error:
            raise self._explain(error, path, doing) from error

    def _passes(self, error: Exception) -> bool:
        if isinstance(error, self._errors.ClientError):
            code, status = _code(error)
            return code in PASSING or status == 429 or (status >= 500 and status not in NEVER)
        kinds = (
            self._errors.ConnectionError,
            self._errors.HTTPClientError,
            self._errors.IncompleteReadError,
            ConnectionError,
            TimeoutError,
        )
        # This machine may have no descriptors left just now, for a socket or for a file of the library.
        return (isinstance(error, kinds) and not is_cert_error(error)) or passes(error)

    def _explain(self, error: Exception, path: str, doing: Doing) -> SourceError:
        if not isinstance(error, self._errors.ClientError):
            if isinstance(error, self._errors.NoCredentialsError):
                return SourcePermissionError(f"No AWS credentials were found for {path}.", path=path)
            if isinstance(error, self._errors.FlexibleChecksumError):
                return SourceError(
                    f"{path} came {MOST_WRONG} times with a wrong checksum: {error}. Check what stands between the "
                    "store and this machine, and the object by `aws s3api get-object --checksum-mode ENABLED`.",
                    path=path,
                )
            return SourceError(
                f"Cannot {doing} {path}: {error}. Check the network, AWS_ENDPOINT_URL and the AWS profile.",
                path=path,
            )
        code, status = _code(error)
        if code == "NoSuchBucket":
            bucket = path[len("s3://") :].partition("/")[0]
            return SourceNotFoundError(
                f"There is no bucket {bucket!r} (wanted for {path}). Check its name, the account and AWS_ENDPOINT_URL.",
                path=path,
            )
        if code in NOT_FOUND or status == 404:
            return SourceNotFoundError(f"{path} does not exist. Check the key, letter by letter.", path=path)
        if code in FORBIDDEN or status in (401, 403):
            signed = "the credentials in use" if self._signed else "no credentials (none were found)"
            return SourcePermissionError(
                f"S3 refused to {doing} {path} ({code or status}) with {signed}. Check `aws sts get-caller-identity`, "
                f"and that it may {RIGHTS[doing]} there.",
                path=path,
            )
        return SourceError(f"S3 answered {code or status} for {path}: {error}.", path=path)


def _read_bounded(asked: RangeRequest, body: Any) -> bytes:
    """Read a body whose length the store does not say: it may have no end."""
    data: bytes = body.read(WHOLE_BYTES + 1)
    if len(data) > WHOLE_BYTES:
        raise SourceError(
            f"{asked.path}: the store does not say how long its answer is, and sends more than {WHOLE_BYTES:,} bytes. "
            "Check the store, or the proxy in front of it: answers need a Content-Length.",
            path=asked.path,
        )
    return data


def _version(answer: dict[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def _code(error: Any) -> tuple[str, int]:
    """Return the code and the HTTP status of a botocore ClientError."""
    response: dict[str, Any] = error.response
    code = str(response.get("Error", {}).get("Code", ""))
    return code, int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
