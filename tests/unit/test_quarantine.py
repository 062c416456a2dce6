"""Quarantine files: refused before anything starts where they cannot be kept, and read without running code."""

from __future__ import annotations

import math
import os
import pickle
import resource
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pecan_ray.cli import main
from pecan_ray.engines.contract import BadElement
from pecan_ray.engines.plain import NotPlainError, decode, encode
from pecan_ray.errors import PlanError
from pecan_ray.job.suspicion import OP, WHY
from pecan_ray.options import Config
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import Origin
from pecan_ray.quarantine import Pickled, QuarantineFile, quarantined
from pecan_ray.replay import replay
from pecan_ray.sources import Items, JsonLines


def rooted(path: Path | None, items: tuple[float, ...] = (1.0, -1.0, 4.0), name: str = "roots") -> PecanPipeline:
    config = Config(quarantine_path=None if path is None else str(path), error_budget=1.0, reorder="off")
    return PecanPipeline(Items(items), name=name, config=config).map(math.sqrt, on="item").batch(1)


def bad(element: Any, **more: Any) -> BadElement:
    return BadElement("root", "element 1 of split 0", "ValueError: no", element, Origin(0, 0, 0, 0, 1), **more)


def numbered(number: int, element: Any) -> BadElement:
    return replace(bad(element), origin=Origin(0, 0, 0, 0, number))


def written(folder: Path, *elements: BadElement) -> Path:
    """Write a quarantine file."""
    file = QuarantineFile(folder / "bad.jsonl", "job")
    file.add(list(elements))
    file.close()
    return folder / "bad.jsonl"


PROGRAM = """
import pecan_ray as pecan
pipe = pecan.PecanPipeline(pecan.sources.Items([1])).map(lambda item: item, on="item").batch(1)
"""


@contextmanager
def files_of_most(size: int) -> Iterator[None]:
    """Let no file of this process grow further; Python ignores the signal."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_file_is_there_from_the_start_for_its_owner_alone_and_goes_if_nothing_was_bad(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    batches = rooted(path, (1.0, 4.0)).iter_batches(on_error="quarantine", debug=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and path.stat().st_size
    assert len(list(batches)) == 2
    assert not path.exists()
    for items in ((1.0, -1.0, 4.0), (1.0, -1.0, 4.0), (1.0,)):
        list(rooted(path, items).iter_batches(on_error="quarantine", debug=True))
    assert [(one.op, one.element) for one in quarantined(path)] == [("sqrt", {"item": -1.0})] * 2, "later jobs add"


def test_trainers_of_one_job_share_a_file_and_the_last_one_deletes_it(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    first, second = QuarantineFile(path, "job"), QuarantineFile(path, "job")
    first.close()
    assert path.exists(), "another one has it open"
    second.close()
    assert not path.exists()
    written(tmp_path, bad({"item": 1}))
    first, second = QuarantineFile(path, "job"), QuarantineFile(path, "job")
    another = replace(bad({"item": 2}), origin=Origin(1, 0, 0, 0, 1))
    first.add([bad({"item": 1})])
    second.add([bad({"item": 1}), another])
    second.close()
    first.add([another, replace(another, op="other")])
    first.close()
    kept = [(one.op, one.origin.epoch) for one in quarantined(path) if one.origin is not None]
    assert kept == [("root", 0), ("root", 0), ("root", 1), ("other", 1)]  # the earlier job's is another one


def test_a_disk_that_becomes_full_is_told_and_counted_and_the_job_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "bad.jsonl"
    with files_of_most(5), pytest.raises(PlanError, match=f"bad elements cannot be kept in {path}"):
        QuarantineFile(path, "job")
    assert not path.exists(), "left behind"
    batches = rooted(path, tuple(float(-i) for i in range(100))).iter_batches(on_error="quarantine", debug=True)
    with files_of_most(5000):
        assert len(list(batches)) == 1
    report, kept = batches.report(), list(quarantined(path))
    assert report.bad_elements == 99 and 0 < len(kept) < 99
    assert report.unkept_elements == 99 - len(kept) and "could not be written" in str(report)
    assert caplog.text.count("cannot be kept") == 1 and str(path) in caplog.text


class Evil:
    """Runs code when it is unpickled."""

    ran = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _run, ()


def _run() -> str:
    Evil.ran += 1
    return "ran"


def test_pickles_are_read_only_where_the_file_is_trusted(tmp_path: Path, capsys: Any) -> None:
    path = written(tmp_path, bad({"item": Evil()}), numbered(2, {"item": 2.0}))
    Evil.ran = 0
    first, second = quarantined(path)
    assert isinstance(first.element, Pickled) and second.element == {"item": 2.0} and Evil.ran == 0
    with pytest.raises(PlanError, match=r"kept as a pickle, .* pass --trust"):
        replay(rooted(path).plan, first)
    assert next(quarantined(path, trust=True)).element == {"item": "ran"} and Evil.ran == 1
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    assert main(["replay", str(path), str(program)]) == 1
    assert "0 still fail, 1 do not fail any more, 0 were not kept, 1 are pickles" in capsys.readouterr().out
    assert Evil.ran == 1
    assert main(["replay", "--trust", str(path), str(program)]) == 0 and Evil.ran == 2
    (tmp_path / "locks").mkdir()
    (one,) = quarantined(written(tmp_path / "locks", bad({"item": threading.Lock()}, elements_left_out=3)))
    assert one.element is None and "not kept: TypeError" in one.error, "it cannot even be pickled"
    assert one.elements_left_out == 3 and one.origin == Origin(0, 0, 0, 0, 1)


VALUES: list[Any] = [
    *(None, True, 3, 1 << 80, -2.5, math.inf, "é\ud800", b"\0\xff", (1, [2, (3,)]), {"a": {1: b"x"}}, 2 - 1j),
    *(np.float32(1.5), np.int64(-3), np.datetime64("2020-02-02"), np.str_("text"), np.bool_(True)),
    np.arange(12, dtype=">i2").reshape(3, 4),
    np.ones((2, 2), np.complex64).T,
    np.zeros((0, 3)),
    np.array(["a", "bcd"]),
    np.array([b"a", b""], "S3"),
    np.array(["x", "é\ud800"], object),
    np.array([[b"x", b""]], object),
    np.array(["x", None, 3, [1, 2], (np.float32(3),)], object),
    np.arange(3).astype(ml_dtypes.bfloat16),
    ml_dtypes.float8_e4m3fn(2),
]


def test_plain_values_come_back_as_they_were(tmp_path: Path) -> None:
    elements = [numbered(number, {"value": value}) for number, value in enumerate(VALUES)]
    for one, wanted in zip(quarantined(written(tmp_path, *elements)), VALUES, strict=True):
        check_same(one.element["value"], wanted)


def check_same(got: Any, wanted: Any) -> None:
    assert type(got) is type(wanted)
    if isinstance(wanted, np.ndarray):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape and got.flags.writeable
        for one, other in zip(got.ravel().tolist(), wanted.ravel().tolist(), strict=True):
            check_same(one, other)
    else:
        assert got == wanted


HARMFUL: list[Any] = [
    {"array": ["|O", [1], "0011223344556677"]},
    {"array": ["<i4", [1 << 62], ""]},
    {"array": ["<i4,<i4", [1], "0011223344556677"]},
    {"blobs": [[1], "ffffffffffffffff", ""]},
    {"texts": [[1], "0100000000000000", "ff"]},
    {"objects": [[5], [1]]},
    {"pickle": "80"},
    {"bytes": "zz"},
    {},
]


def put(*parts: bytes) -> str:
    return b"".join(parts).hex()


def test_other_values_are_not_plain_and_what_was_made_to_do_harm_is_refused() -> None:
    for value in (object(), np.zeros(2, [("a", int)]), np.ma.zeros(2), {1, 2}, Evil()):
        with pytest.raises(NotPlainError):
            encode(value, put)
    for harmful in HARMFUL:
        with pytest.raises(ValueError):  # noqa: PT011
            decode(harmful, bytes.fromhex)


def test_an_element_that_nobody_has_is_told_with_what_can_be_done(tmp_path: Path, capsys: Any) -> None:
    program = tmp_path / "program.py"
    deadly = BadElement(OP, "element 7 of a.tar", WHY, None, Origin(0, 0, 0, 2, 7))
    torn = BadElement("read", "element 3 of b.tar", "torn", first=Origin(0, 0, 0, 1, 3))
    path = written(tmp_path, deadly, bad(None), torn)
    assert next(quarantined(path)) == deadly
    with pytest.raises(PlanError, match=r"element 7 of a\.tar was not kept, since it ended the process of each worker"):
        replay(rooted(path).plan, deadly)
    program.write_text(PROGRAM)
    assert main(["replay", str(path), str(program)]) == 0
    told = capsys.readouterr().out
    assert "debug=True under `python -X faulthandler`" in told
    assert "element 1 of split 0 was not kept: ValueError: no\n" in told
    assert "element 3 of b.tar was not kept, since it could not be read (torn): look at the file" in told
    assert "0 still fail, 0 do not fail any more, 3 were not kept" in told


def test_a_file_in_which_nothing_can_be_kept_is_refused_before_anything_starts(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "notes").write_text("mine")
    for path, why in (
        (tmp_path / "absent" / "bad.jsonl", "its folder does not exist: make it"),
        (tmp_path / "fifo", "it is no regular file"),
        (tmp_path / "link", "it is a symbolic link, which is not followed"),
        (tmp_path, "it is a folder: name a file in it"),
        (tmp_path / "notes", "it holds something else. Move it away"),
        (tmp_path / ("x" * 300), "the name is too long"),
        (tmp_path / "a\0b", "embedded null byte"),
        (Path("/proc/bad.jsonl"), "cannot be kept"),
    ):
        with pytest.raises(PlanError, match="bad elements cannot be kept in") as caught:
            rooted(path).iter_batches(on_error="quarantine", debug=True)
        assert str(path) in str(caught.value) and why in str(caught.value)
        assert "Config(quarantine_path=...)" in str(caught.value)
    assert rooted(tmp_path).iter_batches(on_error="skip", debug=True) is not None
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(PlanError, match=r"'train/roots' cannot be kept .* has a slash"):
        rooted(None, name="train/roots").iter_batches(on_error="quarantine", debug=True)
    list(rooted(tmp_path / "bad.jsonl", name="train/roots").iter_batches(on_error="quarantine", debug=True))
    assert len(list(quarantined(tmp_path / "bad.jsonl"))) == 1, "where a file is named"


@pytest.mark.parametrize(
    ("reads", "keeps", "is_refused"),
    [
        (["."], "bad.jsonl", True),
        (["a.jsonl"], "a.jsonl", True),
        (["*.jsonl"], "bad.jsonl", True),
        (["{a,bad}.jsonl"], "bad.jsonl", True),
        (["a.jsonl", "**/*.jsonl"], "deep/bad.jsonl", True),
        (["."], "_bad/bad.jsonl", False),
        (["*.jsonl"], "bad.json", False),
        (["{a,b}.jsonl"], "bad.jsonl", False),
        (["*.jsonl"], "deep/bad.jsonl", False),
        (["a.jsonl"], "a.jsonl.bad", False),
    ],
)
def test_a_file_that_the_source_would_read_is_refused(
    tmp_path: Path, reads: list[str], keeps: str, is_refused: bool
) -> None:
    for name in ("a.jsonl", "b.jsonl", "deep/c.jsonl", "_bad/d.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"x": 1}\n')
    config = Config(quarantine_path=str(tmp_path / keeps), reorder="off")
    pipe = PecanPipeline(JsonLines([tmp_path / name for name in reads]), config=config).batch(1)
    if is_refused:
        with pytest.raises(PlanError, match=r"the source reads .* and with it this file. Name one elsewhere"):
            pipe.iter_batches(on_error="quarantine", debug=True)
    else:
        assert len(list(pipe.iter_batches(on_error="quarantine", debug=True))) >= 1


def test_a_line_that_was_cut_hides_no_other_one_and_a_file_that_is_no_quarantine_is_refused(tmp_path: Path) -> None:
    for number in range(2):
        path = written(tmp_path, numbered(number, number))
        with path.open("ab") as file:
            file.write(b'{"op":"root","whe')
    reading = quarantined(path)
    assert [next(reading).element, next(reading).element] == [0, 1]
    with pytest.raises(PlanError, match=r"line 3 of .* is no whole bad element"):
        next(reading)
    for content in (b'{"pecan-quarantine": 99, "job": "later"}\n', b"junk", b"", pickle.dumps(bad({"item": 1}))):
        path.write_bytes(content)
        with pytest.raises(PlanError, match="in the format 99" if b"99" in content else "no quarantine file"):
            list(quarantined(path, trust=True))
    with pytest.raises(PlanError, match="cannot read the quarantine file"):
        list(quarantined(tmp_path / "absent"))
