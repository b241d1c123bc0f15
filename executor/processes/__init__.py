"""The processes of a run: started or joined, watched, and ended with one message."""

from executor.events import Message
from executor.processes.beats import Activity, Limits
from executor.processes.clock import ClockOffset, measure_offset
from executor.processes.environment import prepare
from executor.processes.launch import launch
from executor.processes.place import Place, join, use_cores
from executor.processes.stopping import STOPPED, Terminated
from executor.processes.verdict import RunFailed

__all__ = [
    "STOPPED",
    "Activity",
    "ClockOffset",
    "Limits",
    "Message",
    "Place",
    "RunFailed",
    "Terminated",
    "join",
    "launch",
    "measure_offset",
    "prepare",
    "use_cores",
]
