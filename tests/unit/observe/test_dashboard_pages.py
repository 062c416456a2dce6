"""Pages of the dashboard: values in, HTML out, that everybody can read and nobody's text can change."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pecan_ray.job.stats import JobEvent
from pecan_ray.observe.dashboard.amounts import amount, dollars, duration, share, size
from pecan_ray.observe.dashboard.frame import job_address, message_page, token_page
from pecan_ray.observe.dashboard.html_builder import render
from pecan_ray.observe.dashboard.job_list import list_page
from pecan_ray.observe.dashboard.job_page import job_page
from pecan_ray.observe.dashboard.plan_tables import plan_tables
from pecan_ray.observe.dashboard.plots import MOST_POINTS, Plot, PlotSeries, figure, next_round_number, sampled_points
from pecan_ray.observe.dashboard.record import JobRecord, PastRun, SeenDecision, SeenWorker
from tests.programs import run_python
from tests.unit.observe.dashboard_rig import Reader, line, record

SCRIPT = '<script>alert("1")</script>\x00\x1b[31m &amp; "quoted" \'too\''


def pages() -> dict[str, str]:
    past = replace(line("old"), past=PastRun("2026-01-02 03:04", "old-17"))
    return {
        "list": list_page("/pecan", [line(), line("second")], [past], ["silent-job"]),
        "empty list": list_page("/pecan", [], []),
        "past job": job_page("/pecan", record(live=False)),
        "many workers": job_page("/pecan", record(workers=500)),
        "bare job": job_page(
            "/pecan", JobRecord(replace(line(), rate=None, waited=None, dollars=None, bad_elements=0))
        ),
        "token": token_page("/pecan", wrong=True),
        "message": message_page("No such job", "/pecan", "no job runs"),
    }


def test_a_page_is_whole_and_can_be_read_without_a_mouse_or_a_screen() -> None:
    for name, page in pages().items():
        assert Reader(page).complaints() == [], name


def test_nobodys_text_becomes_markup_or_another_address() -> None:
    job = record(SCRIPT)
    named = replace(
        job,
        line=replace(job.line, pipeline=SCRIPT, error=SCRIPT, target=SCRIPT),
        workers=(SeenWorker(SCRIPT, SCRIPT, SCRIPT, SCRIPT, 1, 1, 1),),
        decision_history=(SeenDecision(1.0, SCRIPT, SCRIPT, SCRIPT),),
        events=(JobEvent(1.0, "bad", SCRIPT), JobEvent(1.0, SCRIPT, SCRIPT)),
        bad=SCRIPT,
        order_text=job.order_text.replace("decode", "<script>decode"),
        report=SCRIPT,
        lost=SCRIPT,
    )
    for page in (job_page("/pecan", named), list_page("/pecan", [named.line], [named.line], [SCRIPT])):
        found = Reader(page)
        assert found.complaints() == []
        assert [one for one in found.all("script") if one.get("src") != "/pecan/live.js"] == []
        assert "\x00" not in page and "\x1b" not in page
        assert '<script>alert("1")</script>\\x00' in "".join(found.text)
    assert job_address("", "a/b&c=d #?é<") == "/job?name=a%2Fb%26c%3Dd%20%23%3F%C3%A9%3C"


def test_plots_show_their_data_in_lines_of_few_points_in_words_and_in_a_table() -> None:
    page = job_page("/pecan", record())
    assert re.findall(r'data-plot="(\w+)"', page) == ["rate", "waiting", "running", "queue", "cost"]
    found = Reader(page)
    assert len(found.all("figure")) == len(found.all("figcaption")) == 5
    for points in (one["points"].split() for one in found.all("polyline")):
        assert len(points) > 5
        x, y = zip(*(map(float, point.split(",")) for point in points), strict=True)
        assert list(x) == sorted(x) and min(x) >= 0 and max(x) <= 1000
        assert min(y) >= 0 and max(y) <= 300 and max(y) - min(y) > 3
    assert "Vertical lines: 5 decisions to run other workers" in page and page.count('class="mark"') == 5
    assert "reason 5" in page and "1 local + 5 remote" in page
    moments = [(float(i), 1.0) for i in range(10_000)]
    moments[4_321], moments[7_654] = (4321.0, 99.0), (7654.0, -5.0)
    kept = sampled_points(moments)
    assert len(kept) <= MOST_POINTS + 2
    assert {moments[0], moments[4_321], moments[7_654], moments[-1]} <= set(kept)
    assert kept == sorted(kept)
    one = figure(Plot("rate", "Rate", (PlotSeries("rate", ((3.0, 7.0),)),), amount, until=10.0))
    assert "<circle" in one, "a single moment is no line"


def test_the_plan_is_shown_before_and_after_with_bytes_and_times() -> None:
    text = "".join(Reader(render(plan_tables(record().order_text))).text)
    assert "AutoOrder moved crop before decode" in text
    assert "moved: it makes 9 times less" in text and "a note" in text
    assert "900 B100 B90.5" in text, "crop as it is written"
    for unknown in ("", "no json", "[1]", "{}"):
        assert Reader(render(plan_tables(unknown))).wrong == []


def test_numbers_are_spelled_as_people_read_them() -> None:
    assert [amount(x) for x in (None, 0.0, 0.01234, 1.5, 61.54, 1234.5)] == ["-", "0", "0.0123", "1.5", "61.5", "1,234"]
    assert [share(x) for x in (None, 0.0312)] == ["-", "3.1%"]
    assert [dollars(x) for x in (None, 1.25, 123.456)] == ["-", "$1.2500", "$123.46"]
    assert [duration(x) for x in (1.25, 61, 7260)] == ["1.2 s", "1 min 01 s", "2 h 01 min"]
    assert [size(x) for x in (999, 1000, 2.5e6)] == ["999 B", "1 kB", "2.5 MB"]
    assert [next_round_number(x) for x in (0, 0.03, 1, 3, 61)] == [1, 0.05, 1, 5, 100]


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
    pytest.importorskip("starlette", reason="Ray Serve is not installed: pip install 'ray[serve]'")
    done = run_python("-c", f"{PROGRAM}\n{program}", env={"PYTHONWARNINGS": "error:::pecan_ray", **environment})
    assert done.returncode == 0, done.stderr


def test_where_the_cluster_has_a_token_the_page_asks_for_it() -> None:
    run(
        f'''
status, headers, text = asyncio.run(ask("/nothing"))
assert status == 401 and 'type="password"' in text and "default-src 'none'" in headers["content-security-policy"]
assert asyncio.run(ask("/"))[0] == asyncio.run(ask("/job"))[0] == asyncio.run(ask("/live.js"))[0] == 401
assert asyncio.run(ask("/style.css"))[0] == asyncio.run(ask("/token"))[0] == 200
assert asyncio.run(ask("/nothing", authorization="Bearer wrong"))[0] == 401
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


def test_without_a_token_nobody_is_asked_nor_reads_it_by_a_name_of_the_web() -> None:
    run('assert asyncio.run(ask("/nothing"))[0] == 404', RAY_AUTH_MODE="disabled")
    run(
        """
app = build_app(["ray.example.com"])
for host in ("127.0.0.1:8300", "[::1]:8300", "localhost:8300", "head-node", "RAY.example.com"):
    assert asyncio.run(ask("/style.css", host=host))[0] == 200, host
for host in ("evil.example", "127.0.0.1.evil.example:8300", "ray.example.com.evil.example", "[::1].evil.example"):
    status, _, text = asyncio.run(ask("/style.css", host=host))
    assert status == 403 and "--name NAME" in text, host
""",
        RAY_AUTH_MODE="disabled",
    )
