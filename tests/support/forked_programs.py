"""Programs in processes of their own that start at once: each is forked from one that has BatchAgent imported.

What a process can do and suffer (signals, death, a folder and modules of its own) is as real as after `python -m`; what
is not repeated is a second of imports."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

Call = Callable[..., "subprocess.CompletedProcess[str]"]
"""A command as a user types it: its words and `cwd`; variables of the environment by name."""

PROGRAM = [sys.executable, "-m", "batch_agent.cli"]
_COMMAND = "from batch_agent.cli.app import main; main()"
_PARENT = """
import atexit, gc, json, os, sys, threading
import batch_agent.cli.config_file, batch_agent.forecasting.entry, batch_agent.testing, cyclopts.config, cyclopts.help
import batch_agent.observe.report.run_view, batch_agent.observe.report.html, batch_agent.observe.event_recorder
import batch_agent.backends.http.connection_pool, batch_agent.run.description, batch_agent.supervisor.supervisor_process
import batch_agent.tools.builtin.search, batch_agent.tools.builtin.web, docstring_parser, rich.console, uvloop, yaml
from batch_agent.cli.app import app

for name in app:
    app[name]

# What is here stays as it is: a collector that went through it in each program would copy all of it.
gc.collect()
gc.freeze()

for line in sys.stdin:
    plan = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    print(child, flush=True)
    # Waited for when its status was read: until then, a signal to its id cannot reach another process.
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    print(flush=True)
    sys.stdin.readline()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()

os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
for number, name in (1, "stdout"), (2, "stderr"):
    os.dup2(os.open(plan[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
os.chdir(plan["cwd"])
os.environ.clear()
os.environ.update(plan["env"])
sys.path[0] = plan["cwd"]
sys.argv = ["program", *plan["words"]]
try:
    exec(plan["code"], {"__name__": "__main__"})
except SystemExit as end:
    status = end.code
else:
    status = None
# As Python ends. It does not take apart what it shares with its parent, object by object: that is half of its time.
threading._shutdown()
atexit._run_exitfuncs()
if isinstance(status, str):
    print(status, file=sys.stderr)
    status = 1
sys.stdout.flush()
sys.stderr.flush()
os._exit(status or 0)
"""


def typed(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """`batch-agent` with these words, from the first import on: each command is called so at least once."""
    return subprocess.run([*PROGRAM, *words], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


class Program:
    """One that was started. What it says is in files; one that is a pipe with a name is read while it runs."""

    def __init__(self, parent: "subprocess.Popen[str]", stdout: Path, stderr: Path) -> None:
        self._parent = parent
        self._status: int | None = None
        self.stdout = stdout
        self.stderr = stderr
        self.pid = self._heard()

    def send_signal(self, number: signal.Signals) -> None:
        assert self._status is None, "it has ended, and its id may be another's by now"
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit status, or the number of the signal that ended it, below zero."""
        if self._status is None:
            assert self._parent.stdin is not None
            assert self._parent.stdout is not None
            self._parent.stdout.readline()
            self._parent.stdin.write("\n")
            self._parent.stdin.flush()
            self._status = self._heard()
        return self._status

    def end(self) -> None:
        """Of one that a test has left running."""
        if self._status is None:
            self.send_signal(signal.SIGKILL)
            self.wait()

    def _heard(self) -> int:
        assert self._parent.stdout is not None
        return int(self._parent.stdout.readline())


class Programs:
    """The process that they are forked from. One at a time: who starts a program waits for it before the next."""

    def __enter__(self) -> Self:
        self._folder = TemporaryDirectory()
        self._last: Program | None = None
        self._parent = subprocess.Popen(
            [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._parent:
            if self._last is not None:
                self._last.end()
            assert self._parent.stdin is not None
            self._parent.stdin.close()
        self._folder.cleanup()

    def start(
        self,
        code: str,
        *words: str,
        cwd: Path | None = None,
        stdout: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Program:
        """Runs Python code with `words` as its arguments."""
        if self._last is not None:
            self._last.end()
        said, noise = stdout or Path(self._folder.name, "stdout"), Path(self._folder.name, "stderr")
        noise.write_text("")  # who waits for its first words does not read those of the last program
        plan = {
            "code": code,
            "words": words,
            "cwd": str(cwd or Path.cwd()),
            "env": {**os.environ, **(environment or {})},
        }
        assert self._parent.stdin is not None
        self._parent.stdin.write(json.dumps({**plan, "stdout": str(said), "stderr": str(noise)}) + "\n")
        self._parent.stdin.flush()
        self._last = Program(self._parent, said, noise)
        return self._last

    def start_command(self, *words: str, cwd: Path, **environment: str) -> Program:
        """`batch-agent` with these words."""
        return self.start(_COMMAND, *words, cwd=cwd, environment=environment)

    def call(self, *words: str, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
        """`batch-agent` with these words, to its end."""
        program = self.start_command(*words, cwd=cwd, **environment)
        return subprocess.CompletedProcess(
            words, program.wait(), program.stdout.read_text(), program.stderr.read_text()
        )
