"""A journal's copy in a bucket: a run whose program and node are gone goes on from it; no secret lies anywhere."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

import pecan_ray as pecan
from pecan_ray import storage
from pecan_ray.cli import main
from pecan_ray.errors import JournalError, SourceNotFoundError, StateError
from tests.object_stores import SECRET, put_objects
from tests.ray.conftest import Bucket, living_actors
from tests.ray.pipelines import ONE, numbered_lines
from tests.ray.test_journal import KEPT, slow_numbers
from tests.ray.test_observed import scraped
from tests.ray.user_programs import environment_at, started
from tests.ray.waiting import until
from tests.ray.workers import ONE_BY_ONE, controller_process, kill_controller

pytestmark = pytest.mark.usefixtures("no_actor_left")


TRAINER = """
import signal
import sys

import pecan_ray as pecan
from tests.ray.pipelines import ONE, numbered_lines
from tests.ray.test_journal import slow_numbers

config = pecan.Config(journal=sys.argv[1], trainer_timeout_s=6)
batches = slow_numbers("left", config=config).iter_batches(job="left", workers=pecan.Workers(local=1))
for number, batch in enumerate(batches, 1):
    print(*batch["i"].tolist(), flush=True)
    if number == int(sys.argv[2]):
        signal.pause()  # until it is killed
"""


def used_and_killed(root: str, address: str, count: int) -> Counter[int]:
    """Let a program use so many batches and be killed when its job's journal knows; return what it has used."""
    with started(TRAINER, environment_at(address), root, str(count)) as program:
        assert program.stdout is not None
        used = [int(i) for _ in range(count) for i in program.stdout.readline().split()]

        def told() -> bool:
            assert program.poll() is None
            try:
                return bool(pecan.journal_state(root, "left")["batches"] == count)
            except (JournalError, StateError):  # not yet
                return False

        until(told, "it is not known what was used")
    until(lambda: not living_actors(), "the job does not end")
    return Counter(used)


def test_a_run_whose_program_was_killed_goes_on_from_a_bucket(bucket: Bucket) -> None:
    root = "s3://data/journals"
    used = used_and_killed(root, bucket.cluster.address, 7)
    state = pecan.journal_state(root, "left")
    config = pecan.Config(journal=root)
    with slow_numbers("left", config=config).iter_batches(job="left", state=state, **ONE_BY_ONE) as batches:
        rest = []
        for number, batch in enumerate(batches):
            rest += batch["i"].tolist()
            if number == 20:
                told_of = [event.text for event in batches.report().events if event.kind == "journal"]
                before = kill_controller("left")
                assert controller_process("left") != before
    assert used + Counter(rest) == KEPT
    assert len(told_of) == 1 and "000001-" in told_of[0]
    folders = {file.path.split("/")[5] for file in storage.list_folder(root)}
    assert len(folders) == 1 and folders.pop().startswith("000001-"), "the run that ended leaves nothing"


@pytest.mark.slow
def test_no_secret_is_in_what_a_job_writes(
    bucket: Bucket, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is in the environment of every process, with which they read and write the bucket."""
    caplog.set_level(logging.DEBUG, logger="pecan_ray")
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == SECRET
    put_objects(bucket.endpoint, numbered_lines("planted", 8, 50, 8))
    bad = str(tmp_path / "bad.jsonl")
    config = pecan.Config(journal="s3://data/secrets", quarantine_path=bad, error_budget=1.0, progress=True)
    pipe = pecan.PecanPipeline(pecan.sources.TextLines("s3://data/planted/*"), name="planted", config=config)
    pipe = pipe.map(lambda text: 1 / (int(text) % 100), on="text", name="divides").batch(8)
    with pipe.iter_batches(job="planted", workers=ONE, on_error="quarantine") as batches:
        first = next(batches)
        said = [str(batches.state_dict()), str(batches.report())]
        assert main(["status"]) == 0
        until(lambda: 'job="planted"' in scraped(), "there are no metrics")
        said.append(scraped())
        until(lambda: journals() and "job" in {path.rsplit("/", 1)[1] for path in journals()}, "there is no journal")
        kept = list(copied())
        assert kept, "all pieces of the journal were replaced before they were read"
        assert len(first["text"]) + sum(len(batch["text"]) for batch in batches) == 396
        said.append(repr(batches.report()))
    with pytest.raises(pecan.errors.OpError) as caught:
        list(pipe.iter_batches(job="fails", workers=ONE))
    said += [repr(caught.value), *getattr(caught.value, "__notes__", ())]
    kept += written_below(Path(ray.worker._global_node.get_session_dir_path())) + written_below(tmp_path)
    out, err = capfd.readouterr()
    assert "job planted" in out and 'job="planted"' in "".join(said), "what is told of the job is looked through"
    found = [*(text.encode() for text in (*said, caplog.text, out, err)), *kept]
    assert any(b"divides" in data for data in kept) and len(kept) > 20
    assert not [data[:200] for data in found if SECRET.encode() in data]


def journals() -> list[str]:
    return [file.path for file in storage.list_folder("s3://data/secrets")]


def copied() -> Iterator[bytes]:
    """What lies there, but for pieces of a journal that longer ones take the place of meanwhile."""
    for path in journals():
        with contextlib.suppress(SourceNotFoundError):
            yield storage.read_all(path)


def written_below(folder: Path) -> list[bytes]:
    """What lies in the regular files of a folder: logs, journals, quarantine."""
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
