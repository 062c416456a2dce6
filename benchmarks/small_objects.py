"""How many small objects a second come from a bucket that is far away, and how soon the first batch of many does.

    python benchmarks/small_objects.py --files 1000 --latency 0.06
    python benchmarks/small_objects.py --job --files 100000

A server on this machine speaks as much of S3 as is needed, and lets every answer wait.  Without `--job` the leases of
a worker are read in this process; with it a job runs on Ray and its first batch is waited for.
"""

from __future__ import annotations

import argparse
import math
import os
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pecan_ray as pecan
from pecan_ray.job.heartbeat import Heartbeat
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.job.messages import AskLeases, Assigned
from pecan_ray.job.worker import WorkerState
from pecan_ray.job.worker_channels import RUN
from pecan_ray.job.worker_events import (
    AskJob,
    FetchSplits,
    FindLocalSplits,
    LocalSplitsFound,
    ProvideLease,
    ReplyReceived,
    RunAssignment,
    WorkerEvent,
    WorkStarted,
)
from pecan_ray.plan.splits import Lease
from pecan_ray.runtime.worker_requests import EngineLeases
from pecan_ray.sources.files import prefetch_files

PAGE = 1000
BODY = b"a line\n" * 10
LOT_S = 0.5


def _handler(files: int, latency_s: float, asked: list[str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append(self.command)
            time.sleep(latency_s)
            url = urlsplit(self.path)
            if "list-type" in url.query:
                self.response(200, _page(files, int(parse_qs(url.query).get("continuation-token", ["0"])[0])), {})
                return
            found = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            first, last = (int(found[1]), int(found[2] or 1 << 40)) if found else (0, 1 << 40)
            data = BODY[first : last + 1]
            told = {"Content-Range": f"bytes {first}-{first + len(data) - 1}/{len(BODY)}"} if found else {}
            self.response(206 if found else 200, data, {**told, "ETag": '"v"'})

        def response(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

        do_HEAD = do_GET  # noqa: N815 - the name http.server calls

    return Handler


def _page(files: int, first: int) -> bytes:
    stop = min(first + PAGE, files)
    keys = "".join(
        f"<Contents><Key>text/{n:07}</Key><Size>{len(BODY)}</Size><ETag>&quot;v&quot;</ETag>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        for n in range(first, stop)
    )
    more = f"<NextContinuationToken>{stop}</NextContinuationToken>" if stop < files else ""
    truncated = "true" if stop < files else "false"
    return f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{keys}{more}</ListBucketResult>".encode()


@contextmanager
def bucket(files: int, latency_s: float) -> Iterator[list[str]]:
    """Run a server with so many small objects; give the list of its requests."""
    asked: list[str] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(files, latency_s, asked)) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        os.environ |= {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
        yield asked
        server.shutdown()


class ListedJob:
    """A job whose leases are in a list, and the worker that asks for them."""

    def __init__(self, source: pecan.sources.TextLines) -> None:
        self._left = [Lease(0, split) for split in source.splits()]
        self._worker = WorkerState(LedgerShape(), Heartbeat(math.inf), math.inf)
        self._requested: dict[str, AskJob] = {}
        self.leases = EngineLeases(cast(Any, self), self.happened, lambda: 1, lambda: False)
        self._instruction_handlers: dict[type, Callable[[Any], None]] = {
            AskJob: lambda one: self._requested.update({one.channel: one}),
            FindLocalSplits: lambda one: self.happened(LocalSplitsFound(one.branch, None)),
            FetchSplits: lambda one: prefetch_files(source, one.splits),
            ProvideLease: lambda one: self.leases.put_lease(one.branch, one.lease),
            RunAssignment: lambda _: None,
        }

    def happened(self, event: WorkerEvent) -> None:
        """Let the worker take an event, and do what it says."""
        for one in self._worker.handle(event, time.monotonic()):
            self._instruction_handlers[type(one)](one)

    def wait(self, channel: str) -> ReplyReceived:
        """Answer what was asked."""
        asked = self._requested.pop(channel)
        if not isinstance(asked.request, AskLeases):
            return ReplyReceived(channel, asked.number, Assigned(Assignment(0), lot_s=LOT_S))
        lot, self._left = self._left[: asked.request.most], self._left[asked.request.most :]
        return ReplyReceived(channel, asked.number, pickle.loads(pickle.dumps(tuple(lot))))


def read_here(source: pecan.sources.TextLines) -> int:
    """Read a source's leases as a worker does; return the number of files."""
    job = ListedJob(source)
    job.happened(WorkStarted())
    job.happened(job.wait(RUN))
    files = 0
    while (lease := job.leases.take()) is not None:
        assert sum(1 for _ in source.read(lease.split)) == 10
        files += 1
    return files


def main() -> None:
    """Measure, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--latency", type=float, default=0.06, help="seconds that each answer takes")
    parser.add_argument("--job", action="store_true", help="run a job on Ray and wait for its first batch")
    arguments = parser.parse_args()
    with bucket(arguments.files, arguments.latency) as asked:
        source = pecan.sources.TextLines("s3://data/text/*")
        if arguments.job:
            import ray

            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
            pipe = pecan.PecanPipeline(source).map(lambda element: element).batch(32)
            began = time.perf_counter()
            with pipe.iter_batches(workers=pecan.Workers(local=1)) as batches:
                next(batches)
                seconds = time.perf_counter() - began
            print(f"first batch of {arguments.files:,} keys after {seconds:.1f} s")
            return
        began = time.perf_counter()
        files = read_here(source)
        seconds = time.perf_counter() - began
        print(f"{files} files in {seconds:.1f} s: {files / seconds:.0f} files/s, {len(asked)} requests")


if __name__ == "__main__":
    main()
