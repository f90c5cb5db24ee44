"""Simulated engines in processes of their own that start at once: each is forked from one that has the simulator
imported. The real start, a sixth of a second of CPU time, is tested in tests/unit/sim/test_process.py."""

import atexit
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from batch_agent.sim import process
from batch_agent.sim.process import Launch

from .process_table import forking

_PARENT = """
import gc, os, signal, socket, sys, types
package = types.ModuleType("batch_agent")
package.__path__ = [sys.argv.pop(1)]
sys.modules["batch_agent"] = package
from batch_agent.sim.__main__ import main
import uvloop

gc.collect()
gc.freeze()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # none is left as a zombie
control = socket.socket(fileno=0)
while True:
    launch, streams, _, _ = socket.recv_fds(control, 65536, 3)
    if not launch:
        sys.exit()
    child = os.fork()
    if child == 0:
        break
    ended = os.pidfd_open(child)
    socket.send_fds(control, [str(child).encode()], [ended])
    for number in ended, *streams:
        os.close(number)

signal.signal(signal.SIGCHLD, signal.SIG_DFL)
control.detach()
for number, stream in enumerate(streams):
    os.dup2(stream, number)
    os.close(stream)
sys.argv = ["sim", launch.decode()]
main()
sys.stdout.flush()
os._exit(0)
"""


@dataclass
class ForkedProcess:
    """What a SimServer needs of a `subprocess.Popen`."""

    pid: int
    stdin: IO[bytes]
    stdout: IO[bytes]
    ended: int
    """Descriptor of the process, which is readable once it has ended."""

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> None:
        if not select.select([self.ended], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("sim", timeout or 0)
        os.close(self.ended)

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has ended
            signal.pidfd_send_signal(self.ended, number)


class ForkedSims:
    """The process that they are forked from: started with the first of them, and ended with this one."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None

    def start(self, launch: Launch, stderr: IO[bytes]) -> ForkedProcess:
        sys.audit("os.fork")
        control = self._control = self._control or _parent()
        stdin, held = os.pipe()
        read, stdout = os.pipe()
        socket.send_fds(control, [launch.to_json().encode()], [stdin, stdout, stderr.fileno()])
        os.close(stdin)
        os.close(stdout)
        pid, [ended], _, _ = socket.recv_fds(control, 64, 1)
        return ForkedProcess(int(pid), os.fdopen(held, "wb"), os.fdopen(read, "rb"), ended)


def _parent() -> socket.socket:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    package = os.path.dirname(os.path.dirname(process.__file__))
    with its:
        started = subprocess.Popen(
            [sys.executable, "-c", _PARENT, package], stdin=its.fileno(), stdout=subprocess.DEVNULL
        )
    started.returncode = 0  # nobody waits for it: it ends when this process does
    forking.add(started.pid)
    atexit.register(ours.close)
    return ours
