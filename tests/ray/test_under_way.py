"""What takes long on a worker is told to the trainer who waits for it, by name."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import pecan_ray as pecan

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

LONGEST_S = 120.0
"""For what is said after five seconds, however loaded the machine is."""


@pytest.mark.slow
def test_one_element_that_takes_long_is_named_in_the_log_and_the_report(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    may_go_on, text = tmp_path / "may_go_on", tmp_path / "lines.txt"
    os.mkfifo(may_go_on)
    text.write_text("".join(f"line {number}\n" for number in range(20)))
    said = "ponders has been working on element 13 of " + str(text)

    def ponders(line: Any) -> Any:
        if line == "line 13":
            may_go_on.read_text()
        return line

    def let_go_when_said() -> None:
        deadline = time.monotonic() + LONGEST_S
        while "the trainer waits" not in caplog.text or said not in caplog.text:
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        may_go_on.write_text("on")

    pipe = pecan.PecanPipeline(
        pecan.sources.TextLines(str(text)),
        name="pondering",
        config=pecan.Config(reorder="off"),  # a sample would ponder here
    )
    pipe = pipe.map(lambda line: line, on="text", name="passes").map(ponders, on="text").batch(4)
    releasing = threading.Thread(target=let_go_when_said, daemon=True)
    releasing.start()
    with pipe.iter_batches(workers=pecan.Workers(local=1)) as it:
        lines = [line for batch in it for line in batch["text"]]
        events = [event.text for event in it.report().events if event.kind == "waiting"]
    releasing.join()
    assert len(lines) == 20
    (event,) = [event for event in events if said in event]
    seconds = int(event.removesuffix(" s").rpartition(" ")[2])
    assert 5 <= seconds < LONGEST_S
    (told,) = [record.getMessage() for record in caplog.records if said in record.getMessage()]
    assert told.startswith("job pondering-") and "the trainer waits for a batch since" in told
