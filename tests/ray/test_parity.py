"""The table of habits on workers: the rows in which the way to iterate matters; in the long form all of them."""

from __future__ import annotations

import pytest

from tests.parity.judged import cells, must_be_right
from tests.parity.ways import WORKER, Way

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")


@pytest.mark.parametrize(("at", "way"), cells(on_workers=True))
def test_a_job_does_what_its_peers_do_or_what_the_row_says(at: int, way: Way) -> None:
    must_be_right(at, way, WORKER)
