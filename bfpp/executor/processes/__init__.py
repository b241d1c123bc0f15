"""The processes of a run: started or joined, watched, and ended with one message."""

from bfpp.executor.events import Message
from bfpp.executor.processes.clock import ClockOffset, measure_offset
from bfpp.executor.processes.environment import prepare
from bfpp.executor.processes.launcher.hosts import HERE, Hosts
from bfpp.executor.processes.launcher.launch import launch
from bfpp.executor.processes.launcher.process_context import ProcessContext, cores, join, use_cores
from bfpp.executor.processes.launcher.sigterm import STOPPED, Terminated
from bfpp.executor.processes.watch.diagnosis import RunFailed
from bfpp.executor.processes.watch.heartbeats import Activity, Limits

__all__ = [
    "HERE",
    "STOPPED",
    "Activity",
    "ClockOffset",
    "Hosts",
    "Limits",
    "Message",
    "ProcessContext",
    "RunFailed",
    "Terminated",
    "cores",
    "join",
    "launch",
    "measure_offset",
    "prepare",
    "use_cores",
]
