"""The effect of a placement on a load, played in virtual time."""

from builder.placement.simulated_exits import Exits
from builder.placement.simulated_load import SimulatedLoad, Workload
from builder.placement.simulated_stages import Stages
from builder.placement.simulated_students import Students
from builder.placement.simulation_log import Batches, Simulation
from builder.placement.simulator import Simulator

__all__ = [
    "Batches",
    "Exits",
    "SimulatedLoad",
    "Simulation",
    "Simulator",
    "Stages",
    "Students",
    "Workload",
]
