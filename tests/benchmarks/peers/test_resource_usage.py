"""What a peer's processes cost."""

import subprocess
import sys

from benchmarks.peers.resource_usage import Account

GRANDCHILD = "import time\nheld = bytearray(50_000_000)\nwhile time.process_time() < 0.5: pass"
CHILD = """
import signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as Ray does: nobody is told what the grandchild has used
for _ in range(2):
    subprocess.Popen([sys.executable, "-c", sys.argv[1]]).wait()
print("over", flush=True)
sys.stdin.read()
"""


def test_resource_usage_of_exited_processes_is_still_counted() -> None:
    account = Account()
    stop = account.look_often()
    before = account.cpu_s, account.peak_mb
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, GRANDCHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "over\n"
        assert account.cpu_s - before[0] > 0.5
        assert 50 < account.peak_mb - before[1] < 100  # one at a time
    stop()
