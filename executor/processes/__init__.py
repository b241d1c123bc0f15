"""The processes of a run: started or joined, watched, and ended with one message."""

from executor.processes.beats import Activity, Limits
from executor.processes.clock import ClockOffset, measure_offset
from executor.processes.environment import prepare
from executor.processes.launch import launch
from executor.processes.place import Message, Place, join, use_cores
from executor.processes.verdict import RunFailed

__all__ = [
    "Activity",
    "ClockOffset",
    "Limits",
    "Message",
    "Place",
    "RunFailed",
    "join",
    "launch",
    "measure_offset",
    "prepare",
    "use_cores",
]
