"""Jobs in other processes, which have another order of sets, and journals that do harm to whom reads them."""

from __future__ import annotations

import math
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pecan_ray.errors import JournalError
from pecan_ray.job.journal import HEAD, entries, packed, pages, replay
from tests.protocol.draw import draw
from tests.protocol.scenario import Fault, Scenario
from tests.unit.job.test_job_journal import PAGE, SPEC, whole, written

ROOT = Path(__file__).resolve().parents[3]


def endless(seed: int) -> Scenario:
    """A scenario with a journal that nobody goes on from."""
    return replace(draw(seed), faults=(*draw(seed).faults, Fault(math.inf, "kill controller")))


def ran(program: str, *arguments: object, **environment: str) -> str:
    """Run a program to its end, and return what it has printed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


PLAY = """
import sys
from pathlib import Path
from pecan_ray.job.journal import entries, pages, replay
from tests.protocol import draw, play
from tests.protocol.world import World, spec_of
from tests.unit.job.test_job_processes import endless

folder = Path(sys.argv[1])
for seed in range(20):
    one = play(draw(seed))
    print(seed, one.events, one.seconds, one.batches, one.endings)
for seed in sys.argv[2:]:
    if (folder / seed).exists():
        listed = [page for page, _ in pages((folder / f"{seed}.listings").read_bytes())]
        replay((entry for entry, _ in entries((folder / seed).read_bytes())), spec_of(endless(int(seed))), listed)
    else:
        world = World(endless(int(seed)))
        world.run()
        (folder / f"{seed}.listings").write_bytes(b"".join(world.job.listings))
        (folder / seed).write_bytes(b"".join(world.job.journal))
"""


def test_a_process_with_another_order_of_sets_makes_the_same_histories_and_the_same_jobs(tmp_path: Path) -> None:
    """Events must not be handled in the order of a set of names, which differs from process to process."""
    seeds = [seed for seed in range(100) if draw(seed).ranks > 1 and draw(seed).faults][:10]
    told = [ran(PLAY, tmp_path, *seeds, PYTHONHASHSEED=order) for order in ("1", "2")]
    assert told[0] == told[1] and len(told[0].splitlines()) == 20
    assert len(list(tmp_path.iterdir())) == 2 * len(seeds)


# --- damage with a right checksum -----------------------------------------------------------------------------

DAMAGED = """
import random, resource, sys
from tests.unit.job.test_job_processes import outcome_of_damage

resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))  # a pickle can ask for any memory
found = [outcome_of_damage(random.Random(seed)) for seed in range(int(sys.argv[1]), int(sys.argv[2]))]
print(sum(found), len(found))
"""


def outcome_of_damage(rng: random.Random) -> bool:
    """Damage entries and pages, mend their checksums, and read them: an error of ours, or a job."""
    bodies = [packed(entry)[HEAD:-1] for entry in written()]
    listing = [packed(PAGE)[HEAD:-1]]
    for _ in range(rng.choice((1, 1, 2))):
        some = rng.choice((bodies, bodies, bodies, listing))
        at = rng.randrange(len(some))
        some[at] = damaged(rng, some[at])
    if rng.random() < 0.2:
        rng.shuffle(bodies)
    try:
        data, listed = b"".join(map(whole, bodies)), b"".join(map(whole, listing))
        replay((entry for entry, _ in entries(data)), SPEC, [page for page, _ in pages(listed)])
    except JournalError:
        return True
    return False


def damaged(rng: random.Random, body: bytes) -> bytes:
    at = rng.randrange(len(body) + 1)
    kind = rng.randrange(5)
    if kind == 0:
        return body[:at]
    if kind == 1:
        return body[:at] + rng.randbytes(rng.randrange(1, 9)) + body[at:]
    if kind == 2:
        return body[:at] + rng.choice((b"-1", b"null", b'"x"', b"[]", b"{}", b"9" * 30)) + body[at + 1 :]
    if kind == 3:
        number = re.search(rb"[0-9]+", body[at:])
        return body if number is None else body.replace(number[0], rng.choice((b"0", b"7", b"1e999", b"77777777")), 1)
    return body[:at] + bytes((rng.randrange(256),)) + body[at + 1 :]


@pytest.mark.parametrize("seeds", [(0, 300), pytest.param((300, 20_000), marks=pytest.mark.slow)])
def test_damage_with_a_right_checksum_is_a_clear_error_or_does_no_harm(seeds: tuple[int, int]) -> None:
    refused, found = map(int, ran(DAMAGED, *seeds).split())
    assert found / 2 < refused < found
