"""What the pure parts of a job decide and say, in cases drawn at random, written down."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Literal

import numpy as np
import pytest

from pecan_ray.cache_options import SharingPolicy
from pecan_ray.errors import JournalError, RankTakenError, StaleJobError
from pecan_ray.job.bottleneck import RunNumbers, bottleneck
from pecan_ray.job.cluster_io import MIB, SILENT_S, ClusterIoRegistry, JobIo
from pecan_ray.job.credits import MessageQuota
from pecan_ray.job.deadline_budget import DeadlineBudget
from pecan_ray.job.events import LossCause, WorkerLost
from pecan_ray.job.hearing import Hearing
from pecan_ray.job.heartbeat import Heartbeat
from pecan_ray.job.job_cost import cost_between, cost_by_epoch, cost_by_operator
from pecan_ray.job.job_sampler import JobSampler, available_cpus
from pecan_ray.job.job_views import latest_window
from pecan_ray.job.last_round import LastRound
from pecan_ray.job.lease_sizes import SideBySide, cut, elements_in, interleave_size, lot
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.losses import Loss, Losses
from pecan_ray.job.messages import TrainerProgress, WorkerProgress
from pecan_ray.job.next_step import next_step
from pecan_ray.job.notification_schedule import NotificationSchedule
from pecan_ray.job.own_ranks import OwnRanks, RowsToGive, run_begin
from pecan_ray.job.placement_comparison import compare
from pecan_ray.job.policy_runner import PlacementStep, begin
from pecan_ray.job.registration import NoResponse, Registration, Rejected
from pecan_ray.job.report_pace import Need, ReportPace
from pecan_ray.job.room import HostUse, Room
from pecan_ray.job.row_order import row_order
from pecan_ray.job.run_time import RunTime
from pecan_ray.job.sharing import STALE_S, PoolBid, Sharing
from pecan_ray.job.stats import JobStats
from pecan_ray.job.waiting import WaitLog
from pecan_ray.job.windows import StepTotals, WindowMeter
from pecan_ray.job.worker_size import cpus_at_work, size_advice
from pecan_ray.job.worker_table import DeliveredTotals, WorkerTable
from pecan_ray.observe.placement import explain_with_next_step
from pecan_ray.observe.report import Report
from pecan_ray.options import AutoWorkers, IterOptions, Workers
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.placement import AutoPlacement, Prices
from pecan_ray.placement.objective import COST, NO_WAIT, Objective
from pecan_ray.placement.pool import Demand
from pecan_ray.plan.prices import PriceTier
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import OUTPUT_BITS, Lease, Split
from pecan_ray.plan.stage_seconds import StageSeconds
from pecan_ray.plan.windows import Decision, Deployment, Window
from pecan_ray.sources import Arrays, TextLines
from tests.unit.job.in_words import words

WRITTEN = Path(__file__).with_name("decided.txt")
"""A paragraph for each case; `python -m tests.unit.job.test_job_decided` writes all anew."""
CASES = 12
"""Of each kind."""
PIPE, CACHE = 100e6, 1000 * MIB
HERE = Deployment(1, 2)


def power(draw: Random, low: float, high: float) -> float:
    """Draw a number of which the logarithm is even."""
    return float(f"{10 ** draw.uniform(low, high):.3g}")


def stages_of(draw: Random) -> StageSeconds:
    """Draw what workers have done with their time."""
    threads, observed = draw.choice((1, 2, 16)), draw.choice((0.3, 100.0, 100.0))
    busy = threads * observed
    shares = sorted(draw.random() * draw.choice((0.1, 1.0)) for _ in range(3))
    operators = tuple((name, busy * share) for name, share in zip(("crop", "parse", "decode"), shares, strict=True))
    return StageSeconds(
        observed,
        busy,
        busy * draw.choice((0.05, 0.4, 0.95)),
        observed * draw.choice((0.05, 0.3, 0.95)),
        busy * draw.choice((0.01, 0.85)),
        observed * draw.choice((0.0, 0.0, 0.8)),
        operators if draw.random() < 0.8 else (),
        ("decode",) if draw.random() < 0.1 else (),
        observed * draw.choice((0.03, 0.98)),
    )


def what_holds_up(draw: Random) -> Iterator[str]:
    """Yield what holds runs up, and which size of their workers is advised."""
    for _ in range(6):
        start = [draw.choice((0.0, 0.0, power(draw, -1, 1))) for _ in range(4)]
        time = RunTime(*start, *(draw.choice((0.0, 1.0, power(draw, 0, 2))) for _ in range(3)))
        kind = draw.random()
        run = RunNumbers(
            time,
            draw.choice((0, 3, 100, 100, 100)),
            stages_of(draw),
            draw.choice(((), (("blur", 0.1), ("crop", 0.02)))),
            draw.choice((1, 1, 3)),
            draw.choice((0, 0, 2)),
            placed=draw.random() < 0.3,
            cpus=draw.choice((0.0, 4.0, 32.0)),
            remote_bytes=draw.choice((0, 1 << 30)),
            in_process=kind < 0.05,
            headspace=kind > 0.95,
        )
        found = bottleneck(run)
        yield words(run)
        yield f"- {words(found)}"
        reserved = draw.choice((0.0, 0.25, 1.0, 4.0))
        yield f"- {cpus_at_work(run.stages):.3g} CPUs of {reserved}; {size_advice(run.stages, reserved) or 'they fit'}"


def locks(draw: Random) -> Iterator[str]:
    """Yield what is advised where functions hold Python's lock."""
    for _ in range(6):
        busy = 100.0 * draw.choice((1, 4, 16)) * draw.uniform(0.5, 1)
        operators = (("parse", busy * 0.1), ("decode", busy * 0.8))
        stages = StageSeconds(100.0, busy, busy * draw.choice((0.3, 0.6)), operators=operators, locked_s=95.0)
        local, remote, cpus = draw.choice((1, 3)), draw.choice((0, 0, 0, 2)), draw.choice((2.0, 12.0, 32.0))
        time, placed = RunTime(waited_s=70.0, trained_s=30.0), draw.random() < 0.3
        run = RunNumbers(time, 100, stages, (), local, remote, placed, cpus)
        yield words(run)
        yield f"- {words(bottleneck(run))}"


def paces(draw: Random) -> Iterator[str]:
    """Yield how long a batch may take so that a job ends in time, and what it has cost."""
    epochs, known = draw.choice((1, 4)), draw.choice((None, 100, 1000))
    budget, ranks = DeadlineBudget(300.0, epochs, known), draw.choice((1, 2))
    at, done = 0.0, [0, 0]
    for _ in range(8):
        at += draw.choice((1.0, 30.0, 70.0))
        for rank in range(ranks):
            done[rank] += draw.choice((0, 5, 60))
            budget.report(rank, StepTotals(done[rank], at * draw.choice((0.5, 1.0))), at)
        epoch = min(done[:ranks]) / (known or 200)
        yield f"{at:.0f} s, {done[:ranks]} batches: {words(budget.longest_s(at, epoch))} {budget.take_messages()}"
    ran = [(600.0 * number, Deployment(draw.randint(0, 2), draw.randint(0, 4))) for number in range(4)]
    prices = Prices(3.6, 0.36, draw.choice(((), (PriceTier("spot", 0.1, 2),))))
    rates = [draw.choice((None, 0.0, 2.0)) for _ in range(draw.randint(0, 4))]
    cost = cost_between(ran, prices, 2, rates, since=draw.choice((0.0, 900.0)), until=2000.0, waiting=draw.random())
    by_operator = cost_by_operator(cost, [("map", 3.0), ("crop", 1.0)])
    yield f"{words(ran)} at {words(rates)} cost {words(cost)}, {words(by_operator)}"
    yield words(cost_by_epoch(ran, prices, 1, (500.0, 700.0, 2500.0), 0.5, 100.0, rates))


def reasons(draw: Random) -> Iterator[str]:
    """Yield why AutoPlacement runs what it does, and what it does next."""
    phases = ("add_local", "add_remote", "measure", "discarded", "converged", "failed")
    timeline = []
    for number in range(draw.randint(1, 7)):
        ran, seconds = Deployment(1, draw.randint(0, 2)), power(draw, -2, 0)
        window = Window(
            seconds, 0.0, draw.choice((2, 100)), seconds * draw.choice((0.0, 0.01, 0.5)), draw.random() < 0.2
        )
        decision = Decision(draw.choice((HERE, ran)), draw.choice(phases), "it is cheap enough.")
        timeline.append(PlacementStep(5.0 * number, window, ran, decision))
    prices = draw.choice((None, Prices(3.6, 0.36)))
    policy = AutoPlacement(
        prices=prices or Prices(3.6, 0.36), objective=draw.choice((COST, NO_WAIT, Objective(longest_s=0.12)))
    )
    policy.setting = replace(policy.setting, batch_transfer=draw.choice((0.0, 1.0)))
    found = compare(timeline, policy)
    facts = JobStats("job", 20.0, timeline=tuple(timeline), comparison=found, prices=prices)
    facts = replace(facts, deployments=((0.0, HERE),), epoch_ends=(10.0, 20.0), op_seconds=(("map", 1.0),))
    yield explain_with_next_step(facts)
    yield f"the newest window is {words(latest_window(tuple(timeline), ()))}"
    yield str(Report.of_job(facts, TrainerProgress(elapsed_s=20.0, waited_s=5.0), 1.0, over=draw.random() < 0.3))
    yield str(next_step(HERE, timeline[-1].decision, decides=draw.random() < 0.9, stopped=draw.random() < 0.1))


def silences(draw: Random) -> Iterator[str]:
    """Yield for how long parties are waited for that say nothing, and after which losses a job ends."""
    one, now = Hearing(), 0.0
    for _ in range(10):
        now += draw.choice((1.0, 20.0, 40.0))
        kind = draw.randrange(5)
        if kind == 0:
            one = one.heard(now, draw.choice((None, 0.0, 0.5)))
        elif kind == 1:
            one = one.asked(now)
        elif kind == 2:
            one = one.looked_for(now, exists=draw.random() < 0.8)
        else:
            one = one.starved(draw.choice((0.0, 5.0)), 5.0)
        states = {
            "lost": one.is_lost(now, 60.0),
            "gone": one.is_gone(now, 60.0),
            "looked at": one.was_looked_at(now, 5.0),
            "to look at": one.should_look(now, 30.0),
        }
        said = ", ".join(name for name, holds in states.items() if holds)
        yield f"{now:.0f} s: {words(one)}: {said or 'well'}, {one.counted_s(now):.3g} s counted"
    losses = Losses()
    causes: tuple[LossCause, ...] = ("process", "process", "node", "stream", "silent", "unheard", "hung", "restart")
    for number in range(12):
        now += draw.choice((1.0, 12.0, 100.0))
        loss = Loss(
            f"w{number}",
            draw.choice(("", "a", "b")),
            draw.choice(causes),
            "signal 11",
            now - draw.choice((0.5, 50.0)),
            now,
        )
        fault = losses.is_work_at_fault(loss, LedgerShape(sharding=draw.choice(("dynamic", "off"))))
        expected = draw.random() < 0.1
        why = losses.note_sigterm(loss.worker, loss.node, 0.0, now) if draw.random() < 0.1 else ""
        why = why or losses.add(loss, expected=expected)
        if draw.random() < 0.3:
            why = why or losses.explain(WorkerLost(loss.worker, draw.choice(("process", "node", "stream")), "signal 9"))
        starts = "may start" if losses.may_start(now) else "waits"
        yield f"{now:.0f} s: {words(loss)}: at fault {fault}, {losses.count} lost, {starts} {why or losses.waiting()}"
        losses.pause_ended(now)
        if draw.random() < 0.1:
            losses.delivered()


def windows(draw: Random) -> Iterator[str]:
    """Yield the windows of batches of trainers."""
    trainers, batches = draw.choice((1, 2, 4)), draw.choice((5, 20))
    meter = WindowMeter(trainers, batches, draw.choice((3.0, math.inf)), discarded=draw.choice((0, 7)))
    totals = [StepTotals()] * trainers
    usual = power(draw, -2, 0)
    for number in range(12):
        for rank in range(trainers):
            for _ in range(draw.choice((1, 5, 11))):
                seconds = usual * draw.uniform(0.7, 1.5)
                totals[rank] = totals[rank].step(seconds, seconds * draw.choice((0.0, 0.3, 0.9)), rank)
            meter.add(rank, totals[rank])
        if draw.random() < 0.15:
            meter.touch()
        window = meter.cut() if number == 11 else meter.close()
        if window is not None:
            yield f"{totals[0].batches} batches: {words(window)}, {window.invalid_reason() or 'valid'}"
        else:
            yield f"{totals[0].batches} batches: {meter.still_missing} are missing"
    options = AutoWorkers(mode=draw.choice(("pecan", "cachew")), window_batches=10, patience_s=9.0)
    papers, ran, sums = begin(options, Room((4.0,), (8.0,)), 1.0, "exactly_once", 1), Deployment(0, 1), StepTotals()
    for _ in range(70):
        papers.meter.add(0, sums)
        step = papers.decide(ran, sums.seconds, draw.choice((0, 0, 0, 2)))
        if step is not None:
            yield f"{sums.batches} batches: {words(step.decision)}"
            if step.decision.target != ran:
                papers.meter.touch()
            ran = step.decision.target
        for _ in range(10):
            sums = sums.step(usual / (1 + ran.remote), usual * draw.choice((0.1, 0.2)), 0)


def calls(draw: Random) -> Iterator[str]:
    """Yield when parties tell others something, and how many messages may be under way."""
    ranks = draw.choice((1, 2, 150, 1000))
    pace, told = ReportPace(ranks), Need()
    delays = []
    for _ in range(6):
        need = Need(*(draw.random() < 0.3 for _ in range(5)))
        waits = pace.others_may_wait(draw.choice((0, 1, 12)), draw.choice((0, 3, 12)))
        delays.append(f"{words(need)} {pace.delay(need, told, draw.random() < 0.6):.4g} s, others wait {waits}")
        told = need
    yield f"reports of {ranks} ranks: {'; '.join(delays)}"
    notices, now, line = NotificationSchedule(), 0.0, []
    for _ in range(6):
        now += power(draw, -4, 1)
        some = draw.sample(range(5), 2)
        notices.changed(some, ranks, now, only_limit_raised=draw.random() < 0.5)
        due = notices.is_due(some[0], draw.choice((0, 2)), draw.choice((2, 3)), now)
        line.append(f"{now:.4g} s {some} {due} {notices.take_due(range(4), now + draw.choice((0.0, 0.01, 9.0)))}")
        notices.mark_sent(some[1])
    yield f"notices: {'; '.join(line)}"
    quota, queued, credits = MessageQuota(100), 0, [words(MessageQuota(100).opened("a", {"a"}.__contains__))]
    for worker in ("a", "b"):
        quota.opened(worker, set("ab" if draw.random() < 0.7 else "").__contains__)
    for _ in range(8):
        queued = max(0, queued + draw.choice((-40, 10, 30)))
        credits.append(words(quota.used(draw.choice("ab"), draw.choice((5, 40)), queued, quota.room(queued))))
        always = draw.choice(((), ("b",)))
        credits.append(words(quota.freed(set("ab" if quota.room(queued) else always).__contains__)))
    yield f"credits: {' '.join(credits)}"
    heartbeat, lot_s, told_at = Heartbeat(draw.choice((9.0, 60.0))), draw.choice((0.5, 30.0)), []
    for second in range(120):
        if draw.random() < 0.1:
            heartbeat.requested_at = float(second)
        if heartbeat.due(second, lot_s):
            heartbeat.reported_at = float(second)
            told_at.append(second)
    yield f"a worker tells at {told_at}"
    waits_log, said = WaitLog(5.0), []
    for second in range(0, 60, 2):
        texts: dict[Hashable, str] = {
            key: f"for {draw.choice((1, 2))} {key} since {{seconds}}" for key in "ab" if draw.random() < 0.8
        }
        said += [f"{second} s {text}" for text in waits_log.look(second, texts)]
    yield f"waits: {said}, {waits_log.active_messages}, {waits_log.due}"


def shares(draw: Random) -> Iterator[str]:
    """Yield which rows and elements workers and ranks get."""
    begin = draw.choice((0, 8, 16))
    passed = [(begin, begin + 8)] if draw.random() < 0.5 else []
    fresh = begin + draw.choice((8, 20, 40))
    rows = RowsToGive(passed, fresh, fresh + draw.choice((0, 8, 64)), fresh + 64, draw.choice((0, 0, begin + 4)))
    own = OwnRanks(frozenset({0, 1}), frozenset(draw.choice(((), (2,), (2, 3)))), 4, 4, ahead=draw.choice((8, 32)))
    yield f"{words(rows)}: {words(run_begin(rows, draw.choice((own, own, None))))} of {words(own)}"
    ranks, size = draw.choice((2, 3, 5)), draw.choice((1, 2, 4))
    last = LastRound(begin, draw.randint(0, (ranks - 1) * size + 1), ranks, size)
    numbers = [last.number(row) for row in range(begin + last.rows)]
    yield f"{words(last)}: {numbers} of {[last.share_of(one) for one in numbers]}, {[*map(last.run_end, numbers)]}"
    waiting, workers, batch = draw.choice((90, 10_000)), draw.choice((1, 4, 16)), draw.choice((1, 32, 100))
    got = draw.choice((0, 99, 1330))
    side = SideBySide(draw.choice((4, 10)), draw.randrange(4), workers)
    for elements in (None, 50, 5000):
        yield f"of {waiting} for {workers}: {lot(waiting, workers, batch, got)}, beside others " + words(
            interleave_size(side, draw.choice((1, 10, 100)), elements, batch)
        )
    spans = ((2 << OUTPUT_BITS, (5 << OUTPUT_BITS) + 7), (draw.choice((6, 9)) << OUTPUT_BITS, 1 << 62))
    lease = Lease(0, Split(0, elements=draw.choice((8, 12))), spans)
    yield f"{elements_in(lease)} elements: {words(cut(lease, draw.randrange(elements_in(lease) or 1)))}"


def deals(draw: Random) -> Iterator[str]:
    """Yield how many workers a job may have beside others that bid for the same nodes."""
    sharing, now, nodes = Sharing(), 0.0, ("n1", "n2")

    def bid(job: str) -> PoolBid:
        gains = tuple(sorted((power(draw, 0, 2) for _ in range(draw.randint(0, 6))), reverse=True))
        wanted = Demand(job, gains, draw.randint(0, 3), draw.randint(0, 1), draw.choice((1.0, 2.0)))
        return PoolBid(draw.choice(("local", "remote")), draw.choice((nodes, nodes, ("n1",))), wanted)

    for _ in range(6):
        now += draw.choice((5.0, 5.0, STALE_S))
        bids = [bid(job) for job in draw.sample("abc", draw.randint(0, 2))]
        sharing.handle_update(bids, {"remote": nodes}, dict.fromkeys(nodes, 4.0), now)
        gone = draw.sample("abc", draw.choice((0, 0, 1)))
        sharing.forget(gone)
        mine = bid("mine")
        yield f"{now:.0f} s: {words(bids)}, {gone} have ended; of {words(mine)}: {words(sharing.shares([mine]))}"


def quotas(draw: Random) -> Iterator[str]:
    """Yield what the jobs of a cluster may read and keep, as they come, tell and go."""
    book, now = ClusterIoRegistry(), 0.0
    for _ in range(14):
        now += draw.choice((0.1, 1.0, 1.0, SILENT_S / 2))
        name = f"job-{draw.randrange(4)}"
        if draw.random() < 0.15:
            yield f"{now:.1f} s: {name} goes: {book.remove(name)}"
            continue
        policies: tuple[SharingPolicy | None, ...] = (None, "greedy", "sjf", "max_min")
        about = JobIo(
            name,
            draw.choice((None, PIPE, PIPE)),
            draw.choice((None, CACHE)),
            draw.choice(policies),
            draw.choice((0, CACHE)),
            (f"s3://{draw.choice('ab')}",),
            draw.choice((None, 500.0 * MIB, 2000.0 * MIB, 1e12, math.nan)),
            draw.random() < 0.3,
            draw.choice((None, 20e6, 80e6, 83e6, 200e6, -1.0)),
            draw.choice((0.0, 0.5, 0.51, 1.0)),
            pool_nodes=draw.choice((1, 1, 10)),
        )
        known = "news" if book.update(about, now) else "nothing new"
        told = {one: book.quota(one, now) for one in book.jobs}
        yield f"{now:.1f} s: {known} of {words(about)}; {words(told)}; silent {book.timed_out(now)} {book.last_error}"
    again = ClusterIoRegistry()
    assert again.replay(book.written().splitlines(), now) == 0 and again.jobs == book.jobs


def hindrances(draw: Random) -> Iterator[str]:
    """Yield what a trainer does that cannot register."""
    rejected = (StaleJobError("it ends"), RankTakenError("rank 1"), JournalError("damaged"))
    hows: tuple[Literal["taken", "restarting", "unstarted", "gone"], ...] = ("taken", "restarting", "unstarted", "gone")
    silent = (NoResponse(how, "no module x") for how in hows)
    hindrances_met: list[Rejected | NoResponse] = [*map(Rejected, rejected), *silent]
    for world_size, after_s in product((1, 2), (0.1, 8.0, 8.1, 60.0, 60.1)):
        registration = Registration("resnet", world_size, 100.0)
        for hindrance in hindrances_met:
            step = registration.decide(hindrance, 100.0 + after_s)
            yield f"{words(hindrance)}, {world_size} ranks, {after_s} s: {words(step)}"


def looks(draw: Random) -> Iterator[str]:
    """Yield what AutoPlacement sees of trainers and workers, and for how many workers there is room."""
    trainers = draw.choice((1, 2))
    sampler = JobSampler(trainers, draw.choice((None, 10)), draw.choice((None, 0.02)))
    table, asked = WorkerTable("job"), Deployment(draw.randint(1, 4), draw.randint(0, 2))
    table.hosts = dict.fromkeys(("n0", "n1")[:trainers], draw.choice((4.0, 8.0)))
    table.scale(asked, 0.0)
    told = [TrainerProgress(elapsed_s=10.0)] * trainers
    for _ in range(5):
        dt = draw.choice((0.1, 0.6, 1.0))
        for worker in table.workers.values():
            before, at_work = worker.own_progress, dt * draw.random()
            worker.running = worker.running or draw.random() < 0.8
            worker.place = replace(worker.place, price=draw.choice((None, 0.4)))
            worker.delivered = DeliveredTotals(5, 50, 40)
            stages = StageSeconds(dt, 2 * dt, at_work * draw.choice((0.1, 1.5)), blocked_s=dt - at_work)
            rows = before.elements + draw.choice((0, 10, 20))
            worker.own_progress = WorkerProgress(rows, stages=before.stages + stages)
        for rank, one in enumerate(told):
            elapsed_s, in_line_s = one.elapsed_s + dt, draw.choice((None, 0.1 * one.elapsed_s))
            host = HostUse(draw.choice((None, 3.0)), draw.choice((None, 2 << 30)), 0.5 * elapsed_s, in_line_s)
            waited, batches = one.waited_s + dt * draw.choice((0.0, 0.2, 0.9)), one.yielded + draw.choice((0, 2))
            told[rank] = TrainerProgress(batches, 10 * batches, waited, elapsed_s, host=host)
        seen = told if draw.random() < 0.9 else told[:-1]
        yield words(sampler.look(seen, table, asked))
        sampler.started(draw.choice((3.0, 30.0)))
        room, cpus = sampler.room(told, table, draw.choice((1.0, 2.0))), available_cpus(told, table)
        yield f"room for {room} on {cpus:g} CPUs, of which trainers use {sampler.trainer_cpus():.3g}"


def orders(draw: Random) -> Iterator[str]:
    """Yield in which order rows come, and why."""
    rows, lines = PecanPipeline(Arrays(x=np.arange(10)), name="rows"), PecanPipeline(TextLines("x.txt"), name="lines")
    filtered = rows.filter(bool, on="x")
    pipes = {
        "batches": rows.batch(4),
        "repeated": filtered.batch(4).repeat(2),
        "lines": lines,
        "filtered": filtered,
        "mapped batches": filtered.batch(4).map(dict),
        "padded": filtered.padded_batch(4),
        "several of each": rows.flat_map(list),
        "batches of several": rows.flat_map(list).batch(2).map(dict),
        "kept": rows.autocache(),
        "shuffled": rows.shuffle(5).batch(4),
        "the first": rows.shuffle(5).take(3),
        "mixed": rows.batch(4).mix(rows.batch(4), weights=[1, 1]),
    }
    one, two = Workers(1), Workers(2)
    options = {
        "one worker": IterOptions(workers=one),
        "two": IterOptions(workers=two),
        "auto": IterOptions(workers=AutoWorkers()),
        "relaxed": IterOptions(workers=one, order="relaxed"),
        "strict": IterOptions(workers=two, order="strict"),
        "static": IterOptions(workers=one, sharding="static"),
        "skip": IterOptions(workers=two, on_error="skip"),
        "at most once": IterOptions(workers=two, visitation="at_most_once"),
        "two ranks": IterOptions(workers=one, world_size=2),
        "rounds": IterOptions(workers=one, world_size=2, coordinated=True),
    }
    for (name, pipe), (kind, option) in product(pipes.items(), options.items()):
        found = row_order(option, plan_shape(pipe.plan))
        yield f"{name}, {kind}: {'in order' if found.kept else 'in any'}: {found.why}"
        if draw.random() < 0.2:
            scaled = row_order(option, plan_shape(pipe.plan), workers=2)
            given_up = row_order(option, plan_shape(pipe.plan), given_up="a split was longer")
            yield f"- scaled: {words(scaled)}; given up: {words(given_up)}"


ONCE = (hindrances, orders)
"""Kinds of one case, which has everything."""
KINDS = (what_holds_up, locks, paces, reasons, silences, windows, calls, shares, deals, quotas, looks, *ONCE)


def paragraphs(kind: Callable[[Random], Iterator[str]]) -> list[str]:
    """Return the cases of a kind."""
    names = [f"{kind.__name__} {number}" for number in range(1 if kind in ONCE else CASES)]
    return ["\n".join((name, *kind(Random(name)))) for name in names]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_decided_and_said_is_what_is_written_down(kind: Callable[[Random], Iterator[str]]) -> None:
    written = WRITTEN.read_text().strip().split("\n\n")
    assert paragraphs(kind) == [one for one in written if one.startswith(f"{kind.__name__} ")]


if __name__ == "__main__":
    WRITTEN.write_text("\n\n".join(one for kind in KINDS for one in paragraphs(kind)) + "\n")
