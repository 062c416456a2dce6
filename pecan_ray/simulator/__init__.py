"""Jobs, workers and nodes simulated batch by batch, under the very policies that run live."""

from pecan_ray.simulator.client import LIVE, RELEASED, ClientRule
from pecan_ray.simulator.cluster import Simulated, Simulation, simulate
from pecan_ray.simulator.job import JpegEngines, SimulatedJob, Turn
from pecan_ray.simulator.nodes import PoolRule
from pecan_ray.simulator.outcome import Outcome
from pecan_ray.simulator.policy_driver import Driver, FixedDeployment, RemoteOnly, placement
from pecan_ray.simulator.run_profile import RunProfile
from pecan_ray.simulator.what_if import WhatIfEstimate
from pecan_ray.simulator.workload import Workload, load, names

__all__ = [
    "LIVE",
    "RELEASED",
    "ClientRule",
    "Driver",
    "FixedDeployment",
    "JpegEngines",
    "Outcome",
    "PoolRule",
    "RemoteOnly",
    "RunProfile",
    "Simulated",
    "SimulatedJob",
    "Simulation",
    "Turn",
    "WhatIfEstimate",
    "Workload",
    "load",
    "names",
    "placement",
    "simulate",
]
