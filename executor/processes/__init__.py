"""The processes of a run: started or joined, watched, and ended with one message."""

from executor.processes.beats import Activity, Limits
from executor.processes.clock import ClockOffset, measure_offset
from executor.processes.launch import RunFailed, launch
from executor.processes.place import Message, Place, join, use_cores

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
    "use_cores",
]
