"""What a warden does where the system does not help it, or others stand in its way."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.process_harness import sh, until_none_is
from tests.support.process_table import gone

from batch_agent.supervisor import ProgramLost, run_program
from batch_agent.supervisor import supervisor_process as warden


def as_warden(code: str) -> str:
    """What is said by Python code that has a warden's parts."""
    folder = str(Path(warden.__file__).parent)
    head = f"import sys; sys.path.insert(0, {folder!r}); import os, supervisor_process as warden\n"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", head + code], stdout=subprocess.PIPE, text=True, timeout=60, check=True
    ).stdout


def test_children_are_found_without_the_list_of_the_kernel() -> None:
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        assert process.pid in warden.searched_children()
        assert set(warden.searched_children()) == set(warden.listed_children())
        process.kill()


async def test_without_orphans_of_its_own_it_kills_the_process_group(mark: str) -> None:
    said = as_warden(f"""
say, (read, write) = os.dup(1), os.pipe()
os.dup2(write, 1)
family = warden.ProcessTree(adopts_orphans=False)
argv = [b"sh", b"-c", b"(sleep 600 & echo up); sleep 600"]
family.start(b"/", b"/bin/sh", argv, [b"PATH=/bin:/usr/bin", b"MARK={mark}"])
os.read(read, 100)
os.write(say, b"%d left" % family.kill(30))
""")
    assert said == "0 left"
    await until_none_is(mark)


async def test_processes_that_may_not_be_killed_are_counted_and_left() -> None:
    said = as_warden("""
def refuse(pid, number):
    raise PermissionError

warden.os.kill = refuse
family = warden.ProcessTree(adopts_orphans=True)
family.start(b"/", b"/bin/sleep", [b"sleep", b"600"], [])
print(family.kill(0.1), family.code, family.program)
""")
    left, code, program = said.split()
    assert (left, code) == ("1", "None")
    await gone(int(program))  # with its parent: the second line of defence


async def test_processes_that_could_not_be_killed_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "warden.py").write_text("""
import os, sys
os.write(int(sys.argv[1]), b"started 123456789\\nended None 2\\n")
""")
    monkeypatch.setattr(warden, "__file__", str(tmp_path / "warden.py"))
    with caplog.at_level(logging.WARNING, "batch_agent"), pytest.raises(ProgramLost, match="could not kill it"):
        await run_program(sh("true"))
    assert "2 processes that '/bin/sh' started cannot be killed" in caplog.text
