"""The processes that we start ourselves, with torch's own launcher.

Each leads a session of its own, so Ctrl-C reaches only the parent, and killing
its group also kills what it has started. Ended processes are polled without
reaping them, so that their groups can still be killed at the end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    SignalException,
    Std,
    SubprocessContext,
    start_processes,
)

from bfpp.executor.processes.environment import STREAMS, chosen
from bfpp.executor.processes.launcher.hosts import HERE, Hosts
from bfpp.executor.processes.launcher.member import ASK_WHERE, PARENT
from bfpp.executor.processes.launcher.sigterm import Terminated
from bfpp.executor.processes.sealed_store import SECRET

PROGRAM = "bfpp.executor"
SAFELY = ("-P",)
"""Keep Python from importing modules of the working directory that PYTHONPATH does not name."""

TORCH_HANDLES = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Children:
    """One running process per number; `close` ends them."""

    def __init__(
        self,
        directory: Path,
        processes: int,
        port: int,
        secret: str,
        interface: str | None = None,
        hosts: Hosts = HERE,
    ) -> None:
        numbers = range(processes)
        environments = environments_of(processes, port, secret, interface, hosts)
        words = (sys.executable, *SAFELY, "-m", PROGRAM, str(directory))
        commands = [(*hosts.prefix(each, processes), *words) for each in numbers]
        with _own_signal_handlers():
            context = start_processes(
                name="bfpp",
                entrypoint=commands[0][0],
                args={number: command[1:] for number, command in enumerate(commands)},
                envs=dict(enumerate(environments)),
                logs_specs=DefaultLogsSpecs(str(directory), redirects=Std.ALL),
            )
        assert isinstance(context, SubprocessContext)  # noqa: S101  as the entrypoint is a program
        self._handlers = [context.subprocess_handlers[number] for number in numbers]
        self._logs = [Path(context.stderrs[number]) for number in numbers]

    def ended(self) -> dict[int, int]:
        """Exit codes of the processes that have ended; negative for a signal."""
        return exit_codes([handler.proc.pid for handler in self._handlers])

    def ask_where(self, process: int) -> None:
        """Make a hung process write its stacks to its log."""
        os.kill(self._handlers[process].proc.pid, ASK_WHERE)

    def ask_to_stop(self) -> None:
        """Ask all of them to end gracefully."""
        for handler in self._handlers:
            if handler.proc.poll() is None:
                os.kill(handler.proc.pid, signal.SIGTERM)

    def log(self, process: int) -> str:
        """The standard error of a process."""
        return self._logs[process].read_text(errors="replace")

    def close(self) -> None:
        """Kill all of them, including stopped ones and those that ignore SIGTERM."""
        for handler in self._handlers:
            handler.close(signal.SIGKILL)
        # After all of them: one may be stopped in the kernel for a while.
        for handler in self._handlers:
            handler.proc.wait()


def exit_codes(pids: Sequence[int]) -> dict[int, int]:
    """Those of our children that have ended, by number; negative for a signal."""
    return {
        number: ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        for number, pid in enumerate(pids)
        if (ended := _look_at(pid))
    }


def _look_at(pid: int) -> os.waitid_result | None:
    # WNOWAIT: until torch's handler reaps the process, its number is not given to another one.
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def environments_of(
    processes: int, port: int, secret: str, interface: str | None, hosts: Hosts
) -> list[dict[str, str]]:
    """The variables of each process, in addition to ours."""
    return [
        {SECRET: secret, **_environment(number, processes, port, interface, hosts)}
        for number in range(processes)
    ]


def _environment(
    number: int, processes: int, port: int, interface: str | None, hosts: Hosts
) -> dict[str, str]:
    on_a_host = hosts.processes_on_each(processes)
    environment = {
        "RANK": str(number),
        "WORLD_SIZE": str(processes),
        "LOCAL_RANK": str(number % on_a_host),
        "LOCAL_WORLD_SIZE": str(on_a_host),
        "MASTER_ADDR": hosts.address,
        "MASTER_PORT": str(port),
        "PYTHONPATH": os.pathsep.join(each for each in sys.path if Path(each).is_absolute()),
        PARENT: str(os.getpid()),
    }
    defaults = dict(STREAMS)
    # Nobody else is to reach them, and this host's name, which may have no address, is not needed.
    defaults |= chosen(hosts.interface)
    defaults |= {name: os.environ[name] for name in defaults if name in os.environ}
    named = interface or (hosts.interface if hosts.names else None)
    return {**environment, **defaults, **chosen(named)}


@contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Restore the signal handlers, Ctrl-C included, that torch's launcher replaces."""
    before = {number: signal.getsignal(number) for number in TORCH_HANDLES}
    try:
        yield
    except SignalException as error:
        raise (Terminated if error.sigval == signal.SIGTERM else KeyboardInterrupt) from error
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
