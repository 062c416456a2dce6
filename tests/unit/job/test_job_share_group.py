"""A group of sharing readers: epochs of those who come late, those who skip, those who are waited for, and the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.errors import PlanError
from pecan_ray.job.share_group import (
    BeginRun,
    Finish,
    Produce,
    SendEntry,
    ShareGroup,
)
from pecan_ray.job.share_trials import TrialRank
from tests.unit.job.in_words import words

WRITTEN = Path(__file__).with_name("groups.txt")
"""A paragraph for each group; `python -m tests.unit.job.test_job_share_group` writes all anew."""
GROUPS = 40
EACH = 5
"""Entries of an epoch, of one byte each."""
PATIENCE_S = 60.0


class GroupPlay:
    """A group with a run that makes entries (run, epoch, number), and readers that keep what they get."""

    def __init__(self, capacity: int = 3, max_lag: int | None = None, each: int = EACH, disk: int = 0) -> None:
        self.group: ShareGroup[tuple[int, int, int]] = ShareGroup(
            capacity, 10.0, max_lag=max_lag, disk_bytes=disk, patience_s=PATIENCE_S
        )
        self.told: list[Any] = []
        """All that it has wanted done."""
        self.each = each
        self.got: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        self.skipped: dict[str, int] = {}
        self.runs: list[BeginRun] = []
        self.at = self.base = 0
        """How many entries the lineage of the run that is under way has given, and with which epoch it began."""
        self.owed = 0

    def do(self, instructions: Any) -> None:
        self.told += instructions
        for one in instructions:
            if isinstance(one, SendEntry):
                self.got[one.reader].append(one.entry)
            elif isinstance(one, Finish):
                self.skipped[one.reader] = one.skipped
            elif isinstance(one, BeginRun):
                self.runs.append(one)
                if one.restart_from is not None:
                    self.at, self.base = 0, one.restart_from
                self.owed += 1
            elif isinstance(one, Produce):
                self.owed += 1
        assert self.owed <= 1, "one entry is asked for at a time"

    def produce(self) -> bool:
        """Give what is owed; tell whether anything was."""
        if not self.owed:
            return False
        self.owed, epochs = 0, self.runs[-1].epochs
        epoch, number = divmod(self.at, self.each) if self.each else (0, 0)
        if not self.each or (epochs is not None and epoch >= epochs):
            self.do(self.group.ran_out())
            return True
        self.at += 1
        lineage = sum(run.restart_from is not None for run in self.runs) - 1
        self.do(self.group.produced((lineage, epoch, number), 1, self.base + epoch))
        return True

    def wish(self, reader: str, count: int = 1) -> None:
        self.do(self.group.request(reader, count))
        while self.produce():
            pass

    def join(self, reader: str, epochs: int | None = 1, of: TrialRank | None = None) -> None:
        self.group.join(reader, epochs, of=of)


def play(draw: Random) -> Iterator[str]:
    """Yield what a group does for readers that come, read, stand still and leave."""
    options = (
        draw.choice((1, 3, 10, 20)),
        draw.choice((None, 1, 2, 3)),
        draw.choice((0, 5, 5, 5, 5, 5)),
        draw.choice((0, 10)),
    )
    group, now, joined = GroupPlay(*options), 0.0, list[str]()
    yield f"capacity {options[0]}, max_lag {options[1]}, {options[2]} entries an epoch, disk for {options[3]}"
    coming = [("a", None), ("b", None), *ranks_of("t", 2).items(), ("c", None)]
    for _ in range(60):
        kind, said = draw.random(), ""
        if coming and kind < 0.15:
            reader, rank = coming.pop(draw.randrange(len(coming)))
            epochs = draw.choice((1, 2, 2, None))
            with suppress(PlanError):
                joined.append(reader)
                place = group.group.join(reader, epochs, behind=draw.choice((-1, -1, 0)), of=rank)
                said = f"{reader} joins for {epochs} epochs at {words(place)}"
        elif joined and kind < 0.75:
            reader = draw.choice(joined[:2] if draw.random() < 0.8 else joined)
            said = f"{reader} asks"
            group.wish(reader, draw.choice((1, 2, 5)))
        elif joined and kind < 0.78:
            reader = draw.choice(joined)
            said = f"{reader} leaves"
            group.do(group.group.leave(reader))
        elif kind < 0.79:
            group.group.disk_failed()
        else:
            for _ in range(draw.choice((1, 8, 70))):
                now += draw.choice((1.0, 1.0, 30.0))
                group.do(group.group.time(now))
        while group.produce():
            pass
        told, group.told = [one for one in group.told if not isinstance(one, Produce)], []
        if told or "joins" in said:
            yield f"{now:.0f} s: {said} -> {'; '.join(map(words, told))}"
    last = group.group
    yield f"{words(last.readers)}, held back by {last.held_back_by}, {words(last.slow.held_back_s)}"


def paragraphs() -> list[str]:
    """Return what all groups do."""
    return ["\n".join((f"group {seed}", *play(Random(seed)))) for seed in range(GROUPS)]


def test_what_groups_do_is_what_is_written_down() -> None:
    assert paragraphs() == WRITTEN.read_text().strip().split("\n\n")


def test_an_entry_larger_than_the_window_is_refused() -> None:
    play = GroupPlay(capacity=3)
    play.join("a")
    play.do(play.group.request("a"))
    with pytest.raises(PlanError, match="4 bytes does not fit into a window of 3"):
        play.group.produced((0, 0, 0), 4, 0)


def ranks_of(trial: str, world_size: int) -> dict[str, TrialRank]:
    return {f"{trial}{rank}": TrialRank(trial, rank, world_size) for rank in range(world_size)}


@given(st.data())
def test_ranks_of_trials_divide_the_epochs_that_other_readers_get_whole(data: st.DataObject) -> None:
    play = GroupPlay(capacity=data.draw(st.integers(1, 2 * EACH)), max_lag=data.draw(st.integers(1, 4)))
    sizes = data.draw(st.lists(st.integers(1, EACH + 1), min_size=1, max_size=4))
    readers = [one for number, size in enumerate(sizes) for one in ranks_of(f"t{number}-", size).items()]
    epochs = data.draw(st.integers(1, 3))
    joined: list[str] = []
    for name, rank in data.draw(st.permutations(readers)):
        play.join(name, epochs, None if rank.world_size == 1 else rank)
        joined.append(name)
        for _ in range(data.draw(st.integers(0, 8))):
            play.wish(data.draw(st.sampled_from(joined)))
    for _ in range(1_000):
        if len(play.skipped) == len(readers):
            break
        for name in joined:
            play.wish(name)
    assert len(play.skipped) == len(readers), "somebody waits for ever"
    for number, size in enumerate(sizes):
        got = [[entry[1:] for entry in play.got[name]] for name in ranks_of(f"t{number}-", size)]
        assert {len(one) for one in got} == {epochs * (EACH // size)}
        began = min(one[0][0] for one in got) if size <= EACH else 0
        whole = [(began + epoch, place) for epoch in range(epochs) for place in range(EACH // size * size)]
        assert sorted(entry for one in got for entry in one) == whole


@given(st.data())
def test_every_reader_gets_its_epochs_in_order_and_what_it_lacks_is_counted(data: st.DataObject) -> None:
    max_lag = data.draw(st.none() | st.integers(1, 3))
    disk = data.draw(st.just(0) | st.integers(1, EACH))
    play = GroupPlay(capacity=data.draw(st.integers(1, 2 * EACH)), max_lag=max_lag, disk=disk)
    wanted: dict[str, int] = {}
    for number in range(data.draw(st.integers(1, 4))):
        name = f"r{number}"
        wanted[name] = data.draw(st.integers(1, 3))
        play.join(name, wanted[name])
        for _ in range(data.draw(st.integers(0, 25))):
            play.wish(data.draw(st.sampled_from(sorted(wanted))), data.draw(st.integers(1, 2)))
        if data.draw(st.integers(0, 5)) == 0:
            gone = data.draw(st.sampled_from(sorted(wanted)))
            play.do(play.group.leave(gone))
            wanted.pop(gone)
        if not wanted:
            break
    rounds = 0
    while set(wanted) - set(play.skipped):
        for name in wanted:
            play.wish(name)
        rounds += 1
        assert rounds < 1_000, "somebody waits for ever"
    for name, epochs in wanted.items():
        got, skipped = play.got[name], play.skipped[name]
        assert got == sorted(set(got))
        if max_lag is not None:
            assert len(got) == epochs * EACH and got[0][2] == 0 and skipped == 0
        else:
            # Who lags beyond its own end skips entries behind that too.
            assert len(got) <= epochs * EACH <= len(got) + skipped


if __name__ == "__main__":
    WRITTEN.write_text("\n\n".join(paragraphs()) + "\n")
