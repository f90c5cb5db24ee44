"""A program with a large family: `python process_tree.py <exit|flood|stay> <mark>`.

It has a child, one in a session of its own, and a daemon of the old school (two forks, a session, no streams, deaf to
polite signals) which has a child, too. It prints their ids in one line once all of them are there."""

import os
import signal
import sys
import time
from collections.abc import Callable


def main() -> None:
    ready, tell = os.pipe()
    _fork(lambda: _live(tell))
    _fork(lambda: _live_elsewhere(tell))
    os.waitpid(_fork(lambda: _fork(lambda: _daemon(tell))), 0)
    members = b""
    while members.count(b" ") < 4:
        members += os.read(ready, 100)
    print(os.getpid(), members.decode(), flush=True)
    match sys.argv[1]:
        case "exit":
            pass
        case "flood":
            while True:
                os.write(1, b"x" * 65_536)
        case _:
            _live(tell)


def _live_elsewhere(tell: int) -> None:
    os.setsid()
    _live(tell)


def _daemon(tell: int) -> None:
    os.setsid()
    for stream in range(3):
        os.close(stream)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    _fork(lambda: _live(tell))
    _live(tell)


def _live(tell: int) -> None:
    os.write(tell, b"%d " % os.getpid())
    time.sleep(600)


def _fork(child: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(0)
    return pid


main()
