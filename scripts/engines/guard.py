"""guard.py COMMAND...: run a command in our process group, and end the whole group when our standard input closes.

Whoever starts an engine holds the other end of that pipe, so the engine ends with its user, however the user ends.
Start this in a session of its own.
"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

GRACE = 20.0


def main(command: list[str]) -> None:
    # A handler, not SIG_IGN: the command would inherit SIG_IGN.
    signal.signal(signal.SIGTERM, lambda *_: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_end_with_the_pipe, args=(child,), daemon=True).start()
    print(f"{command[0]} ended with status {child.wait()}", flush=True)
    segments = _shared_memory()
    _remove(segments)
    os.killpg(0, signal.SIGKILL)


def _end_with_the_pipe(child: subprocess.Popen[bytes]) -> None:
    sys.stdin.buffer.read()
    segments = _shared_memory()
    os.killpg(0, signal.SIGTERM)
    try:
        child.wait(GRACE)
    finally:
        _remove(segments)
        os.killpg(0, signal.SIGKILL)


def _shared_memory() -> set[Path]:
    """Shared memory that the group has mapped: a killed engine leaves it behind, and it counts as used memory."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(process.name)) == os.getpgid(0):
                maps = (process / "maps").read_text()
                found |= {Path(line.split(maxsplit=5)[5]) for line in maps.splitlines() if " /dev/shm/" in line}
        except OSError:
            continue  # it ended meanwhile
    return found


def _remove(segments: set[Path]) -> None:
    for segment in segments:
        segment.unlink(missing_ok=True)


if __name__ == "__main__":
    main(sys.argv[1:])
