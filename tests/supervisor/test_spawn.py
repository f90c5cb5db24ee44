"""What cannot be started is told before anything runs."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.process_harness import ENV

from batch_agent.supervisor import CannotStart, ProgramCommand, run_program, supervisor_process


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    for name, first_line in (("lost", "#!/no/such/interpreter"), ("odd", "neither script nor program")):
        (tmp_path / name).write_text(f"{first_line}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "the command is empty"),
        (["no-such-program"], "'no-such-program' cannot be started: it is not in its PATH"),
        ([""], "'' cannot be started: it is not in its PATH"),
        (["plain"], "'plain' cannot be started: it is not in its PATH"),
        (["./missing"], "'./missing' cannot be started: there is no such file"),
        (["./"], "'./' cannot be started: there is no such file"),
        (["./plain"], r"'./plain' cannot be started: it is not executable; run chmod \+x"),
        (["./lost"], "'./lost' cannot be started: it, or the interpreter in its first line, .*: No such file"),
        (["./odd"], "'./odd' cannot be started: .*: Exec format error"),
        (["/bin/sh", "a\0b"], r"'/bin/sh' cannot be started: there is a NUL in 'a\\x00b'"),
        (["/bin/sh", "\ud800"], "'/bin/sh' cannot be started: .*surrogates not allowed"),
        (["/bin/true", "x" * 200_000], "'/bin/true' cannot be started: .*: Argument list too long"),
    ],
)
async def test_the_error_names_a_program_that_cannot_be_run(folder: Path, argv: list[str], says: str) -> None:
    with pytest.raises(CannotStart, match=says):
        await run_program(ProgramCommand(argv, ENV, folder))


async def test_the_error_names_a_missing_working_directory(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"cannot be started: its working directory '.*/missing' does not exist"):
        await run_program(ProgramCommand(["/bin/sh"], {}, tmp_path / "missing"))


async def test_a_missing_working_directory_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    with pytest.raises(CannotStart, match="the working directory no longer exists"):
        await run_program(ProgramCommand(["/bin/sh"], {}))


@pytest.mark.parametrize(
    ("env", "says"), [({"": "x"}, "'' is not a valid name"), ({"a=b": "x"}, "'a=b' is not a valid name")]
)
async def test_an_environment_variable_needs_a_valid_name(env: dict[str, str], says: str) -> None:
    with pytest.raises(CannotStart, match=says):
        await run_program(ProgramCommand(["/bin/sh"], env))


async def test_a_secret_with_a_nul_is_not_shown_in_the_error() -> None:
    with pytest.raises(CannotStart, match="NUL in the value of 'KEY'") as raised:
        await run_program(ProgramCommand(["/bin/sh"], {"KEY": "secret\0"}))
    assert "secret" not in str(raised.value)


def test_a_command_does_not_show_its_environment() -> None:
    assert "secret" not in repr(ProgramCommand(["/bin/sh"], {"KEY": "secret"}))


async def test_nothing_leaks_when_descriptors_run_out() -> None:
    lowest = os.dup(0)
    os.close(lowest)
    for free in range(7):
        with _no_descriptor_beyond(lowest + free), pytest.raises(CannotStart, match="Too many open files"):
            await run_program(ProgramCommand(["/bin/sh"], {}))


async def test_a_supervisor_that_fails_to_start_is_reported_with_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "supervisor_process.py").write_text("raise SystemExit('no memory')")
    monkeypatch.setattr(supervisor_process, "__file__", str(tmp_path / "supervisor_process.py"))
    with pytest.raises(CannotStart, match=r"'/bin/sh' cannot be started: its supervisor exited at once\. no memory"):
        await run_program(ProgramCommand(["/bin/sh", "x" * 1_000_000], {}))


@contextmanager
def _no_descriptor_beyond(most: int) -> Iterator[None]:
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
