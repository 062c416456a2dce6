"""Scenarios drawn at random from a seed: most small, so that every corner is met, and some large."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from pecan_ray.options import OnError
from tests.protocol.scenario import BAD, DEADLY, FATAL, HANGING, Fault, FaultKind, Scenario, SplitModel

MIB = 1 << 20
FAULTS: tuple[tuple[FaultKind, int], ...] = (
    ("kill worker", 6),
    ("kill node", 2),
    ("freeze worker", 4),
    ("slow worker", 2),
    ("break stream", 4),
    ("freeze trainer", 3),
    ("slow trainer", 3),
    ("kill trainer", 1),
    ("scale", 5),
    ("ask room", 1),
    ("change plan", 1),
    ("fail", 1),
)
"""Kinds of faults, and how often each is drawn."""
LARGE_EVERY = 600
"""One of so many histories has many parties."""

# Shares of histories, of those that may have it:
FAULTLESS_SHARE = 0.35
DEADLY_SHARE = 0.06  # an element kills its worker
HANGING_SHARE = 0.05  # an element never ends
COORDINATED_SHARE = 0.3  # several ranks have rounds
IN_ORDER_SHARE = 0.12  # batches are one sequence
NUMBERED_SHARE = 0.7  # rows of one rank are numbered
JOINED_SHARE = 0.3  # of those that leave no element out, rows are joined to batches all the same
PROMISED_SHARE = 0.4  # of these, the order is never given up
SLOW_HEAD_SHARE = 0.3  # of these, workers stand still or become slow while others go on
SLOW_HEADS: tuple[FaultKind, ...] = ("freeze worker", "slow worker", "break stream", "kill worker")
RESTART_SHARE = 0.08  # the controller is killed
FROZEN_SHARE = 0.08  # the controller stands still
RIVALS_SHARE = 0.05  # other jobs bid for the nodes
AT_HAND_SHARE = 0.15  # workers have some of shuffled splits at hand
UNSEEN_SHARE = 0.2  # workers on other nodes lack some files
ANNOUNCED_SHARE = 0.06  # the ends of workers or nodes are announced
LENGTHS_SHARE = 0.5  # sources tell the lengths of splits
UNKNOWN_SHARE = 0.4  # nobody can tell whether a silent trainer's process exists
LEFT_SHARE = 0.15  # training loops leave epochs before their ends
KEPT_SHARE = 0.4  # trainers keep bad elements, where these end no job


def draw(seed: int, *, hurt_controller: bool = False) -> Scenario:
    """Return the scenario of a seed; `hurt_controller`: one in which the controller is killed, and stands still."""
    random = Random(seed)
    scenario = Scenario(seed=seed, sources=_sources(random))
    scenario = _data(random, scenario)
    scenario = _options(random, scenario)
    scenario = _parties(random, scenario)
    if random.randrange(LARGE_EVERY) == 0:
        scenario = _large(random, scenario)
    scenario = _coordinated(seed, _in_order(seed, scenario))
    scenario = _with_deadly(seed, replace(scenario, faults=_faults(random, scenario)))
    scenario = _with_hanging(seed, scenario)
    scenario = _with_restarts(seed, scenario, 1.0 if hurt_controller else RESTART_SHARE)
    scenario = _with_frozen_controller(seed, scenario, 1.0 if hurt_controller else FROZEN_SHARE)
    scenario = _with_rivals(seed, scenario)
    scenario = _with_announced(seed, _with_unseen(seed, _with_at_hand(seed, _with_streams(seed, scenario))))
    scenario = replace(scenario, lengths_known=Random(f"lengths {seed}").random() < LENGTHS_SHARE)
    scenario = replace(scenario, processes_unknown=Random(f"unknown {seed}").random() < UNKNOWN_SHARE)
    scenario = _numbered(seed, _left(seed, scenario))
    kept = scenario.on_error == "skip" and Random(f"kept {seed}").random() < KEPT_SHARE
    return replace(scenario, on_error="quarantine") if kept else scenario


def _left(seed: int, scenario: Scenario) -> Scenario:
    """Let the training loops of some leave epochs, by draws of their own: the others stay as they were."""
    random = Random(f"left {seed}")
    if random.random() > LEFT_SHARE:
        return scenario
    return replace(scenario, left=random.choice((0.3, 0.7, 1.0)), left_apart=random.random() < 0.4)


def _in_order(seed: int, scenario: Scenario) -> Scenario:
    """Let some scenarios be one sequence of batches, by draws of their own: the others stay as they were."""
    if scenario.serial or scenario.sharding == "off" or Random(f"in order {seed}").random() > IN_ORDER_SHARE:
        return scenario
    return replace(scenario, in_order=True, sources=scenario.sources[:1], shuffled=False)


def _numbered(seed: int, scenario: Scenario) -> Scenario:
    """Let some scenarios of one rank have numbered rows, by draws of their own: the others stay as they were."""
    random = Random(f"numbered {seed}")
    cut = scenario.ranks == 1 and len(scenario.sources) == 1 and not (scenario.one_sequence or scenario.shuffled)
    plain = all(split.torn is None and set(split.outputs) <= {0, 1, *FATAL} for split in scenario.sources[0])
    promised = scenario.sharding == "dynamic" and scenario.visitation == "exactly_once"
    if not (cut and plain and promised) or random.random() > NUMBERED_SHARE:
        return scenario
    known = random.random() > 0.05  # else the order is given up with the first split
    filtered = any(0 in split.outputs for split in scenario.sources[0])
    joined = filtered or Random(f"joined {seed}").random() < JOINED_SHARE
    scenario = replace(scenario, numbered=True, joined=joined, on_error="raise", lengths_known=known)
    if joined:  # what cannot be read ends the job
        scenario = replace(scenario, unseen=0.0)
    scenario = replace(scenario, promised=known and not scenario.unseen and random.random() < PROMISED_SHARE)
    return _with_slow_heads(random, scenario) if random.random() < SLOW_HEAD_SHARE else scenario


def _with_slow_heads(random: Random, scenario: Scenario) -> Scenario:
    """Let workers stand still, or become slow, while others would go on: those are given the rows that all wait for."""
    source = tuple(SplitModel((1,) * random.randint(1, 9)) for _ in range(random.choice((10, 30))))
    faults = [
        Fault(
            random.uniform(1.0, 10.0),
            random.choice(SLOW_HEADS),
            random.randrange(1000),
            random.choice((3.0, 10.0, 30.0)),
        )
        for _ in range(random.choice((1, 2, 4)))
    ]
    return replace(
        scenario,
        sources=(source,) if scenario.plain else scenario.sources,
        local=random.choice((2, 3)),
        remote=max(1, scenario.remote),
        auto=False,
        batch_size=min(4, scenario.batch_size),
        element_s=0.02,
        steps_s=(0.001,),
        faults=tuple(sorted([*scenario.faults, *faults], key=lambda fault: fault.at)),
    )


def _coordinated(seed: int, scenario: Scenario) -> Scenario:
    """Let some scenarios of several ranks have rounds, by draws of their own: the others stay as they were."""
    random = Random(f"coordinated {seed}")
    cut = scenario.ranks > 1 and scenario.sharding == "dynamic" and not scenario.one_sequence
    if not cut or scenario.visitation == "zero_or_more" or random.random() > COORDINATED_SHARE:
        return scenario
    return replace(scenario, buckets=random.choice((1, 2, 3, 5)))


def _with_deadly(seed: int, scenario: Scenario) -> Scenario:
    """Let a few scenarios have an element that kills workers, by draws of its own: the others stay as they were."""
    random = Random(f"deadly {seed}")
    return scenario if random.random() > DEADLY_SHARE else _with_fatal(random, scenario, DEADLY)


def _with_hanging(seed: int, scenario: Scenario) -> Scenario:
    """Let a few have an element that nobody comes to the end of, or workers that hang at whatever they do."""
    random = Random(f"hanging {seed}")
    scenario = replace(scenario, names_element=random.random() < 0.7)
    if random.random() > HANGING_SHARE or scenario.absent:
        return scenario
    if random.random() < 0.5:
        return _with_fatal(random, scenario, HANGING)
    faults = [
        Fault(random.uniform(0.0, 20.0), "hang worker", random.randrange(1000), random.choice((5.0, 25.0, math.inf)))
        for _ in range(random.choice((1, 1, 2, 4)))
    ]
    return replace(scenario, faults=tuple(sorted([*scenario.faults, *faults], key=lambda fault: fault.at)))


def _with_restarts(seed: int, scenario: Scenario, share: float) -> Scenario:
    """Let the controllers of some be killed, and go on from their journals."""
    random = Random(f"restart {seed}")
    if random.random() > share or scenario.absent:
        return scenario
    return _with_controller(random, scenario, "kill controller", (0.1, 1.0, 3.0))


def _with_frozen_controller(seed: int, scenario: Scenario, share: float) -> Scenario:
    """Let the controllers of some stand still, also for longer than the time after which others are taken for lost."""
    random = Random(f"frozen controller {seed}")
    if random.random() > share or scenario.absent:
        return scenario
    return _with_controller(random, scenario, "freeze controller", (0.5, 5.0, 20.0, 90.0))


def _with_rivals(seed: int, scenario: Scenario) -> Scenario:
    """Let other jobs bid for the nodes of some, most of which place their workers by AutoPlacement."""
    random = Random(f"rivals {seed}")
    if random.random() > RIVALS_SHARE or scenario.ranks > 4:
        return scenario
    scenario = replace(scenario, rivals=random.choice((1, 1, 2, 4)), auto=random.random() < 0.8)
    if scenario.take is not None or scenario.stop_after is not None or random.random() < 0.5:
        return scenario
    # So much work for so fast a trainer that several workers are wanted.
    source = tuple(SplitModel((1,) * random.randint(5, 9)) for _ in range(random.choice((10, 30))))
    steps = (0.001,) * scenario.ranks
    batch_size = min(scenario.batch_size, 4)
    return replace(scenario, sources=(source,), epochs=5, batch_size=batch_size, element_s=0.02, steps_s=steps)


def _with_at_hand(seed: int, scenario: Scenario) -> Scenario:
    """Let workers of some have a part of the splits at hand, which then go first."""
    random = Random(f"at hand {seed}")
    if not scenario.shuffled or random.random() > AT_HAND_SHARE:
        return scenario
    return replace(scenario, at_hand=random.choice((0.0, 0.2, 0.5, 1.0)))


def _with_streams(seed: int, scenario: Scenario) -> Scenario:
    """Let workers of some mix several splits."""
    if not scenario.shuffled or scenario.one_sequence:
        return scenario
    return replace(scenario, streams=Random(f"streams {seed}").choice((1, 2, 3, 10)))


def _with_unseen(seed: int, scenario: Scenario) -> Scenario:
    """Let remote workers of some not see all files; there are workers that do."""
    random = Random(f"unseen {seed}")
    ordered = scenario.one_sequence or scenario.sharding != "dynamic" or scenario.coordinated
    if ordered or scenario.auto or not (scenario.local and scenario.remote) or random.random() > UNSEEN_SHARE:
        return scenario
    faults = tuple(fault for fault in scenario.faults if fault.kind != "scale")  # which may let go all that see
    return replace(scenario, unseen=random.choice((0.1, 0.5, 1.0)), faults=faults)


def _with_announced(seed: int, scenario: Scenario) -> Scenario:
    """Let the ends of some workers or of their nodes be announced; in half of these histories nothing else happens."""
    random = Random(f"announced {seed}")
    if random.random() > ANNOUNCED_SHARE or scenario.absent:
        return scenario
    before = scenario.faults if random.random() < 0.5 else ()
    faults = [
        Fault(
            random.uniform(0.0, 20.0),
            random.choice(("announce node", "announce node", "announce worker")),
            random.randrange(1000),
            random.choice((0.5, 5.0, 30.0, 120.0, math.inf)),
        )
        for _ in range(random.choice((1, 1, 2, 4)))
    ]
    remote = scenario.remote if random.random() < 0.3 else random.choice((1, 2, 3))
    faults = sorted([*before, *faults], key=lambda fault: fault.at)
    return replace(scenario, faults=tuple(faults), remote=remote)


def _with_controller(random: Random, scenario: Scenario, kind: FaultKind, seconds: tuple[float, ...]) -> Scenario:
    """Let something happen to the controller, once or several times."""
    last = max([1.0, *(fault.at for fault in scenario.faults)])
    more = [
        Fault(random.uniform(0.0, 1.5 * last), kind, 0, random.choice(seconds))
        for _ in range(random.choice((1, 1, 2, 4)))
    ]
    return replace(scenario, faults=tuple(sorted([*scenario.faults, *more], key=lambda fault: fault.at)))


def _with_fatal(random: Random, scenario: Scenario, kind: int) -> Scenario:
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
        repetitions=1 if serial or random.random() < 0.8 else random.randint(2, 3),
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
    elements = sum(len(split.outputs) for source in scenario.sources for split in source)
    passes = (scenario.epochs or 3) * scenario.repetitions
    workers = max(1, scenario.local + scenario.remote)
    steps = elements * passes / scenario.batch_size / scenario.ranks * max(scenario.steps_s)
    horizon = 1.5 + scenario.late_s + 1.3 * (elements * passes * scenario.element_s / workers + steps)
    kinds, weights = zip(*FAULTS, strict=True)
    several = random.choice((1, 1, 2, 3, 6))
    faults = [
        _fault(random, kind, random.uniform(0.0, min(horizon, 60.0)))
        for kind in random.choices(kinds, weights, k=several)
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
