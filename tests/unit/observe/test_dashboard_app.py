"""Who may see the dashboard: the same as Ray's own, those who have the cluster's token."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="Ray Serve is not installed: pip install 'ray[serve]'")
ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import asyncio
from pecan_ray.observe.dashboard_app import build_app

app = build_app()


async def ask(path, method="GET", body=b"", **headers):
    told = []
    raw = [(key.replace("_", "-").encode(), value.encode()) for key, value in headers.items()]
    scope = {"type": "http", "http_version": "1.1", "method": method, "path": "/pecan" + path, "root_path": "/pecan",
             "query_string": b"", "headers": raw, "scheme": "http", "server": ("h", 1), "client": ("c", 2)}
    sent = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        return sent.pop() if sent else {"type": "http.disconnect"}

    async def send(message):
        told.append(message)

    await app(scope, receive, send)
    headers = {key.decode(): value.decode() for key, value in told[0]["headers"]}
    return told[0]["status"], headers, b"".join(one.get("body", b"") for one in told[1:]).decode()
"""
TOKEN = "0123456789abcdef" * 4


def run(program: str, **environment: str) -> None:
    """Run a program in a process of its own: Ray reads its environment once."""
    done = subprocess.run(
        [sys.executable, "-c", f"{PROGRAM}\n{program}"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error:::pecan_ray", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_where_the_cluster_has_a_token_the_page_asks_for_it() -> None:
    run(
        f'''
status, headers, text = asyncio.run(ask("/nothing"))
assert status == 401 and 'type="password"' in text and "default-src 'none'" in headers["content-security-policy"]
assert asyncio.run(ask("/"))[0] == asyncio.run(ask("/job"))[0] == asyncio.run(ask("/live.js"))[0] == 401
assert asyncio.run(ask("/style.css"))[0] == asyncio.run(ask("/token"))[0] == 200
assert asyncio.run(ask("/nothing", authorization="Bearer wrong"))[0] == 401
assert asyncio.run(ask("/nothing", authorization="Bearer {TOKEN}"))[0] == 404
assert asyncio.run(ask("/nothing", x_ray_authorization="Bearer {TOKEN}"))[0] == 404
assert asyncio.run(ask("/nothing", cookie="pecan-dashboard=x"))[0] == 401

status, headers, text = asyncio.run(ask("/token", "POST", b"token=wrong"))
assert status == 403 and "set-cookie" not in headers and "not the token" in text
assert asyncio.run(ask("/token", "POST", b"token=" + b"x" * 20_000))[0] == 413
status, headers, text = asyncio.run(ask("/token", "POST", b"token={TOKEN}"))
assert status == 303 and headers["location"] == "/pecan/"
cookie = headers["set-cookie"]
assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower() and "{TOKEN}" not in cookie
assert asyncio.run(ask("/nothing", cookie=cookie.split(";")[0]))[0] == 404
''',
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN=TOKEN,
    )


def test_where_it_has_none_nobody_is_asked() -> None:
    run('assert asyncio.run(ask("/nothing"))[0] == 404', RAY_AUTH_MODE="disabled")
