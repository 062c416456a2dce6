"""What every storage promises: the same on a disk, through fsspec, on S3 and on Google Cloud Storage."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from pecan_ray import storage
from pecan_ray.errors import PlanError, SourceNotFoundError
from pecan_ray.sources import TextLines
from tests.unit.storage.conftest import Place

BODY = os.urandom(100_000)
TREE = ["a.txt", "b.txt", "b/1.txt", "b/2.bin", "b/c/3.txt", "b/_done", "b/.x.txt", "b/.git/4.txt", "d[1]/5.txt"]
PATTERNS = {
    "a.txt": ["a.txt"],
    "b": ["b/1.txt", "b/2.bin", "b/c/3.txt"],
    "b/": ["b/1.txt", "b/2.bin", "b/c/3.txt"],
    "*.txt": ["a.txt", "b.txt"],
    "?/*": ["b/1.txt", "b/2.bin", "b/_done"],
    "b/[!2]*.txt": ["b/1.txt"],
    "b/.*.txt": ["b/.x.txt"],
    "b/**": ["b/1.txt", "b/2.bin", "b/_done", "b/c/3.txt"],
    "**/*.txt": ["a.txt", "b.txt", "b/1.txt", "b/c/3.txt", "d[1]/5.txt"],
    "**/.git/*": ["b/.git/4.txt"],
    "*/c/*.txt": ["b/c/3.txt"],
    "d[[]1]/*": ["d[1]/5.txt"],
    "[!]a].txt": ["b.txt"],
    "{b,a}.txt": ["b.txt", "a.txt"],
    "{b/{c,1.txt},a*}": ["b/c/3.txt", "b/1.txt", "a.txt"],
}


def listed(folder: str) -> list[tuple[str, int]]:
    return [(file.path.removeprefix(f"{folder}/"), file.size) for file in storage.list_folder(folder)]


def test_a_pattern_names_the_same_files_on_every_storage(place: Place) -> None:
    place.put({name: name.encode() for name in TREE})
    for pattern, names in PATTERNS.items():
        found = [file.path for file in storage.list_files(f"{place.root}/{pattern}")]
        assert found == [f"{place.root}/{name}" for name in names], pattern
    assert storage.subfolders(f"{place.root}/b") == ["c"]
    for name in ("missing", "*.png", "b/c/*.bin", "nowhere/*"):
        with pytest.raises(SourceNotFoundError, match="Check the") as caught:
            list(storage.list_files([f"{place.root}/a.txt", f"{place.root}/{name}"]))
        assert caught.value.path == f"{place.root}/{name}"


def test_a_file_that_is_called_like_a_pattern_can_be_named(place: Place) -> None:
    odd = ["a[1].txt", "a*.txt", "b?.txt", "c{1,2}.txt", "d*/x.txt"]
    place.put({name: name.encode() for name in (*odd, "a1.txt", "b1.txt", "c1.txt", "c2.txt", "d1/y.txt")})
    named = {"a[[]1].txt": "a[1].txt", "a[12].txt": "a1.txt"} | {name: name for name in odd}
    for name, text in named.items():
        source = TextLines(f"{place.root}/{name}")
        assert [element["text"] for split in source.splits() for element in source.read(split)] == [text]


def test_braces_stand_for_names_each_of_which_must_be_there(place: Place) -> None:
    names = [f"s-{n:03}.txt" for n in range(5, 25)]
    place.put(dict.fromkeys([*names, "s-1000.txt"], b"x"))
    for pattern in ("s-{005..024}.txt", "s-{024..005..1}.txt", "s-0{0{5..9},1{0..9},20,21,22,23,24}.txt"):
        found = [file.path.rpartition("/")[2] for file in storage.list_files(f"{place.root}/{pattern}")]
        assert found == (names if "24..005" not in pattern else names[::-1])
    with pytest.raises(SourceNotFoundError, match=r"s-025\.txt"):
        list(storage.list_files(f"{place.root}/s-{{005..030}}.txt"))
    for last in ("9999999", "9" * 26):
        with pytest.raises(PlanError, match="1,000,000"):
            list(storage.list_files(f"{place.root}/s-{{0..{last}}}.txt"))


def test_ranges_streams_and_whole_files_are_what_was_stored(place: Place) -> None:
    place.put({"a.txt": b"a.txt", "b/2.bin": b"b/2.bin"})
    path, none = f"{place.root}/a.txt", f"{place.root}/none"
    (info,) = storage.list_files(path)
    assert (info.path, info.size, info.version) == (path, 5, storage.file_info(path).version)
    assert storage.read_all(path) == b"a.txt"
    assert storage.read_range(path, 1, 3, version=info.version) == b".t"
    for stop in (100, None):
        assert [storage.read_range(path, start, stop) for start in (3, 9)] == [b"xt", b""]
    assert list(storage.read_many([path, f"{place.root}/b/2.bin"])) == [b"a.txt", b"b/2.bin"]
    with storage.open_stream(path, 2) as stream:
        assert stream.read() == b"txt"
    with storage.open_random(path) as file:
        file.seek(-2, os.SEEK_END)
        assert file.read() == b"xt"
    for opened in (storage.open_stream, storage.open_random):
        with pytest.raises(SourceNotFoundError, match="none"), opened(none) as file:
            file.read(1)
    for read in (storage.read_all, storage.file_info):
        with pytest.raises(SourceNotFoundError, match="none"):
            read(none)


def test_what_was_written_is_read_listed_and_removed_and_another_version_if_written_again(place: Place) -> None:
    root, path = place.root, f"{place.root}/kept/a/one"
    for name, body in (("kept/a/one", BODY), ("kept/a b#?/zwei ü", b"2"), ("other/three", b"3")):
        storage.write_file(f"{root}/{name}", body)
    assert storage.read_all(path) == BODY and storage.read_all(f"{root}/kept/a b#?/zwei ü") == b"2"
    assert sorted(listed(f"{root}/kept")) == [("a b#?/zwei ü", 1), ("a/one", len(BODY))]
    piece = storage.read_file_range(path, 10, 20)
    assert piece.data == BODY[10:20] and piece.size == len(BODY)
    first = storage.file_info(path)
    storage.write_file(path, b"the second")
    second = storage.file_info(path)
    assert storage.read_all(path) == b"the second" and first.version != second.version and second.size == 10
    for _ in range(2):  # what is gone may be removed again
        storage.delete_file(path)
        storage.delete_file(f"{root}/nothing/of/the/kind")
    assert listed(f"{root}/kept") == [("a b#?/zwei ü", 1)] and listed(f"{root}/absent") == []
    with pytest.raises(SourceNotFoundError):
        storage.read_all(path)


@pytest.mark.parametrize("place", ["disk", "s3", "gcs"], indirect=True)
def test_two_that_write_at_once_leave_one_of_both_whole(place: Place) -> None:
    path, bodies = f"{place.root}/file", [bytes([number]) * 300_000 for number in range(4)]
    storage.write_file(path, bodies[0])
    with ThreadPoolExecutor(4) as pool:
        writes = [pool.submit(storage.write_file, path, body) for body in bodies * 3]
        while not all(write.done() for write in writes):
            assert storage.read_all(path) in bodies
    assert storage.read_all(path) in bodies and len(listed(place.root)) == 1
