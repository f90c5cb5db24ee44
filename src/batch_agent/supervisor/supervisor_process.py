"""The process between us and a program: `python -I -S warden.py <descriptor>`.

It starts the program, outlives whatever happens to it or to us, and leaves nothing of it behind. Over the descriptor,
a socket, it is sent an order (`encode`), tells how the program does (`started`, `failed`, `ended`), and hears when to
stop it: STOP for a stop with the order's grace; the end of the socket, which comes with our own, for one at once.

On Linux it adopts all orphans below it, whatever session they have gone to. Elsewhere it can only kill the program's
process group. It imports nothing of batch_agent, and little else: one is started for each program.
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
_KILL_SECONDS = 10.0  # what lives on after SIGKILL is another user's, or hangs in the kernel
_LOOK_SECONDS = 0.05  # nothing tells us when a process becomes our child
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def encode(grace: float, cwd: bytes, program: bytes, argv: Sequence[bytes], env: Iterable[bytes]) -> bytes:
    """An order, as the warden's parent sends it."""
    head = (b"%d" % os.getpid(), str(grace).encode(), cwd, program, b"%d" % len(argv))
    body = b"\0".join((*head, *argv, *env))
    return len(body).to_bytes(_SIZE_BYTES, "big") + body


def main() -> None:
    link = int(sys.argv[1])
    os.set_inheritable(link, False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    order = _read(link, int.from_bytes(_read(link, _SIZE_BYTES), "big"))
    if order:  # else nobody wants it any more
        _guard(link, order)
    os._exit(0)


def _read(link: int, size: int) -> bytes:
    """Empty when the end comes first."""
    got = b""
    while len(got) < size:
        chunk = os.read(link, size - len(got))
        if not chunk:
            return b""
        got += chunk
    return got


def _guard(link: int, order: bytes) -> None:
    parent, grace, cwd, program, count, *words = order.split(b"\0")
    asked = ParentChannel(link, int(parent))
    family = ProcessTree(adopts_orphans=_prctl(_PR_SET_CHILD_SUBREAPER, 1))
    failure = family.start(cwd, program, words[: int(count)], words[int(count) :])
    if failure:
        _tell(link, b"failed %s" % failure)
        return
    try:
        _tell(link, b"started %d" % family.program)
        _let_go_of_stdin_and_stdout()
        family.wait(asked, until=asked.to_end)
        if family.code is None and float(grace) > 0 and not asked.to_hurry():
            family.terminate()
            family.wait(asked, until=asked.to_hurry, seconds=float(grace))
    finally:
        left = family.kill(_KILL_SECONDS)
        _tell(link, b"ended %s %d" % (str(family.code).encode(), left))


def _tell(link: int, report: bytes) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):
        os.write(link, report + b"\n")


def _let_go_of_stdin_and_stdout() -> None:
    """They must be closed once the program closes them. stderr stays: it shows what goes wrong here."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.close(nowhere)


class ParentChannel:
    """What our parent wants; when it is dead, an end at once."""

    def __init__(self, link: int, parent: int) -> None:
        self._link = link
        self._heard: bytes | None = None
        self.descriptors = [link]
        if sys.platform == "linux":
            with suppress(OSError, AttributeError):
                # A fork of our parent holds the other end of the link too, and may outlive it.
                self.descriptors.append(os.pidfd_open(parent))
        if os.getppid() != parent:
            self._heard = b""

    def hear(self, descriptor: int) -> None:
        self._heard = os.read(descriptor, 1) if descriptor == self._link else b""

    def to_end(self) -> bool:
        return self._heard is not None

    def to_hurry(self) -> bool:
        return self._heard == b""


class ProcessTree:
    """A program with all that it has started, as far as that can be known."""

    def __init__(self, *, adopts_orphans: bool) -> None:
        self._adopts_orphans = adopts_orphans
        self._deaths, signalled = os.pipe()
        os.set_blocking(self._deaths, False)
        os.set_blocking(signalled, False)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self.program = 0
        self.code: int | None = None
        """The program's exit status, once it has one; a signal's number is below zero."""

    def start(self, cwd: bytes, program: bytes, argv: list[bytes], env: list[bytes]) -> bytes:
        """What failed: the step with the number of the error. Empty when the program runs."""
        told, tell = os.pipe()
        warden = os.getpid()
        self.program = os.fork()
        if self.program == 0:
            _become(cwd, program, argv, env, warden, tell)
        os.close(tell)
        failure = os.read(told, 100)  # empty when the other end was closed, by becoming the program
        os.close(told)
        return failure

    def wait(self, asked: ParentChannel, *, until: Callable[[], bool], seconds: float | None = None) -> None:
        """Returns when the program has ended, too."""
        end = None if seconds is None else time.monotonic() + seconds
        poll = select.poll()
        for descriptor in (self._deaths, *asked.descriptors):
            poll.register(descriptor, select.POLLIN)
        while self.code is None and not until():
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return
            for descriptor, _ in poll.poll(None if left is None else left * 1000):
                if descriptor == self._deaths:
                    self._reap()
                else:
                    asked.hear(descriptor)

    def terminate(self) -> None:
        self._kill_group(signal.SIGTERM)

    def kill(self, seconds: float) -> int:
        """How many are still there after `seconds`. Only children of ours are killed: their ids cannot be another's by
        now. What they leave behind becomes ours, so parents go first, before they can start anything again."""
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
            select.select([self._deaths], [], [], _LOOK_SECONDS)
        return 0

    def _kill_group(self, number: signal.Signals) -> None:
        """A group keeps its id for as long as one of its processes lives."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.program, number)

    def _reap(self) -> bool:
        """Whether there is a child that lives."""
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
    """Raises OSError where the kernel keeps no such list."""
    with open(f"/proc/self/task/{os.getpid()}/children", "rb") as children:
        return [int(child) for child in children.read().split()]


def searched_children() -> list[int]:
    """The same by looking at every process there is, which takes longer."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as stat:
            if int(stat.read().rpartition(b")")[2].split()[1]) == os.getpid():
                found.append(int(pid))
    return found


def _become(cwd: bytes, program: bytes, argv: list[bytes], env: list[bytes], warden: int, tell: int) -> None:
    """In a fork: does not return."""
    step = b"folder"
    try:
        os.setsid()
        # The second line of defence: it dies with a warden that was killed outright.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != warden:
            return
        os.chdir(cwd)
        step = b"program"
        _reset_signals()
        os.execve(program, argv, dict(entry.split(b"=", 1) for entry in env))  # noqa: S606
    except OSError as error:
        os.write(tell, b"%s %d" % (step, error.errno or 0))
    finally:
        os._exit(127)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _prctl(option: int, value: int) -> bool:
    """Whether the kernel agreed."""
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
