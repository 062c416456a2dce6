"""Scenarios drawn at random from a seed: most small, so that every corner is met, and some large."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

from pecan_ray.options import OnError
from pecan_ray.plan.grouping import Tail
from tests.protocol.scenario import BAD, DEADLY, HANGING, Fault, FaultKind, Scenario, SplitModel

MIB = 1 << 20
FAULTS: dict[FaultKind, int] = {
    "kill worker": 6,
    "kill node": 2,
    "freeze worker": 4,
    "slow worker": 2,
    "break stream": 4,
    "freeze trainer": 3,
    "slow trainer": 3,
    "kill trainer": 1,
    "scale": 5,
    "ask room": 1,
    "change plan": 1,
    "fail": 1,
}
"""Kinds of faults, and how often each is drawn."""
LARGE_EVERY = 600
"""One of so many histories has many parties."""
FAULTLESS_SHARE = 0.35


@dataclass(frozen=True)
class Change:
    """Happens to some of the scenarios that may have it, by draws of its own: the others stay as they were."""

    name: str
    share: float | None
    """Of those that may have it; None: all."""
    produced: Callable[[Random, Scenario], Scenario]
    possible: Callable[[Scenario], object] = lambda scenario: True

    def apply(self, scenario: Scenario, hurt_controller: bool) -> Scenario:
        """Return the scenario with the change, or as it was."""
        random, share = Random(f"{self.name} {scenario.seed}"), self.share
        if hurt_controller and self.produced in (KILLED, FROZEN):
            share = 1.0
        happens = self.possible(scenario) and (share is None or random.random() <= share)
        return self.produced(random, scenario) if happens else scenario


def draw(seed: int, *, hurt_controller: bool = False) -> Scenario:
    """Return the scenario of a seed; `hurt_controller`: one in which the controller is killed, and stands still."""
    random = Random(seed)
    scenario = _parties(random, _options(random, _data(random, Scenario(seed=seed, sources=_sources(random)))))
    if random.randrange(LARGE_EVERY) == 0:
        scenario = _large(random, scenario)
    for change in CHANGES_OF_DATA:
        scenario = change.apply(scenario, hurt_controller)
    scenario = replace(scenario, faults=_faults(random, scenario))
    for change in CHANGES:
        scenario = change.apply(scenario, hurt_controller)
    return scenario


# --- changes ------------------------------------------------------------------------------------------------


def _with_faults(scenario: Scenario, faults: Iterable[Fault]) -> Scenario:
    return replace(scenario, faults=tuple(sorted([*scenario.faults, *faults], key=lambda fault: fault.at)))


def _some_faults(
    random: Random,
    kinds: tuple[FaultKind, ...],
    seconds: tuple[float, ...],
    within: tuple[float, float] = (0.0, 20.0),
    counts: tuple[int, ...] = (1, 1, 2, 4),
) -> list[Fault]:
    """Draw a few faults of some kinds."""
    return [
        Fault(
            random.uniform(*within),
            _one_of(random, kinds),
            random.randrange(1000),
            random.choice(seconds),
        )
        for _ in range(random.choice(counts))
    ]


def _rarely_bad(random: Random, scenario: Scenario) -> Scenario:
    """A quarter of the elements is bad, of whatever is read, and workers read ahead of their batches."""
    sources = tuple(
        tuple(SplitModel(_at_most_a_quarter_bad(split.outputs * 4)) for split in source) for source in scenario.sources
    )
    return replace(scenario, sources=sources, error_budget=0.25, window=random.choice((1, 4, 16, 64)))


def _at_most_a_quarter_bad(outputs: Iterable[int]) -> tuple[int, ...]:
    kept: list[int] = []
    for output in outputs:
        kept.append(1 if 4 * (kept.count(BAD) + 1) > len(kept) + 1 else output)
    return tuple(kept)


def _in_order(random: Random, scenario: Scenario) -> Scenario:
    """Batches are one sequence."""
    return replace(scenario, in_order=True, sources=scenario.sources[:1], shuffled=False)


def _can_have_rounds(scenario: Scenario) -> bool:
    dealt = scenario.sharding == "dynamic" and scenario.visitation != "zero_or_more"
    return scenario.ranks > 1 and dealt and not scenario.one_sequence


def _can_have_groups(scenario: Scenario) -> bool:
    return not (scenario.buckets or scenario.one_sequence) and scenario.sharding != "off"


def _grouped(random: Random, scenario: Scenario) -> Scenario:
    """Batches are of one bucket each."""
    tails: tuple[Tail, ...] = ("drop",) if scenario.drop_remainder else ("keep", "merge")
    return replace(scenario, buckets=random.choice((1, 2, 3, 5)), tail=random.choice(tails))


def _fatal(random: Random, scenario: Scenario, kind: int) -> Scenario:
    """Put elements into a scenario whose workers are lost."""
    places = [
        (branch, index, element)
        for branch, splits in enumerate(scenario.sources)
        for index, split in enumerate(splits)
        for element in range(split.readable)
    ]
    if not places:
        return scenario
    sources = [list(splits) for splits in scenario.sources]
    for branch, index, element in random.choices(places, k=random.choice((1, 1, 2))):
        split = sources[branch][index]
        outputs = (*split.outputs[:element], kind, *split.outputs[element + 1 :])
        sources[branch][index] = replace(split, outputs=outputs)
    on_error: OnError = "raise" if random.random() < 0.2 else "skip"
    return replace(scenario, sources=tuple(tuple(splits) for splits in sources), on_error=on_error)


def _hanging(random: Random, scenario: Scenario) -> Scenario:
    """Nobody comes to the end of an element, or workers hang at whatever they do."""
    scenario = replace(scenario, names_element=random.random() < 0.7)
    if random.random() > 0.05 or scenario.absent:
        return scenario
    if random.random() < 0.5:
        return _fatal(random, scenario, HANGING)
    return _with_faults(scenario, _some_faults(random, ("hang worker",), (5.0, 25.0, math.inf)))


def _hurt_controller(random: Random, scenario: Scenario, kind: FaultKind, seconds: tuple[float, ...]) -> Scenario:
    """Let something happen to the controller, once or several times."""
    last = max([1.0, *(fault.at for fault in scenario.faults)])
    count = random.choice((1, 1, 2, 4))
    more = [Fault(random.uniform(0.0, 1.5 * last), kind, 0, random.choice(seconds)) for _ in range(count)]
    return _with_faults(scenario, more)


def _rivals(random: Random, scenario: Scenario) -> Scenario:
    """Other jobs bid for the nodes; AutoPlacement places the workers of most of these."""
    scenario = replace(scenario, rivals=random.choice((1, 1, 2, 4)), auto=random.random() < 0.8)
    if scenario.take is not None or scenario.stop_after is not None or random.random() < 0.5:
        return scenario
    # So much work for so fast a trainer that several workers are wanted.
    source = tuple(SplitModel((1,) * random.randint(5, 9)) for _ in range(random.choice((10, 30))))
    steps = (0.001,) * scenario.ranks
    batch_size = min(scenario.batch_size, 4)
    return replace(scenario, sources=(source,), epochs=5, batch_size=batch_size, element_s=0.02, steps_s=steps)


def _unseen(random: Random, scenario: Scenario) -> Scenario:
    """Remote workers do not see all files; there are workers that do."""
    faults = tuple(fault for fault in scenario.faults if fault.kind != "scale")  # which may let go all that see
    return replace(scenario, unseen=random.choice((0.1, 0.5, 1.0)), faults=faults)


def _can_lack_files(scenario: Scenario) -> bool:
    ordered = scenario.one_sequence or scenario.sharding != "dynamic" or scenario.coordinated
    return not (ordered or scenario.auto) and scenario.local > 0 and scenario.remote > 0


def _announced(random: Random, scenario: Scenario) -> Scenario:
    """The ends of workers or of their nodes are announced; in half of these histories nothing else happens."""
    if random.random() >= 0.5:
        scenario = replace(scenario, faults=())
    kinds: tuple[FaultKind, ...] = ("announce node", "announce node", "announce worker")
    faults = _some_faults(random, kinds, (0.5, 5.0, 30.0, 120.0, math.inf))
    remote = scenario.remote if random.random() < 0.3 else random.choice((1, 2, 3))
    return replace(_with_faults(scenario, faults), remote=remote)


def _left(random: Random, scenario: Scenario) -> Scenario:
    """Training loops leave epochs before their ends."""
    return replace(scenario, left=random.choice((0.3, 0.7, 1.0)), left_apart=random.random() < 0.4)


def _numbered(random: Random, scenario: Scenario) -> Scenario:
    """Rows come in order."""
    known = random.random() > 0.05  # else the order is given up with the first split
    joined = not scenario.counted or (scenario.ranks == 1 and Random(f"joined {scenario.seed}").random() < 0.3)
    bad = scenario.torn or any(BAD in split.outputs for split in scenario.splits)
    skips = bad or (joined and Random(f"skips {scenario.seed}").random() < 0.5)
    estimated = joined and known and Random(f"estimated {scenario.seed}").random() < 0.3
    scenario = replace(scenario, numbered=True, joined=joined, lengths_known=known and not estimated)
    ends_runs = joined and Random(f"ends runs {scenario.seed}").random() < 0.6
    whole = joined and not ends_runs and Random(f"whole batches {scenario.seed}").random() < 0.5
    scenario = replace(scenario, estimated=estimated, ends_runs=ends_runs, whole_batches=whole)
    if not skips:
        scenario = replace(scenario, on_error="raise", unseen=0.0 if joined else scenario.unseen)
    elif scenario.on_error == "raise":
        scenario = replace(scenario, on_error="skip")
    if scenario.one_row_each and Random(f"wrong {scenario.seed}").random() < 0.2:
        scenario = replace(scenario, wrong_by=Random(f"wrong by {scenario.seed}").choice((-2, -1, 1, 3)))
    scenario = replace(scenario, promised=known and not scenario.unseen and random.random() < 0.4)
    scenario = _with_slow_heads(random, scenario) if random.random() < 0.3 else scenario
    packed = Random(f"packed {scenario.seed}")
    return _packed(packed, scenario) if estimated and packed.random() < 0.5 else scenario


def _packed(random: Random, scenario: Scenario) -> Scenario:
    """Some files are compressed: one worker reads all of each, which may be more than a trainer has room for."""
    scenario = replace(scenario, whole=random.choice((0.5, 1.0, 1.0)))
    if not scenario.plain or random.random() < 0.4:
        return scenario
    source = tuple(SplitModel((1,) * random.randint(0, 60)) for _ in range(random.choice((3, 8))))
    room = random.choice((1, 5000, 20_000, 1 << 26))
    batch_size = min(8, scenario.batch_size)
    return replace(scenario, sources=(source,), prefetch_bytes=room, row_bytes=1000, batch_size=batch_size)


def _on_several_nodes(random: Random, scenario: Scenario) -> Scenario:
    """Ranks run on several nodes, and so do local workers."""
    ranks_on_host = random.choice((1, 2)) if scenario.ranks > 2 else 1
    local = random.choice((0, 1, 2, 4)) + -(-scenario.ranks // ranks_on_host)
    return replace(scenario, ranks_on_host=ranks_on_host, local=local, auto=False)


def _can_be_numbered(scenario: Scenario) -> bool:
    alone = len(scenario.sources) == 1 and not (scenario.one_sequence or scenario.shuffled)
    alone = alone and scenario.tail is None
    dealt_once = scenario.sharding == "dynamic" and scenario.visitation == "exactly_once"
    # Rows of several ranks are not joined.
    return alone and dealt_once and (scenario.ranks == 1 or (scenario.counted and not scenario.coordinated))


def _with_slow_heads(random: Random, scenario: Scenario) -> Scenario:
    """Let workers stand still, or become slow, while others would go on: those are given the rows that all wait for."""
    source = tuple(SplitModel((1,) * random.randint(1, 9)) for _ in range(random.choice((10, 30))))
    kinds: tuple[FaultKind, ...] = ("freeze worker", "slow worker", "break stream", "kill worker")
    faults = _some_faults(random, kinds, (3.0, 10.0, 30.0), within=(1.0, 10.0), counts=(1, 2, 4))
    scenario = replace(
        scenario,
        sources=(source,) if scenario.plain else scenario.sources,
        local=random.choice((2, 3)),
        remote=max(1, scenario.remote),
        auto=False,
        batch_size=min(4, scenario.batch_size),
        element_s=0.02,
        steps_s=(0.001,),
    )
    return _with_faults(scenario, faults)


def _choose(**options: tuple[Any, ...]) -> Callable[[Random, Scenario], Scenario]:
    """Return what draws a value for each of some options."""

    def chosen(random: Random, scenario: Scenario) -> Scenario:
        return replace(scenario, **{name: _one_of(random, values) for name, values in options.items()})

    return chosen


def _one_of(random: Random, values: Sequence[Any]) -> Any:
    return random.choice(values) if len(values) > 1 else values[0]


def _all_are_there(scenario: Scenario) -> bool:
    return not scenario.absent


CHANGES_OF_DATA = (
    Change("budget", 0.6, _rarely_bad, lambda one: any(BAD in split.outputs for split in one.splits)),
    Change("in order", 0.12, _in_order, lambda one: not one.serial and one.sharding != "off"),
    Change("coordinated", 0.3, _choose(buckets=(1, 2, 3, 5)), _can_have_rounds),
    Change("grouped", 0.15, _grouped, _can_have_groups),
)
"""Before faults are drawn;"""
KILLED = partial(_hurt_controller, kind="kill controller", seconds=(0.1, 1.0, 3.0))
FROZEN = partial(_hurt_controller, kind="freeze controller", seconds=(0.5, 5.0, 20.0, 90.0))
CHANGES = (
    Change("deadly", 0.06, partial(_fatal, kind=DEADLY)),
    Change("hanging", None, _hanging),
    Change("restart", 0.08, KILLED, _all_are_there),
    Change("frozen controller", 0.08, FROZEN, _all_are_there),
    Change("rivals", 0.05, _rivals, lambda one: one.ranks <= 4),
    Change("streams", None, _choose(streams=(1, 2, 3, 10)), lambda one: one.shuffled and not one.one_sequence),
    Change("at hand", 0.15, _choose(local_splits=(0.0, 0.2, 0.5, 1.0)), lambda one: one.shuffled),
    Change("unseen", 0.2, _unseen, _can_lack_files),
    Change("announced", 0.06, _announced, _all_are_there),
    Change("lengths", 0.5, _choose(lengths_known=(True,))),
    Change("unknown", 0.4, _choose(processes_unknown=(True,))),
    Change("left", 0.15, _left),
    Change("numbered", 0.7, _numbered, _can_be_numbered),
    Change("kept", 0.4, _choose(on_error=("quarantine",)), lambda one: one.on_error == "skip"),
    Change("several nodes", 0.6, _on_several_nodes, lambda one: one.numbered and 1 < one.ranks <= 4),
    Change("ends behind", 0.5, _choose(reads_ahead=(False,)), lambda one: not one.lengths_known),
)
"""and after that, in this order."""


# --- data ---------------------------------------------------------------------------------------------------


def _sources(random: Random) -> tuple[tuple[SplitModel, ...], ...]:
    branches = 1 if random.random() < 0.8 else random.randint(2, 3)
    kind = random.choices(("plain", "filtered", "spread", "bad", "nothing kept"), (10, 3, 3, 3, 1))[0]
    return tuple(_source(random, kind) for _ in range(branches))


def _source(random: Random, kind: str) -> tuple[SplitModel, ...]:
    splits = random.choice((0, 1, 2, 3, 5, 8, 12))
    most = random.choice((0, 1, 2, 5, 9))
    return tuple(_split(random, kind, random.randint(min(1, most), most)) for _ in range(splits))


def _split(random: Random, kind: str, elements: int) -> SplitModel:
    if kind == "plain":
        return SplitModel((1,) * elements)
    if kind == "nothing kept":
        return SplitModel((0,) * elements)
    choices = {"filtered": (0, 1), "spread": (0, 1, 2, 3), "bad": (1, 1, 1, BAD)}[kind]
    outputs = tuple(random.choice(choices) for _ in range(elements))
    torn = random.randint(0, elements) if kind == "bad" and random.random() < 0.2 else None
    return SplitModel(outputs, torn)


def _data(random: Random, scenario: Scenario) -> Scenario:
    batch_size = random.choice((1, 1, 2, 3, 4, 8, 64))
    serial = random.random() < 0.15
    return replace(
        scenario,
        epochs=random.choices((1, 2, 3, 5, None), (4, 4, 3, 1, 1))[0],
        num_passes=1 if serial or random.random() < 0.8 else random.randint(2, 3),
        batch_size=batch_size,
        drop_remainder=random.random() < 0.3,
        shuffled=random.random() < 0.4,
        serial=serial,
        take=random.randint(0, 20) if serial and random.random() < 0.5 else None,
        sharding=random.choices(("dynamic", "static", "off"), (8, 1, 1))[0],
        visitation=random.choices(("exactly_once", "at_most_once", "zero_or_more"), (7, 2, 1))[0],
        row_bytes=random.choice((1, 1000, 40_000, MIB)),
    )


def _options(random: Random, scenario: Scenario) -> Scenario:
    slow = random.random() < 0.2
    return replace(
        scenario,
        prefetch_bytes=random.choice((1, 1, 5000, 100_000, 3 * MIB, 64 * MIB)),
        outbox=random.choice((1, 1, 2, 3, 8, 64)),
        window=random.choice((1, 1, 2, 4)),
        apart=random.random() < 0.5,
        page=random.choice((1, 2, 100)),
        page_s=random.choice((0.0, 0.02, 1.0)) if not slow else 8.0,
        delay_s=random.choice((0.0005, 0.005, 0.005, 0.1)),
        lost=random.choice((0.0, 0.0, 0.02, 0.2)),
        doubled=random.choice((0.0, 0.0, 0.05, 0.3)),
        order_s=None if random.random() < 0.9 else random.choice((0.1, 2.0, 9.0)),
    )


# --- parties ------------------------------------------------------------------------------------------------


def _parties(random: Random, scenario: Scenario) -> Scenario:
    ranks = random.choices((1, 2, 3, 4), (3, 4, 2, 1))[0]
    local, remote = random.choice(((1, 0), (1, 0), (2, 0), (2, 1), (0, 1), (0, 2), (4, 0), (1, 3)))
    step_s = random.choice((0.0, 0.001, 0.02, 0.2))
    endless = scenario.epochs is None
    return replace(
        scenario,
        ranks=ranks,
        local=local,
        remote=remote,
        auto=random.random() < 0.04,
        cpus=random.choice((1, 2, 4)),
        placing_s=0.0 if random.random() < 0.9 else random.choice((2.0, 20.0)),
        element_s=random.choice((0.0001, 0.002, 0.02)),
        steps_s=tuple(step_s * random.choice((1, 1, 1, 5, 20)) for _ in range(ranks)),
        late_s=0.0 if random.random() < 0.7 else random.choice((0.3, 8.0)),
        absent=ranks > 1 and random.random() < 0.01,
        stop_after=random.randint(1, 30) if endless or random.random() < 0.02 else None,
        error_budget=1.0 if random.random() < 0.95 else 0.0,
    )


def _large(random: Random, scenario: Scenario) -> Scenario:
    splits = random.choice((50, 300))
    source = tuple(SplitModel((1,) * random.randint(0, 9)) for _ in range(splits))
    ranks = random.choice((8, 30, 64, 65, 200))
    return replace(
        scenario,
        sources=(source, *scenario.sources[1:]),
        ranks=ranks,
        epochs=random.choice((1, 2)),
        stop_after=None,
        page=100,
        page_s=min(scenario.page_s, 1.0),
        batch_size=random.choice((1, 4, 32)),
        local=random.choice((1, 8)),
        remote=random.choice((0, 8)),
        auto=False,
        lost=min(scenario.lost, 0.02),
        element_s=min(scenario.element_s, 0.002),
        steps_s=tuple(0.01 * random.choice((1, 1, 1, 5)) for _ in range(ranks)),
    )


# --- faults -------------------------------------------------------------------------------------------------


def _faults(random: Random, scenario: Scenario) -> tuple[Fault, ...]:
    if random.random() < FAULTLESS_SHARE or scenario.absent:
        return ()
    elements = sum(len(split.outputs) for split in scenario.splits)
    passes = (scenario.epochs or 3) * scenario.num_passes
    workers = max(1, scenario.local + scenario.remote)
    steps = elements * passes / scenario.batch_size / scenario.ranks * max(scenario.steps_s)
    horizon = 1.5 + scenario.late_s + 1.3 * (elements * passes * scenario.element_s / workers + steps)
    several = random.choice((1, 1, 2, 3, 6))
    faults = [
        _fault(random, kind, random.uniform(0.0, min(horizon, 60.0)))
        for kind in random.choices(list(FAULTS), list(FAULTS.values()), k=several)
    ]
    if random.random() < 0.1:
        # One kind, many times: what adds up shows.
        faults += [_fault(random, faults[0].kind, random.uniform(0.0, horizon)) for _ in range(8)]
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _fault(random: Random, kind: FaultKind, at: float) -> Fault:
    if kind == "scale":
        local, remote = random.choice(((1, 0), (2, 0), (0, 1), (1, 2), (3, 3)))
        return Fault(at, kind, 100 * local + remote)
    seconds = {
        "freeze worker": random.choice((0.5, 5.0, 30.0, math.inf)),
        "freeze trainer": random.choice((0.5, 5.0, 20.0, 60.0)),
        "slow worker": random.choice((3.0, 30.0)),
        "slow trainer": random.choice((5.0, 50.0)),
    }.get(kind, math.inf)
    target = random.randrange(1000)
    if kind == "change plan" and target % 2:
        kind = "fail order"  # of one draw with the other, so that other histories stay what they were
    return Fault(at, kind, target, seconds)
