"""Supervisor process between this package and a program: `python -I -S supervisor_process.py <descriptor>`.

It starts the program, survives it and its own parent, and kills every process that the program leaves. The descriptor
is a socket. Over it the supervisor receives a command (`encode`), reports `started`, `failed` and `ended`, and learns
when to stop the program: STOP for a stop with the command's grace period, end of file, which the parent's death also
causes, for a stop at once.

On Linux it is a subreaper: it adopts all orphans below it, whatever their session. On other systems it can only kill
the program's process group. It imports nothing of batch_agent, and little else, because one is started for each
program.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

STOP = b"."
_SIZE_BYTES = 8
_KILL_SECONDS = 10.0  # a process that survives SIGKILL belongs to another user or hangs in the kernel
_POLL_SECONDS = 0.05  # no notification tells when a process becomes our child
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def encode(grace: float, cwd: bytes, program: bytes, argv: Sequence[bytes], env: Iterable[bytes]) -> bytes:
    """Encodes a command for the supervisor."""
    head = (b"%d" % os.getpid(), str(grace).encode(), cwd, program, b"%d" % len(argv))
    body = b"\0".join((*head, *argv, *env))
    return len(body).to_bytes(_SIZE_BYTES, "big") + body


def main() -> None:
    channel = int(sys.argv[1])
    os.set_inheritable(channel, False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    command = _read(channel, int.from_bytes(_read(channel, _SIZE_BYTES), "big"))
    if command:  # otherwise the parent has ended or given up
        _supervise(channel, command)
    os._exit(0)


def _read(channel: int, size: int) -> bytes:
    """Reads `size` bytes; empty if the stream ends first."""
    data = b""
    while len(data) < size:
        chunk = os.read(channel, size - len(data))
        if not chunk:
            return b""
        data += chunk
    return data


def _supervise(channel: int, command: bytes) -> None:
    parent, grace, cwd, program, count, *rest = command.split(b"\0")
    parent_channel = ParentChannel(channel, int(parent))
    tree = ProcessTree(adopts_orphans=_prctl(_PR_SET_CHILD_SUBREAPER, 1))
    failure = tree.start(cwd, program, rest[: int(count)], rest[int(count) :])
    if failure:
        _report(channel, b"failed %s" % failure)
        return
    try:
        _report(channel, b"started %d" % tree.program)
        _release_stdin_and_stdout()
        tree.wait(parent_channel, until=parent_channel.stop_requested)
        if tree.code is None and float(grace) > 0 and not parent_channel.kill_requested():
            tree.terminate()
            tree.wait(parent_channel, until=parent_channel.kill_requested, seconds=float(grace))
    finally:
        left = tree.kill(_KILL_SECONDS)
        _report(channel, b"ended %s %d" % (str(tree.code).encode(), left))


def _report(channel: int, report: bytes) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):
        os.write(channel, report + b"\n")


def _release_stdin_and_stdout() -> None:
    """Releases stdin and stdout, so that they close when the program closes them. stderr stays open for errors of the
    supervisor itself."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.close(nowhere)


class ParentChannel:
    """Requests of the parent. The death of the parent is a request to kill."""

    def __init__(self, channel: int, parent: int) -> None:
        self._channel = channel
        self._received: bytes | None = None
        self.descriptors = [channel]
        if sys.platform == "linux":
            with suppress(OSError, AttributeError):
                # A fork of our parent also holds the other end of the channel, and may outlive it.
                self.descriptors.append(os.pidfd_open(parent))
        if os.getppid() != parent:
            self._received = b""

    def receive(self, descriptor: int) -> None:
        self._received = os.read(descriptor, 1) if descriptor == self._channel else b""

    def stop_requested(self) -> bool:
        return self._received is not None

    def kill_requested(self) -> bool:
        return self._received == b""


class ProcessTree:
    """A program with all known processes that it has started."""

    def __init__(self, *, adopts_orphans: bool) -> None:
        self._adopts_orphans = adopts_orphans
        self._deaths, signalled = os.pipe()
        os.set_blocking(self._deaths, False)
        os.set_blocking(signalled, False)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self.program = 0
        self.code: int | None = None
        """The program's exit status after its end; negative for a signal."""

    def start(self, cwd: bytes, program: bytes, argv: list[bytes], env: list[bytes]) -> bytes:
        """Starts the program. Returns the step that failed and its errno; empty on success."""
        read_end, write_end = os.pipe()
        supervisor = os.getpid()
        self.program = os.fork()
        if self.program == 0:
            _exec(cwd, program, argv, env, supervisor, write_end)
        os.close(write_end)
        failure = os.read(read_end, 100)  # empty after a successful exec, which closes the other end
        os.close(read_end)
        return failure

    def wait(self, parent: ParentChannel, *, until: Callable[[], bool], seconds: float | None = None) -> None:
        """Waits until the program has ended, `until` is true or `seconds` have passed."""
        end = None if seconds is None else time.monotonic() + seconds
        poll = select.poll()
        for descriptor in (self._deaths, *parent.descriptors):
            poll.register(descriptor, select.POLLIN)
        while self.code is None and not until():
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return
            for descriptor, _ in poll.poll(None if left is None else left * 1000):
                if descriptor == self._deaths:
                    self._reap()
                else:
                    parent.receive(descriptor)

    def terminate(self) -> None:
        self._kill_group(signal.SIGTERM)

    def kill(self, seconds: float) -> int:
        """Kills all processes, and returns the number that are left after `seconds`. Only our own children are killed,
        because their pids cannot have been reused. Their orphans become our children, so parents die before they can
        start another process."""
        end = time.monotonic() + seconds
        if not self._adopts_orphans:
            self._kill_group(signal.SIGKILL)
        while self._reap():
            children = self._children()
            if time.monotonic() > end:
                return len(children)
            for child in children:
                with suppress(PermissionError):
                    os.kill(child, signal.SIGKILL)
            select.select([self._deaths], [], [], _POLL_SECONDS)
        return 0

    def _kill_group(self, number: signal.Signals) -> None:
        """Signals the process group, which keeps its id while one of its processes lives."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.program, number)

    def _reap(self) -> bool:
        """Reaps dead children. Returns whether a child is alive."""
        with suppress(BlockingIOError):
            os.read(self._deaths, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.program:
                self.code = os.waitstatus_to_exitcode(status)

    def _children(self) -> list[int]:
        if sys.platform == "linux":
            with suppress(OSError):
                return listed_children()
            with suppress(OSError):
                return searched_children()
        return [self.program] if self.code is None else []


def listed_children() -> list[int]:
    """Children from the kernel's list. Raises OSError if the kernel has none."""
    with open(f"/proc/self/task/{os.getpid()}/children", "rb") as children:
        return [int(child) for child in children.read().split()]


def searched_children() -> list[int]:
    """Children found by a scan of all processes, which is slower."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as stat:
            if int(stat.read().rpartition(b")")[2].split()[1]) == os.getpid():
                found.append(int(pid))
    return found


def _exec(cwd: bytes, program: bytes, argv: list[bytes], env: list[bytes], supervisor: int, write_end: int) -> None:
    """Replaces a forked child by the program. Does not return."""
    step = b"folder"
    try:
        os.setsid()
        # Second line of defence: the program dies with a supervisor that is killed by SIGKILL.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            return
        os.chdir(cwd)
        step = b"program"
        _reset_signals()
        os.execve(program, argv, dict(entry.split(b"=", 1) for entry in env))  # noqa: S606
    except OSError as error:
        os.write(write_end, b"%s %d" % (step, error.errno or 0))
    finally:
        os._exit(127)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _prctl(option: int, value: int) -> bool:
    """Calls prctl. Returns whether it succeeded."""
    if sys.platform != "linux":
        return False
    try:
        import ctypes
    except ImportError:
        return False
    done: int = ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)
    return done == 0


if __name__ == "__main__":
    main()
