"""How well reads of object stores keep to their quota.

    python benchmarks/remote_io.py [--quota 1e6 --quota 1e8] [--seconds 10] [--readers 4]

A process of this machine speaks as much of S3 as is needed and has endless bytes; so many readers go through objects of
256 MiB.  First without a quota, which is as fast as it goes here, then with each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection

from pecan_ray import storage

OBJECT_BYTES = 256 << 20
BODY = bytes(8 << 20)
READ = 1 << 20
WARM_S = 1.0


class EndlessBytes(BaseHTTPRequestHandler):
    """Answers to every request for a range with zeros."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Send a range."""
        found = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first, last = (int(found[1]), int(found[2] or OBJECT_BYTES - 1)) if found else (0, OBJECT_BYTES - 1)
        count = min(last, OBJECT_BYTES - 1) + 1 - first
        self.send_response(206 if found else 200)
        self.send_header("Content-Length", str(count))
        self.send_header("Content-Range", f"bytes {first}-{first + count - 1}/{OBJECT_BYTES}")
        self.send_header("ETag", '"v"')
        self.end_headers()
        while count > 0:
            count -= self.wfile.write(memoryview(BODY)[:count])

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def serve(told: Connection) -> None:
    """Serve until the process is ended."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), EndlessBytes)
    told.send(server.server_address[1])
    server.serve_forever()


@contextmanager
def running_server() -> Iterator[str]:
    """Run the server in a process of its own; give its address."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    yield f"http://127.0.0.1:{ours.recv()}"
    process.kill()
    process.join()


def measured(quota: float | None, readers: int, seconds: float) -> float:
    """Return the bytes a second that readers get together, once they have read for a while."""
    storage.limit_remote_io(quota)
    ended = threading.Event()

    def read(number: int) -> None:
        while not ended.is_set():
            with storage.open_stream(f"s3://endless/{number}", version="v") as stream:
                while not ended.is_set() and stream.read(READ):
                    pass

    threads = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(readers)]
    for thread in threads:
        thread.start()
    time.sleep(WARM_S)
    begin, before = time.perf_counter(), storage.remote_bytes()
    time.sleep(seconds)
    rate = (storage.remote_bytes() - before) / (time.perf_counter() - begin)
    ended.set()
    storage.limit_remote_io(None)  # so that nobody waits for long
    for thread in threads:
        thread.join()
    return rate


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quota", type=float, action="append", help="bytes a second; may be given more than once")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--readers", type=int, default=4)
    asked = parser.parse_args()
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_EC2_METADATA_DISABLED="true")
    with running_server() as url:
        os.environ["AWS_ENDPOINT_URL"] = url
        most = measured(None, asked.readers, asked.seconds)
        print(f"without a quota: {most / 1e6:,.1f} MB/s by {asked.readers} readers")
        for quota in asked.quota or (1e6, 1e7, 1e8, 1e9):
            rate = measured(quota, asked.readers, asked.seconds)
            print(
                f"quota {quota / 1e6:,.1f} MB/s: {rate / 1e6:,.3f} MB/s over {asked.seconds:g} s ({rate / quota:.1%})"
            )


if __name__ == "__main__":
    main()
