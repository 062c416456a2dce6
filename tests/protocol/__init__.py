"""The control plane of a job in a deterministic simulation: the state machines that run live, and a model of the rest.

One seeded scheduler with a virtual clock delays, reorders, doubles and loses messages, kills and freezes workers and
trainers, and changes speeds and numbers.  What must hold is checked at every step and at the end.
"""

from tests.protocol.campaign import Summary, play_seeds
from tests.protocol.draw import draw
from tests.protocol.scenario import BAD, Fault, Scenario, SplitModel
from tests.protocol.shrink import shrink
from tests.protocol.world import HistoryOutcome, World, play

__all__ = [
    "BAD",
    "Fault",
    "HistoryOutcome",
    "Scenario",
    "SplitModel",
    "Summary",
    "World",
    "draw",
    "play",
    "play_seeds",
    "shrink",
]
