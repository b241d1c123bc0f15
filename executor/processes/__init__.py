"""The processes of a run: started or joined, watched, and ended with one message."""

from bfpp.executor.events import Message
from bfpp.executor.processes.clock import ClockOffset, measure_offset
from bfpp.executor.processes.diagnosis import RunFailed
from bfpp.executor.processes.environment import prepare
from bfpp.executor.processes.heartbeats import Activity, Limits
from bfpp.executor.processes.launch import launch
from bfpp.executor.processes.place import Place, cores, join, use_cores
from bfpp.executor.processes.stopping import STOPPED, Terminated

__all__ = [
    "STOPPED",
    "Activity",
    "ClockOffset",
    "Limits",
    "Message",
    "Place",
    "RunFailed",
    "Terminated",
    "cores",
    "join",
    "launch",
    "measure_offset",
    "prepare",
    "use_cores",
]
