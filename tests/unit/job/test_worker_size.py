"""The memory that a worker has taken."""

from __future__ import annotations

import numpy as np

from pecan_ray.runtime.host_use import peak_memory


def test_the_most_memory_that_a_process_has_had_is_measured() -> None:
    block = np.ones(64 << 20, np.uint8)
    most = peak_memory()
    assert most > block.nbytes
    del block
    # The kernel adds up what threads have counted now and then, so it may be some pages less.
    assert peak_memory() > most - (1 << 20)
