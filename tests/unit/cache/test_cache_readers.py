"""Which jobs read the same data, wherever they run."""

from __future__ import annotations

from pecan_ray.cache.readers import READS_S, Readers


def test_readers_of_a_dataset_are_those_that_were_heard_lately() -> None:
    readers = Readers()
    assert readers.report("one", ["x", "y"], 0.0) == ()
    assert readers.report("two", ["y", "z"], 1.0) == ("y",)
    assert readers.report("one", ["x", "y"], 2.0) == ("y",)
    assert readers.report("two", ["y"], READS_S + 3.0) == (), "one is silent"
    assert len(readers) == 3
    readers.forget_old(READS_S + 3.0)
    assert len(readers) == 1
