"""guard.py COMMAND...: run a command in our process group, and end the whole group when our standard input closes.

Whoever starts an engine holds the other end of that pipe, so the engine ends with its user, however the user ends.
Start this in a session of its own, and write nothing to it. Linux only.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

GRACE = 20.0


def main(command: list[str]) -> None:
    # A handler, not SIG_IGN: the command would inherit SIG_IGN.
    signal.signal(signal.SIGTERM, lambda *_: None)
    # Engines make sockets in their temporary folder, and a socket's path has room for about 100 characters.
    folder = tempfile.mkdtemp(prefix="ba-", dir="/tmp")
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=os.environ | {"TMPDIR": folder})
    ended, ending = os.pipe()
    threading.Thread(target=_close_when_ended, args=(child, ending), daemon=True).start()
    select.select([sys.stdin, ended], [], [])
    segments = _shared_memory()
    os.killpg(0, signal.SIGTERM)
    select.select([ended], [], [], GRACE)
    print(f"{command[0]} ended with status {child.poll()}", flush=True)
    for segment in segments:
        segment.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _close_when_ended(child: subprocess.Popen[bytes], ending: int) -> None:
    child.wait()
    os.close(ending)


def _shared_memory() -> set[Path]:
    """Shared memory that the group has mapped: a killed engine leaves it behind, and it counts as used memory."""
    inodes = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(process.name)) == os.getpgid(0):
                maps = (process / "maps").read_text().splitlines()
                # Not the name: a semaphore is mapped under a temporary one that is gone by now.
                inodes |= {line.split()[4] for line in maps if " /dev/shm/" in line}
        except OSError:
            continue  # it ended meanwhile
    return {Path(entry.path) for entry in os.scandir("/dev/shm") if str(entry.inode()) in inodes}


if __name__ == "__main__":
    main(sys.argv[1:])
