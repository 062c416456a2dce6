"""A worker whose function never comes back is replaced; what two have hung at is left out; silent actors are named."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray

import pecan_ray as pecan
from pecan_ray.cli import main
from pecan_ray.observe import status_command
from pecan_ray.runtime.cluster import NAMESPACE
from pecan_ray.runtime.service import SERVICE
from pecan_ray.runtime.share_messages import PREFIX
from tests.ray.conftest import living_actors
from tests.ray.waiting import until

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

LINES, AT = 60, 37
SHORTEST_S = 5.0
"""That can be set."""


@dataclass(frozen=True)
class Hangs:
    """A function that never comes back from one line."""

    folder: Path

    def __call__(self, line: Any) -> Any:
        if line == f"line {AT}":
            (self.folder / "never").read_text()
        return line


@pytest.fixture
def hangs(tmp_path: Path) -> Hangs:
    os.mkfifo(tmp_path / "never")
    (tmp_path / "lines.txt").write_text("".join(f"line {number}\n" for number in range(LINES)))
    return Hangs(tmp_path)


def hanging(hangs: Hangs) -> pecan.PecanPipeline:
    """Return a pipeline of which no worker comes past one line."""
    source = pecan.sources.TextLines(str(hangs.folder / "lines.txt"))
    # A sample would hang as well, and be waited for.
    config = pecan.Config(reorder="off", hung_after_s=SHORTEST_S, error_budget=1.0)
    return pecan.PecanPipeline(source, name="hanging", config=config).map(hangs, on="text", name="decode").batch(4)


def test_what_every_worker_hangs_at_is_left_out_and_nothing_else(hangs: Hangs) -> None:
    with hanging(hangs).iter_batches(workers=pecan.Workers(2), on_error="skip") as batches:
        seen = Counter(line for batch in batches for line in batch["text"])
    report = batches.report()
    assert seen == Counter(f"line {number}" for number in range(LINES) if number != AT)
    assert report.bad_elements == 1 and report.workers_lost >= 2
    lost = [event.text for event in report.events if event.kind == "lost"]
    assert any(f"it hangs: decode has been working on element {AT} of {hangs.folder}" in text for text in lost), lost
    (bad,) = [event.text for event in report.events if event.kind == "bad"]
    assert bad.startswith(f"element {AT} of {hangs.folder / 'lines.txt'} is left out: decode had not done with it")


class Silent:
    """An actor whose methods do not come back."""

    def __init__(self, gate: str) -> None:
        self._gate = Path(gate)

    def _hang(self, *_: Any) -> None:
        self._gate.read_text()

    stats = groups = io = stop = close = _hang


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[None]:
    """A controller, a shared group and a service that do not answer; the service's process never gets a place."""
    os.mkfifo(tmp_path / "gate")
    kind: Any = ray.remote(num_cpus=0)(Silent)
    actors = [
        kind.options(name=name, namespace=NAMESPACE, resources=resources).remote(str(tmp_path / "gate"))
        for name, resources in (("pecan:some:controller", {}), (f"{PREFIX}some", {}), (SERVICE, {"no such node": 1.0}))
    ]
    yield
    for actor in actors:
        ray.kill(actor)


def test_status_and_stop_name_actors_that_do_not_answer(
    silent: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_command, "ANSWER_S", 0.2)
    assert main(["status"]) == 0
    out, err = capsys.readouterr()
    assert "service: does not answer; `pecan stop` ends it" in out
    assert err.count("does not answer") == 3 and f"pecan: {PREFIX}some does not answer" in err
    assert main(["stop"]) == 1, "it is not known whether the group has readers"
    assert "shared group some does not answer: --force ends its process" in capsys.readouterr().out
    assert main(["stop", "--force"]) == 0
    out = capsys.readouterr().out
    assert "shared group some does not answer: its process was ended" in out and "the service was ended" in out
    until(lambda: not {SERVICE, f"{PREFIX}some"} & set(living_actors()), "what was to be ended still lives")
