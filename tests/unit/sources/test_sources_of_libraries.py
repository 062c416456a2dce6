"""Tables that the program holds, data sets of other libraries, and recordings and films."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pecan_ray as pecan
from pecan_ray.errors import CorruptSourceError, MissingExtraError, PlanError, SourceNotFoundError
from pecan_ray.sources import Arrays, AudioFolder, Files, ImageFolder, LitData, Mds, TorchIterable
from tests.source_contract import check_contract, elements_of, same


def test_tables_of_arrow_are_arrays() -> None:
    table = pa.table({"n": [1, 2, None], "x": [0.5, None, 2.5], "text": ["a", None, "c"], "ids": [[1], [], [2, 3]]})
    wanted = elements_of(Arrays(table))
    assert [one["n"] for one in wanted] == [1, 2, None] and [one["text"] for one in wanted] == ["a", None, "c"]
    assert [one["ids"].tolist() for one in wanted] == [[1], [], [2, 3]]
    check_contract(Arrays(table, split_rows=2), wanted, splits=2)
    chunked = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    for same_table in (chunked, table.combine_chunks().to_batches()[0]):
        assert same(elements_of(Arrays(same_table)), wanted)
    assert elements_of(Arrays(table.slice(0, 0))) == []
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    with pytest.raises(PlanError, match=r"Arrays: column 'x' \(struct.*two parts of one name"):
        Arrays(pa.table({"x": twice}))


def test_tables_of_pandas_are_arrays() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"n": np.array([1, 2], np.uint8), "x": [0.5, np.nan], "text": ["a", "b"]})
    frame["maybe"] = pandas.array([1, None], "Int64")
    frame["kind"] = pandas.Categorical(["u", "v"])
    frame["any"] = [{"a": 1}, [1, 2]]
    frame["sparse"] = pandas.arrays.SparseArray([0, 7])
    ones = {"n": np.uint8(1), "x": np.float64(0.5), "text": "a", "maybe": np.int64(1), "kind": "u", "any": {"a": 1}}
    twos = {"n": np.uint8(2), "x": np.float64("nan"), "text": "b", "maybe": None, "kind": "v", "any": [1, 2]}
    assert same(elements_of(Arrays(frame)), [ones | {"sparse": np.int64(0)}, twos | {"sparse": np.int64(7)}])
    last = np.array(["9999-12-31"], "datetime64[s]")  # beyond the nanoseconds that older releases make of texts
    day = pandas.DataFrame({"day": last, "month": pandas.period_range("2020", periods=1)})
    (row,) = elements_of(Arrays(day))
    assert str(row["day"])[:10] == "9999-12-31" and row["month"] == day["month"][0]
    assert len(elements_of(Arrays(frame[frame.n > 1]))) == 1, "what is left of a plain index is no data"
    for wrong, said in (
        (frame.set_index("text"), "reset_index"),
        (frame.rename(columns={"n": 5}), "named by texts"),
        (pandas.concat([frame[["n"]], frame[["n"]]], axis=1), "twice"),
        (frame["n"], "to_frame"),
        ([1, 2], "arrays by name"),
    ):
        with pytest.raises(PlanError, match=said):
            Arrays(wrong)
    with pytest.raises(PlanError, match="'n' is given twice"):
        Arrays(frame[["n"]], n=[3, 4])


def test_iterable_data_sets_of_torch_are_dealt_out_by_their_shards() -> None:
    data = pytest.importorskip("torch.utils.data")

    class Numbers(data.IterableDataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 10

        def __iter__(self) -> Iterator[Any]:
            info = data.get_worker_info()
            first, step = (0, 1) if info is None else (info.id, info.num_workers)
            for n in range(first, 10, step):
                assert data.get_worker_info() is not None
                yield {"n": n} if n % 2 else n

    source = TorchIterable(Numbers(), shards=3)
    read = [source.read(split) for split in source.splits()]
    got = [[next(one) for _ in range(2)] for one in read]  # in turns, as threads do
    assert got[0] == [{"item": 0}, {"n": 3}] and got[1] == [{"n": 1}, {"item": 4}]
    assert (source.num_elements(), TorchIterable(Numbers(), shards=1).num_elements()) == (None, 10)
    assert len(elements_of(source)) == 10 and data.get_worker_info() is None
    assert list(source.read(next(source.splits()), 3)) == [{"n": 9}]
    with pytest.raises(PlanError, match="IterableDataset, but got list"):
        TorchIterable([1])


def test_files_and_recordings_in_folders_of_classes_are_elements(tmp_path: Path) -> None:
    for name in ("a.bin", "b.bin", "README.md"):
        (tmp_path / name).write_bytes(name.encode())
    expected = [{"content": name.encode(), "path": f"{tmp_path}/{name}"} for name in ("a.bin", "b.bin")]
    check_contract(Files(tmp_path, split_files=1), expected, splits=2)
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "a.wav").write_bytes(b"bark")
    barks = [{"audio": b"bark", "label": 0, "path": f"{tmp_path}/dog/a.wav"}]
    check_contract(AudioFolder(tmp_path), barks, splits=1)


def test_recordings(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    (tmp_path / "dog").mkdir()
    samples = np.linspace(-1, 1, 200, dtype=np.float32).reshape(100, 2)
    for ending in ("wav", "flac"):
        soundfile.write(tmp_path / "dog" / f"a.{ending}", samples, 8000)
    pipe = pecan.PecanPipeline(AudioFolder(tmp_path)).map(pecan.media.DecodeAudio(), on="audio")
    for one in pipe.peek(2):
        assert one["label"] == 0 and one["audio"]["rate"] == 8000
        assert np.abs(one["audio"]["samples"] - samples).max() < 1e-4
    mono = pecan.media.DecodeAudio(mono=True)((tmp_path / "dog" / "a.wav").read_bytes())
    assert mono["samples"].shape == (100,)
    with pytest.raises(ValueError, match="no recording"):
        pecan.media.DecodeAudio()(b"none")


def test_frames_of_films(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    with av.open(str(tmp_path / "a.mp4"), "w") as film:
        stream = film.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for n in range(7):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 30 * n, np.uint8), format="rgb24")
            film.mux(stream.encode(frame))
        film.mux(stream.encode(None))
    got = pecan.PecanPipeline(Files(tmp_path)).flat_map(pecan.media.VideoFrames(every=3, most=2)).peek(5)
    assert [round(one["time_s"], 3) for one in got] == [0.0, 0.3] and set(got[0]) == {"path", "frame", "time_s"}
    assert got[1]["frame"].shape == (48, 64, 3) and abs(int(got[1]["frame"].mean()) - 90) < 5
    with pytest.raises(ValueError, match="no film"):
        list(pecan.media.VideoFrames()({"content": b"none"}))
    for wrong in ({"every": 0}, {"most": 0}, {"every": None}):
        with pytest.raises(PlanError, match="positive integer"):
            pecan.media.VideoFrames(**wrong)


EXPECTED = [{"n": n, "text": f"t{n}", "data": np.arange(3) + n} for n in range(20)]


def test_folders_of_mosaic(tmp_path: Path) -> None:
    streaming = pytest.importorskip("streaming")

    def written(name: str, columns: dict[str, str], rows: list[Any], **how: Any) -> Mds:
        with streaming.MDSWriter(out=str(tmp_path / name), columns=columns, **how) as out:
            for row in rows:
                out.write(row)
        return Mds(tmp_path / name)

    source = written("mds", {"n": "int", "text": "str", "data": "ndarray"}, EXPECTED, size_limit=300)
    splits = len(list(source.splits()))
    assert splits > 1
    check_contract(source, EXPECTED, splits=splits)
    with pytest.raises(PlanError, match="runs code"):
        elements_of(written("pickled", {"x": "pkl"}, [{"x": 1}]))
    with pytest.raises(PlanError, match="compressed"):
        list(written("zipped", {"n": "int"}, [{"n": 1}], compression="gz").splits())


def test_folders_of_litdata(tmp_path: Path) -> None:
    cache = pytest.importorskip("litdata").streaming.Cache(str(tmp_path), chunk_size=4)
    for n, row in enumerate(EXPECTED[:10]):
        cache[n] = row
    cache.done()
    cache.merge()
    check_contract(LitData(tmp_path, split_rows=4), EXPECTED[:10], splits=3)


def test_folders_that_are_none(tmp_path: Path) -> None:
    for source in (Mds(tmp_path), LitData(tmp_path)):
        with pytest.raises(SourceNotFoundError, match=r"index\.json"):
            list(source.splits())
    (tmp_path / "index.json").write_text("[]")
    with pytest.raises(CorruptSourceError, match="no index that MDSWriter"):
        list(Mds(tmp_path).splits())
    for kind in (Mds, LitData):
        with pytest.raises(PlanError, match="copy the folder to a disk that all workers see, or mount the bucket"):
            kind("s3://bucket/data")
    for several in (Mds, LitData, ImageFolder, AudioFolder):
        with pytest.raises(PlanError, match="reads one folder"):
            several(["/a", "/b"])  # type: ignore[arg-type]  # what a user may write


@pytest.mark.parametrize(
    ("module", "extra"),
    [("soundfile", "audio"), ("av", "video"), ("litdata", "litdata"), ("streaming.base.format", "mosaic")],
)
def test_libraries_that_are_missing_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "index.json").write_text('{"shards": [{"raw_data": {"basename": "a"}, "samples": 1}]}')
    (tmp_path / "a").write_bytes(b"")
    uses: dict[str, Callable[[], object]] = {
        "audio": lambda: pecan.media.DecodeAudio()(b""),
        "video": lambda: list(pecan.media.VideoFrames()({"content": io.BytesIO()})),
        "litdata": lambda: list(LitData(tmp_path).splits()),
        "mosaic": lambda: elements_of(Mds(tmp_path)),
    }
    with pytest.raises(MissingExtraError, match=rf"pecan_ray\[{extra}\]"):
        uses[extra]()
