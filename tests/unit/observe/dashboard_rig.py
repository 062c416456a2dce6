"""Jobs for the dashboard's tests, and pages as a reader finds them in their HTML."""

from __future__ import annotations

import itertools
import math
from html.parser import HTMLParser

from pecan_ray.job.stats import JobEvent
from pecan_ray.observe.dashboard.html_builder import VOID
from pecan_ray.observe.dashboard.record import (
    JobLine,
    JobRecord,
    PastRun,
    SeenDecision,
    SeenTrainer,
    SeenWindow,
    SeenWorker,
)
from pecan_ray.plan.windows import Deployment

EXPLAINED = """{"pipeline": "p", "mode": "auto", "changed": true, "seconds": 1.0,
"before": ["decode", "crop", "flip"], "after": ["crop", "decode", "flip"],
"operators": [
{"name": "crop", "now": 1, "was": 2, "why": "moved: it makes 9 times less", "moved": true,
 "bytes_in": 9000, "bytes_out": 1000, "elements_in": 10, "elements_out": 10, "microseconds": 90.5},
{"name": "decode", "now": 2, "was": 1, "why": "free", "moved": false, "bytes_in": 100, "bytes_out": 9000,
 "elements_in": 10, "elements_out": 10, "microseconds": 800.0},
{"name": "flip", "now": 3, "was": 3, "why": "free", "moved": false}],
"summary": "AutoOrder moved crop before decode", "notes": ["a note"]}"""


def line(name: str = "train-1", *, live: bool = True, workers: int = 3) -> JobLine:
    return JobLine(
        *(name, "photographs", 200.0, 2, 12_000, 768_000, Deployment(workers // 2, workers - workers // 2)),
        rate=61.5,
        waited=0.031,
        bad_elements=2,
        dollars=1.25,
        past=None if live else PastRun("2026-01-02"),
    )


def record(name: str = "train-1", *, workers: int = 3, windows: int = 40, live: bool = True) -> JobRecord:
    moments = [200.0 * (number + 1) / windows for number in range(windows)]
    return JobRecord(
        line(name, live=live, workers=workers),
        tuple(SeenWindow(at, 50 + 12 * math.sin(at / 20), 0.2 / (1 + at / 30), 3.0 + at % 7) for at in moments),
        tuple(SeenDecision(20.0 * n, "add_remote", f"1 local + {n} remote", f"reason {n}") for n in range(1, 6)),
        tuple((20.0 * n, Deployment(1 + n // 3, n)) for n in range(6)),
        tuple((at, at / 160) for at in moments),
        tuple(
            SeenWorker(
                f"{'local' if n % 2 else 'remote'}-{n}", "local", f"node-{n % 20}", "runs", 1000 + n, 15, 4, 10**7
            )
            for n in range(workers)
        ),
        (SeenTrainer(0, "node-0", 12_000, 768_000, 0.031, 4),),
        (JobEvent(3.0, "bad", "photo-7.jpg: not a JPEG"), JobEvent(4.0, "worker", "local-1 runs as process 7")),
        "2 bad elements were left out (on_error)",
        EXPLAINED,
        "pecan job train-1: 12000 batches",
    )


class Reader(HTMLParser):
    """Elements of a page with their attributes and text; complains about what is not closed in its order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.around: list[list[str]] = []
        self.wrong: list[str] = []
        self.feed(page)
        self.close()
        self.wrong += [f"{name} is not closed" for name in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {key: value or "" for key, value in attrs}))
        self.wrong += [f"<{tag}/> inside of <{self.open[-1]}>"] * (self.open[-1] != "svg")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        self.around.append(list(self.open))

    def of(self, *tags: str) -> list[str]:
        """The texts directly within these elements, the innermost last."""
        return [text for text, around in zip(self.text, self.around, strict=True) if around[-len(tags) :] == [*tags]]

    def all(self, name: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.found if tag == name]

    def complaints(self) -> list[str]:
        """What people without a mouse or a screen would miss, and what is broken."""
        wrong = list(self.wrong)
        levels = [int(tag[1]) for tag, _ in self.found if tag in ("h1", "h2", "h3", "h4")]
        wrong += [f"h{a} is followed by h{b}" for a, b in itertools.pairwise(levels) if b > a + 1]
        wrong += ["not exactly one h1"] * (levels.count(1) != 1)
        wrong += ["a table without a caption"] * (len(self.all("table")) != len(self.all("caption")))
        wrong += ["th without scope" for th in self.all("th") if "scope" not in th]
        ids = [attributes["id"] for _, attributes in self.found if "id" in attributes]
        wrong += [f"id {one} twice" for one in set(ids) if ids.count(one) > 1]
        named = [attributes["aria-labelledby"] for _, attributes in self.found if "aria-labelledby" in attributes]
        wrong += [f"nothing has the id {one}" for one in named if one not in ids]
        wrong += ["no language"] * (not self.all("html") or not self.all("html")[0].get("lang"))
        addresses = [a.get(key, "") for _, a in self.found for key in ("src", "href", "action")]
        wrong += [f"an address outside: {one}" for one in addresses if "//" in one]
        wrong += [
            f"a style or handler of its own: {a}"
            for _, a in self.found
            if any(k[:2] == "on" or k == "style" for k in a)
        ]
        return wrong
