"""The supervisor process where the system does not support it, or refuses its signals."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.process_harness import sh, until_none_is
from tests.support.process_table import gone

from batch_agent.supervisor import ProgramLost, run_program, supervisor_process


def run_in_supervisor(code: str) -> str:
    """The output of Python code that can import the supervisor's module."""
    folder = str(Path(supervisor_process.__file__).parent)
    head = f"import sys; sys.path.insert(0, {folder!r}); import os, supervisor_process\n"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", head + code], stdout=subprocess.PIPE, text=True, timeout=60, check=True
    ).stdout


def test_children_are_found_without_the_list_of_the_kernel() -> None:
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        assert process.pid in supervisor_process.searched_children()
        assert set(supervisor_process.searched_children()) == set(supervisor_process.listed_children())
        process.kill()


async def test_a_supervisor_that_cannot_adopt_orphans_kills_the_process_group(mark: str) -> None:
    output = run_in_supervisor(f"""
say, (read, write) = os.dup(1), os.pipe()
os.dup2(write, 1)
tree = supervisor_process.ProcessTree(adopts_orphans=False)
argv = [b"sh", b"-c", b"(sleep 600 & echo up); sleep 600"]
tree.start(b"/", b"/bin/sh", argv, [b"PATH=/bin:/usr/bin", b"MARK={mark}"])
os.read(read, 100)
os.write(say, b"%d left" % tree.kill(30))
""")
    assert output == "0 left"
    await until_none_is(mark)


async def test_processes_that_may_not_be_killed_are_counted_and_left() -> None:
    output = run_in_supervisor("""
def refuse(pid, number):
    raise PermissionError

supervisor_process.os.kill = refuse
tree = supervisor_process.ProcessTree(adopts_orphans=True)
tree.start(b"/", b"/bin/sleep", [b"sleep", b"600"], [])
print(tree.kill(0.1), tree.code, tree.program)
""")
    left, code, program = output.split()
    assert (left, code) == ("1", "None")
    await gone(int(program))  # with its parent: the second line of defence


async def test_processes_that_could_not_be_killed_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "supervisor_process.py").write_text("""
import os, sys
os.write(int(sys.argv[1]), b"started 123456789\\nended None 2\\n")
""")
    monkeypatch.setattr(supervisor_process, "__file__", str(tmp_path / "supervisor_process.py"))
    with caplog.at_level(logging.WARNING, "batch_agent"), pytest.raises(ProgramLost, match="could not kill it"):
        await run_program(sh("true"))
    assert "2 processes that '/bin/sh' started cannot be killed" in caplog.text
