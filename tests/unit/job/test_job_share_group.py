"""A group of sharing readers: epochs of those who come late, those who skip, those who are waited for, and the end."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.errors import PlanError
from pecan_ray.job.share_group import (
    BeginRun,
    EndGroup,
    Finish,
    LeaveBehind,
    MoveToDisk,
    Produce,
    SendEntry,
    ShareGroup,
    TellWaiting,
)
from pecan_ray.job.share_trials import TrialRank
from pecan_ray.job.slow_readers import LONGEST_STEP_S, RANK_PATIENCE_S, TELL_AGAIN_S

EACH = 5
"""Entries of an epoch, of one byte each."""
PATIENCE_S = 60.0


class GroupPlay:
    """A group with a run that makes entries (run, epoch, number), and readers that keep what they get."""

    def __init__(self, capacity: int = 3, max_lag: int | None = None, each: int = EACH, disk: int = 0) -> None:
        self.group: ShareGroup[tuple[int, int, int]] = ShareGroup(
            capacity, 10.0, max_lag=max_lag, disk_bytes=disk, patience_s=PATIENCE_S
        )
        self.moved: list[tuple[int, int, int]] = []
        self.each = each
        self.got: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        self.skipped: dict[str, int] = {}
        self.runs: list[BeginRun] = []
        self.at = self.base = 0
        """How many entries the lineage of the run that is under way has given, and with which epoch it began."""
        self.produced = 0
        self.owed = 0

    def do(self, instructions: Any) -> None:
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
            elif isinstance(one, MoveToDisk):
                self.moved.append(one.entry)
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
        self.at, self.produced = self.at + 1, self.produced + 1
        lineage = sum(run.restart_from is not None for run in self.runs) - 1
        self.do(self.group.produced((lineage, epoch, number), 1, self.base + epoch))
        return True

    def wish(self, reader: str, count: int = 1) -> None:
        self.do(self.group.request(reader, count))
        while self.produce():
            pass

    def wait_for(self, kind: type, at: float = 0.0) -> tuple[float, list[Any]]:
        """Let seconds pass until the group says something of a kind; return when, and what it says then."""
        for second in range(1, 4000):
            told = self.group.time(at + second)
            if any(isinstance(one, kind) for one in told):
                return at + second, told
        raise AssertionError(f"no {kind.__name__}")

    def join(self, reader: str, epochs: int | None = 1, of: TrialRank | None = None) -> None:
        self.group.join(reader, epochs, of=of)

    def read(self, reader: str, count: int | None = None) -> list[tuple[int, int]]:
        """Wish one by one until it is at the end, or so often; return the epochs and numbers of all it got."""
        for _ in range(10_000 if count is None else count):
            if reader in self.skipped:
                break
            before = len(self.got[reader])
            self.wish(reader)
            if len(self.got[reader]) == before:
                break
        return [entry[1:] for entry in self.got[reader]]


def all_of(*epochs: int) -> list[tuple[int, int]]:
    return [(epoch, number) for epoch in epochs for number in range(EACH)]


def test_what_a_slow_reader_lacks_waits_on_disk_until_that_fails() -> None:
    play = GroupPlay(capacity=1, disk=10)
    play.join("fast")
    play.join("slow")
    assert play.read("fast") == all_of(0)
    assert play.moved == [(0, 0, number) for number in range(EACH - 1)]
    assert play.read("slow", 2) == all_of(0)[:2] and play.group.stats("slow").skipped == 0
    play.group.disk_failed()
    assert play.read("slow") == [(0, 0), (0, 1), (0, 4)] and play.skipped["slow"] == 2


def held_back_by_c() -> GroupPlay:
    """Return a group of three readers, of which one has read an entry and does not go on."""
    play = GroupPlay(max_lag=2, capacity=10)
    for name in "abc":
        play.join(name, 3)
    play.read("c", 1)
    for name in "abab":
        play.read(name, 3)
    return play


def test_a_reader_that_never_reads_on_is_left_behind_and_the_others_go_on() -> None:
    play = held_back_by_c()
    stuck = {name: list(entries) for name, entries in play.got.items()}
    at, left = play.wait_for(LeaveBehind)
    assert left[0] == LeaveBehind("c", 0, PATIENCE_S) and PATIENCE_S <= at <= PATIENCE_S + 2
    play.do(left)
    while play.produce():
        pass
    play.read("a"), play.read("b")
    for name in "abab":
        play.read(name)
    assert [entry[1:] for entry in play.got["a"]] == [entry[1:] for entry in play.got["b"]] == all_of(0, 1, 2)
    assert play.got["c"] == stuck["c"] and play.group.request("c") == []


def test_time_in_which_nobody_waits_or_the_group_stood_still_is_no_reason_to_leave_a_reader_behind() -> None:
    play = GroupPlay(max_lag=2, capacity=10)
    for name in "ab":
        play.join(name)
    play.read("b", 1)
    for _ in range(5):
        play.read("a", 1)
    assert play.group.held_back_by == ("b",)
    for days in range(1, int(PATIENCE_S / LONGEST_STEP_S)):  # in one step each
        assert not any(isinstance(one, LeaveBehind) for one in play.group.time(86_400.0 * days))
    quiet = GroupPlay(max_lag=1, capacity=10)
    for name in "ab":
        quiet.join(name)
    quiet.wish("a")
    assert quiet.group.held_back_by == ("b",)
    for second in range(int(2 * PATIENCE_S)):  # a has what it wished for
        assert quiet.group.time(float(second)) == []


def test_who_waits_hears_after_five_seconds_for_whom_and_not_again_for_a_minute() -> None:
    play = held_back_by_c()
    at, told = play.wait_for(TellWaiting)
    assert told == [TellWaiting(("a", "b"), ("c",), 5.0)] and at <= 7.0
    # As long as it reads something now and then it is slow, and is not left behind.
    said = []
    for step in range(1, 40):
        play.wish("c")
        play.wish("a")
        play.wish("b")
        if "c" in play.skipped:
            break
        for tick in range(50):
            said += play.group.time(at + 50.0 * step + tick)
    assert said and all(isinstance(one, TellWaiting) for one in said)
    assert len(said) <= 50.0 * step / TELL_AGAIN_S + 1
    ((name, seconds),) = play.group.slow.held_back_s
    assert name == "c" and seconds > 100.0


def test_readers_that_stand_still_at_different_places_are_waited_for_once() -> None:
    play = GroupPlay(max_lag=3, capacity=10)
    for name in "abc":
        play.join(name, 3)
    play.read("b", 1)
    play.read("c", 2)
    for _ in range(6):
        play.read("a", 1)
    at, left = play.wait_for(LeaveBehind)
    assert [one.reader for one in left if isinstance(one, LeaveBehind)] == ["b"]
    play.do(left)
    while play.produce():
        pass
    play.read("a")
    assert play.group.held_back_by == ("c",)
    later, left = play.wait_for(LeaveBehind, at)
    assert [one.reader for one in left if isinstance(one, LeaveBehind)] == ["c"] and later <= at + 2.0


def test_a_rank_of_a_trial_that_cannot_go_on_alone_is_waited_for_half_an_hour() -> None:
    play = GroupPlay(max_lag=2, capacity=20)
    play.join("alone", 3)
    for rank in range(2):
        play.join(f"rank {rank}", 3, of=TrialRank("trial", rank, 2))
    for _ in range(8):
        play.wish("alone")
    assert set(play.group.held_back_by) == {"rank 0", "rank 1"}
    at, left = play.wait_for(LeaveBehind)
    assert {one.reader for one in left if isinstance(one, LeaveBehind)} == {"rank 0", "rank 1"}
    assert RANK_PATIENCE_S <= at <= RANK_PATIENCE_S + 2


def test_a_late_reader_with_max_lag_waits_for_the_next_epoch() -> None:
    play = GroupPlay(capacity=2, max_lag=2)
    play.join("first", 2)
    play.read("first", 3)
    play.join("late")
    play.wish("late")
    assert play.got["late"] == [] and play.group.stats("late").waiting
    while len(play.skipped) < 2:
        play.wish("first")
        play.wish("late")
    assert [entry[1:] for entry in play.got["late"]] == all_of(1)
    assert play.produced == 2 * EACH, "it shares the second epoch of the first reader"


def test_a_later_reader_of_one_program_gets_no_epoch_again_that_is_still_kept() -> None:
    play = GroupPlay(capacity=EACH)
    play.join("pass 0")
    assert play.read("pass 0") == all_of(0)
    play.group.join("pass 1", 1, behind=0)
    assert play.read("pass 1") == all_of(1)
    play.group.join("pass 2", 2, behind=1)
    assert play.read("pass 2", 3) == all_of(2)[:3]
    play.do(play.group.leave("pass 2"))
    play.group.join("pass 3", 1, behind=2)
    assert play.read("pass 3") == all_of(0) and play.runs[-1] == BeginRun(1, restart_from=3), (
        "nobody reads the rest of epoch 2"
    )
    play.join("of another program")
    assert play.read("of another program") == all_of(0)


@pytest.mark.parametrize("epochs", [1, None])
def test_a_run_that_gives_nothing_ends_all_readers(epochs: int | None) -> None:
    play = GroupPlay(each=0)
    play.join("a", epochs)
    assert play.read("a") == [] and play.skipped == {"a": 0}


def test_an_entry_larger_than_the_window_is_refused() -> None:
    play = GroupPlay(capacity=3)
    play.join("a")
    play.do(play.group.request("a"))
    with pytest.raises(PlanError, match="4 bytes does not fit into a window of 3"):
        play.group.produced((0, 0, 0), 4, 0)


def test_a_group_without_readers_ends_after_a_while() -> None:
    play = GroupPlay()
    assert play.group.time(0.0) == []
    play.join("a")
    assert play.group.time(50.0) == []
    play.do(play.group.leave("a"))
    assert play.group.time(60.0) == [] and play.group.time(69.0) == []
    play.join("b")
    assert play.group.time(80.0) == []
    play.do(play.group.leave("b"))
    assert play.group.time(81.0) == [] and play.group.time(91.0) == [EndGroup()]
    with pytest.raises(PlanError, match="the group has ended"):
        play.join("c")


def ranks_of(trial: str, world_size: int) -> dict[str, TrialRank]:
    return {f"{trial}{rank}": TrialRank(trial, rank, world_size) for rank in range(world_size)}


def test_a_trial_begins_once_all_its_ranks_have_come_and_a_round_that_lacks_an_entry_is_dropped_for_all() -> None:
    play = GroupPlay(capacity=3, max_lag=1)
    first, second = ranks_of("t", 2).items()
    play.join(first[0], 2, first[1])
    play.wish(first[0])
    assert play.produced == 0 and play.group.time(0.0) == play.group.time(50.0) == [], "it is waited for"
    assert [one.waiting for one in play.group.readers] == [True]
    for rank, epochs in ((first[1], 2), (second[1], 1), (TrialRank("t", 1, 3), 2)):
        with pytest.raises(PlanError, match="does not fit to the ranks that have come"):
            play.join("another", epochs, rank)
    play.join(second[0], 2, second[1])
    play.wish(second[0])
    assert play.got == {"t0": [(0, 0, 0)], "t1": [(0, 0, 1)]}, "what the first one has wished for comes, too"
    while len(play.skipped) < 2:
        for name in ("t0", "t1"):
            play.wish(name)
    assert [entry[1:] for entry in play.got["t0"]] == [(0, 0), (0, 2), (1, 0), (1, 2)]
    assert [entry[1:] for entry in play.got["t1"]] == [(0, 1), (0, 3), (1, 1), (1, 3)]
    assert play.skipped == {"t0": 2, "t1": 0} and play.produced == 2 * EACH


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
