"""What the papers report, as far as it concerns placement and scaling.

Sources: the text and tables of Pecan (ATC'24) and Cachew (ATC'22), the dollars printed on the bars of Pecan's Figures
5 and 6, the pictures of reference results in Cachew's artifact (read off, to about 1 %), and the logs in Pecan's.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.reproduction.tables import Status


@dataclass(frozen=True)
class Reported:
    """One bar: an average over five runs."""

    remote: float
    """Remote workers."""
    cost: float
    """$ per epoch."""
    seconds: float
    """Per epoch; from the dollars of the accelerators' host where the text does not say it."""
    local: float | None = None
    """Local workers, where the paper says them."""


CONFIGURATIONS = (
    "Cachew",
    "Cachew + AutoOrder",
    "AutoPlacement",
    "AutoPlacement + AutoOrder",
    "collocated",
    "FastFlow",
)

PECAN: dict[str, dict[str, Reported]] = {
    "resnet50-v2-8": {
        "Cachew": Reported(19, 1.47, 405),
        "Cachew + AutoOrder": Reported(12.4, 1.12, 395),
        "AutoPlacement": Reported(5, 0.83, 415),
        "AutoPlacement + AutoOrder": Reported(1, 0.59, 395, local=9),
        "collocated": Reported(0, 4.55, 3302),
        "FastFlow": Reported(2, 3.39, 2100),
    },
    "simclr": {
        "Cachew": Reported(12, 2.75, 976),
        "Cachew + AutoOrder": Reported(7.7, 1.87, 820),
        "AutoPlacement": Reported(5, 1.85, 925),
        "AutoPlacement + AutoOrder": Reported(1, 1.54, 1025, local=5.4),
        "collocated": Reported(0, 4.16, 3020),
        "FastFlow": Reported(2, 2.39, 1481),
    },
    "retinanet": {
        "Cachew": Reported(2.6, 1.01, 597),
        "Cachew + AutoOrder": Reported(2.6, 1.01, 596),
        "AutoPlacement": Reported(0.2, 0.84, 597),
        "AutoPlacement + AutoOrder": Reported(0, 0.82, 597, local=3.4),
        "collocated": Reported(0, 0.82, 597),
        "FastFlow": Reported(2, 1.13, 702),
    },
    "asr": {
        "Cachew": Reported(4, 1.20, 414),
        "Cachew + AutoOrder": Reported(3.1, 1.14, 409),
        "AutoPlacement": Reported(0, 1.03, 421),
        "AutoPlacement + AutoOrder": Reported(0, 1.02, 416, local=7.4),
        "collocated": Reported(0, 1.61, 660),
        "FastFlow": Reported(2, 1.27, 473),
    },
    "resnet50-v3-8": {
        "Cachew": Reported(30, 1.60, 265),
        "Cachew + AutoOrder": Reported(24.4, 1.29, 244),
        "AutoPlacement": Reported(27.2, 1.38, 244),
        "AutoPlacement + AutoOrder": Reported(17, 1.08, 245, local=9),
        "collocated": Reported(0, 8.38, 3430),
        "FastFlow": Reported(2, 4.88, 1818),
    },
}

FITTED: dict[str, frozenset[tuple[str, str]]] = {
    "resnet50-v2-8": frozenset(
        {
            ("Cachew", "remote"),
            ("Cachew", "seconds"),
            ("Cachew", "cost"),
            ("Cachew + AutoOrder", "remote"),
            ("Cachew + AutoOrder", "cost"),
            ("AutoPlacement", "remote"),
            ("AutoPlacement", "seconds"),
            ("AutoPlacement", "cost"),
            ("AutoPlacement + AutoOrder", "remote"),
            ("AutoPlacement + AutoOrder", "seconds"),
            ("AutoPlacement + AutoOrder", "cost"),
            ("collocated", "seconds"),
            ("collocated", "cost"),
        }
    ),
    "simclr": frozenset(
        {
            ("Cachew", "remote"),
            ("Cachew", "seconds"),
            ("Cachew", "cost"),
            ("Cachew + AutoOrder", "remote"),
            ("Cachew + AutoOrder", "seconds"),
            ("Cachew + AutoOrder", "cost"),
            ("AutoPlacement", "remote"),
            ("collocated", "seconds"),
            ("collocated", "cost"),
        }
    ),
    "retinanet": frozenset({("collocated", "seconds"), ("collocated", "cost")}),
    "asr": frozenset(
        {
            ("Cachew", "remote"),
            ("Cachew + AutoOrder", "remote"),
            ("Cachew + AutoOrder", "seconds"),
            ("Cachew + AutoOrder", "cost"),
            ("collocated", "seconds"),
            ("collocated", "cost"),
        }
    ),
    "resnet50-v3-8": frozenset({("Cachew", "remote"), ("AutoPlacement", "seconds")}),
}
"""What a workload's parameters were fitted to (configuration, quantity)."""


OWN_PACE = "the trainer's own pace, which is fitted, once workers suffice"
FOLLOWS: dict[tuple[str, str, str], str] = {
    ("resnet50-v2-8", "Cachew + AutoOrder", "seconds"): OWN_PACE,
    ("retinanet", "Cachew", "seconds"): OWN_PACE,
    ("retinanet", "Cachew + AutoOrder", "seconds"): OWN_PACE,
    ("retinanet", "Cachew + AutoOrder", "remote"): "AutoOrder changes nothing there, so it is Cachew's row again",
    ("asr", "Cachew", "seconds"): OWN_PACE,
    ("resnet50-v3-8", "Cachew + AutoOrder", "seconds"): OWN_PACE,
    ("resnet50-v3-8", "collocated", "seconds"): "the one local worker of resnet50-v2-8, fitted there",
}
"""Bars that were not fitted to and could hardly have come out otherwise (workload, configuration, quantity): why."""
VARIANT = "the released variant was chosen by these figures"


@dataclass(frozen=True)
class Standing:
    """What a row is, and why."""

    status: Status
    why: str = ""


def standing(name: str, quantity: str, configuration: str) -> Standing:
    """Return what a bar is."""
    if (configuration, quantity) in FITTED[name]:
        return Standing("fitted")
    if configuration.startswith("AutoPlacement"):
        return Standing("chosen", VARIANT)
    if quantity == "cost":
        return Standing("follows", "from the rows of workers and time")
    why = FOLLOWS.get((name, configuration, quantity))
    return Standing("follows", why) if why else Standing("predicted")


def standing_of_ratio(name: str, quantity: str, *configurations: str) -> Standing:
    """Return what a number is that the bars of some configurations give."""
    if all((configuration, quantity) in FITTED[name] for configuration in configurations):
        return Standing("fitted")
    if any(configuration.startswith("AutoPlacement") for configuration in configurations):
        return Standing("chosen", VARIANT)
    return Standing("follows", "from bars above")


REDUCTIONS: dict[tuple[str, str], float] = {
    ("resnet50-v2-8", "AutoPlacement"): 44,
    ("simclr", "AutoPlacement"): 33,
    ("retinanet", "AutoPlacement"): 17,
    ("asr", "AutoPlacement"): 14,
    ("resnet50-v3-8", "AutoPlacement"): 14,
    ("resnet50-v2-8", "AutoPlacement + AutoOrder"): 60,
    ("simclr", "AutoPlacement + AutoOrder"): 44,
    ("resnet50-v2-8", "Cachew + AutoOrder"): 24,
    ("simclr", "Cachew + AutoOrder"): 32,
    ("asr", "Cachew + AutoOrder"): 4,
    ("resnet50-v3-8", "Cachew + AutoOrder"): 19,
}
"""% of Cachew's cost per epoch that is saved (Pecan §6.2 to §6.4)."""

FASTFLOW_SAVED = {"resnet50-v2-8": 76.0, "simclr": 23.0, "retinanet": 27.0, "asr": 19.0, "resnet50-v3-8": 72.0}
"""% of FastFlow's cost per epoch that AutoPlacement saves (Pecan §6.2)."""
WORKER_COST_SAVED = {"resnet50-v2-8": 37.0, "simclr": 48.0, "asr": 17.0, "resnet50-v3-8": 26.0}
"""% of the cost of Cachew's remote workers that AutoOrder saves (Pecan §6.3)."""
FEWER_WORKERS: dict[tuple[str, str], float] = {
    ("resnet50-v2-8", "AutoPlacement"): 74,
    ("simclr", "AutoPlacement"): 58,
    ("resnet50-v3-8", "AutoPlacement"): 9,
    ("resnet50-v3-8", "AutoPlacement + AutoOrder"): 48,
}
"""% fewer remote workers than with Cachew (Pecan §6.2, §6.4)."""
FASTER_THAN_CACHEW: dict[tuple[str, str], float] = {
    ("simclr", "AutoPlacement"): 5.2,
    ("resnet50-v3-8", "AutoPlacement"): 8,
    ("simclr", "AutoPlacement + AutoOrder"): -5,
    ("resnet50-v3-8", "AutoPlacement + AutoOrder"): 7.7,
}
"""% of Cachew's time of an epoch that is saved (Pecan §6.2, §6.4)."""
FASTER_THAN_COLLOCATED = {"simclr": 66.0, "asr": 37.0}
"""% of the collocated time of an epoch that both policies save (Pecan §6.4)."""
REMOTE_SHARE = {"resnet50-v2-8": 62.0, "simclr": 51.0, "asr": 15.0, "resnet50-v3-8": 59.0}
"""% of Cachew's cost of an epoch that remote workers are (Pecan §1, Figure 1)."""
MOST_SAVED = 81.0
"""% of the collocated cost that remote workers save at most, on ResNet50 v3-8 (Pecan §1, Figure 1)."""
AVERAGES = {
    "AutoPlacement saves of what Cachew's remote workers cost": 69.0,
    "AutoPlacement saves of Cachew's cost": 24.0,
    "both policies save of what Cachew's remote workers cost": 87.0,
    "both policies save of the collocated cost": 55.0,
    "remote workers of both policies, of Cachew's": 14.0,
}
"""Means over the five workloads, in % (Pecan's abstract, §6.2 and §8)."""
SOONER_WITH_AUTOORDER = {"resnet50-v2-8": 47.0, "simclr": 15.0, "retinanet": 5.0, "asr": 28.0, "resnet50-v3-8": 32.0}
"""% less time than Cachew needs until input stalls are gone, with AutoOrder (Pecan §6.4)."""
EPOCHS_TO_CONVERGE = 5.0
"""AutoPlacement converges within so many epochs on ResNet50, SimCLR and RetinaNet (Pecan §6.4)."""

TRANSFERRED: dict[tuple[str, str], float] = {
    ("resnet50-v2-8", "AutoPlacement"): 50.5,
    ("simclr", "AutoPlacement"): 46.25,
    ("retinanet", "AutoPlacement"): 94.47,
    ("asr", "AutoPlacement"): 100,
    ("resnet50-v3-8", "AutoPlacement"): 22.1,
    ("resnet50-v2-8", "AutoPlacement + AutoOrder"): 92.64,
    ("simclr", "AutoPlacement + AutoOrder"): 72.54,
    ("retinanet", "AutoPlacement + AutoOrder"): 100,
    ("asr", "AutoPlacement + AutoOrder"): 100,
    ("resnet50-v3-8", "AutoPlacement + AutoOrder"): 38.61,
}
"""% less data over the network than with Cachew (Pecan Table 2)."""

TABLE4: dict[tuple[float, int], tuple[float, float]] = {
    (0.01, 100): (0.89, 0.96),
    (0.01, 500): (0.59, 3.48),
    (0.01, 1000): (0.61, 5.01),
    (0.03, 100): (0.78, 1.05),
    (0.03, 500): (0.59, 3.34),
    (0.03, 1000): (0.64, 4.75),
    (0.07, 100): (0.73, 0.87),
    (0.07, 500): (0.66, 2.95),
    (0.07, 1000): (0.59, 4.69),
}
"""By T and X: $ per epoch, $ to converge (Pecan Table 4)."""

FIGURE7 = {
    "remote after the first climb": 12.0,
    "local after the first addition": 5.0,
    "remote after the first removal": 8.0,
    "local in the end": 8.0,
    "remote in the end": 0.0,
}
"""Pecan §6.4, policy execution timeline."""

CACHEW_6A = {
    "1": {1: 1730, 2: 873, 3: 645, 4: 552, 5: 512, 6: 502, 7: 493, 8: 493},
    "2": {1: 1436, 2: 697, 3: 430, 4: 388, 5: 392, 6: 390},
}
"""Seconds per epoch by number of workers: the two reference results of Cachew's artifact for Figure 6a."""
CACHEW_CHOICE = 4.0
"""Workers that Cachew chooses, give or take one (Cachew §A.5.2)."""
HPA_CHOICE = 1.0
"""Workers that the Horizontal Pod Autoscaler chooses, rarely 2 (Cachew §A.5.2)."""
CACHEW_TIME_RATIO = 4.1
"""Training time with Kubernetes' choice over that with Cachew's (Cachew §6.5.1, Figure 10)."""
CACHEW_COST_RATIO = 3.8
"""Cost of a training with Kubernetes' choice over that with Cachew's (Cachew §6.5.1, Figure 10)."""
CACHEW_SIMCLR_SAVING = (12.0, 20.0)
"""% of the cost with Kubernetes' choice that Cachew saves on SimCLR (§6.5.1)."""
CACHEW_11 = {"job 1": (2.0, 253.0), "job 2": (4.0, 129.0)}
"""Cachew §A.5.2 on Figure 11: workers and seconds of an epoch once both jobs read from the cache."""
