"""What a program gets, what we get of it, how it ends."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
import uvloop
from tests.support.process_harness import ENV, sh, until_none_is
from tests.support.process_table import written

from batch_agent.supervisor import (
    ExitResult,
    ProgramCommand,
    ProgramLimits,
    ProgramLost,
    TooMuchOutput,
    run_program,
    start_program,
)

uvloop.new_event_loop().close()  # opens what all its loops share, once
PYTHON = [sys.executable, "-I", "-S", "-c"]


@pytest.mark.parametrize(
    ("script", "ended"),
    [
        ("echo said; echo warned >&2", ExitResult(0, b"said\n", "warned\n")),
        ("exit 3", ExitResult(3, b"", "")),
        ("kill -9 $$", ExitResult(-9, b"", "")),
        ("kill -TERM $$", ExitResult(-15, b"", "")),
        ("printf '\\377\\000\\r\\n'; printf '\\376' >&2", ExitResult(0, b"\xff\0\r\n", "\ufffd")),
    ],
)
async def test_a_program_is_run_to_its_end(script: str, ended: ExitResult) -> None:
    assert await run_program(sh(script)) == ended


async def test_the_environment_is_the_given_one_and_no_more() -> None:
    env = {"LC_TEST": "ö=\n ", "EMPTY": "", "\udcff": "\udcfe"}
    shown = await run_program(ProgramCommand(["/usr/bin/env", "-0"], env))
    assert set(shown.out.split(b"\0")) == {"LC_TEST=ö=\n ".encode(), b"EMPTY=", b"\xff=\xfe", b""}


async def test_arguments_arrive_as_they_are(tmp_path: Path) -> None:
    words = ["", "-x", "a b", "ö\n", "\udcff", "x" * 100_000]
    shown = await run_program(ProgramCommand(["/usr/bin/printf", r"%s\0", *words], {}))
    assert shown.out == b"".join(os.fsencode(word) + b"\0" for word in words)


async def test_commands_of_any_size_reach_the_supervisor() -> None:
    words = ["y" * 100_000] * 12
    shown = await run_program(ProgramCommand(["/bin/sh", "-c", 'shift 11; echo "${#0} ${#1} $#"', *words], ENV))
    assert shown.out == b"100000 0 0\n"


async def test_a_program_runs_in_its_working_directory(tmp_path: Path) -> None:
    assert (await run_program(sh("pwd -P", cwd=tmp_path))).out.decode().strip() == str(tmp_path.resolve())


async def test_the_default_working_directory_is_that_of_this_process() -> None:
    assert (await run_program(sh("pwd -P"))).out.decode().strip() == os.path.realpath(".")


async def test_a_relative_path_of_a_program_is_relative_to_its_working_directory(tmp_path: Path) -> None:
    for place in ("bin", "more"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "prog").write_text(f"#!/bin/sh\necho {place} $0\n")
        (tmp_path / place / "prog").chmod(0o755)
    given = await run_program(ProgramCommand(["bin/prog"], ENV, tmp_path))
    found = await run_program(ProgramCommand(["prog"], {"PATH": "none:more:/bin"}, tmp_path))
    assert (given.out[:4], found.out[:5]) == (b"bin ", b"more ")


async def test_stdin_is_the_given_text() -> None:
    text = "ö\n" * 500_000
    assert (await run_program(sh("cat", stdin=text))).out == text.encode()
    assert (await run_program(sh("wc -c", stdin=""))).out.split() == [b"0"]


async def test_unread_stdin_does_not_block() -> None:
    assert (await run_program(sh("exit 4", stdin="x" * 1_000_000))).code == 4


async def test_without_a_text_stdin_is_empty() -> None:
    assert (await run_program(sh("cat; readlink /proc/self/fd/0"))).out == b"/dev/null\n"


async def test_a_program_inherits_only_its_three_streams() -> None:
    listed = await run_program(ProgramCommand([*PYTHON, "import os; print(os.listdir('/proc/self/fd'))"], {}))
    assert listed.out == b"['0', '1', '2', '3']\n"  # the last one is that of the listing


async def test_a_program_starts_with_default_signal_handlers() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        status = await run_program(sh("grep -E '^Sig(Blk|Ign)' /proc/self/status"))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        signal.signal(signal.SIGUSR1, before)
    blocked, ignored = (int(line.split()[1], 16) for line in status.out.splitlines())
    assert blocked == 0
    ours = (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
    assert [number for number in ours if ignored >> (number - 1) & 1] == []  # what a shell above us ignores, stays so


async def test_lines_come_as_they_are_written(tmp_path: Path) -> None:
    script = "echo first; while [ ! -e go ]; do sleep 0.01; done; printf 'second\\n\\nlast'"
    async with start_program(sh(script, cwd=tmp_path)) as program:
        lines = [await anext(program.lines())]
        (tmp_path / "go").touch()
        lines += [line async for line in program.lines()]
        assert lines == [b"first", b"second", b"", b"last"]
        assert await program.wait() == ExitResult(0, b"", "")


async def test_too_long_a_line_is_an_error_after_the_lines_before_it() -> None:
    async with start_program(sh("echo 0123456789; yes | tr -d '\\n'"), ProgramLimits(max_line_bytes=10)) as program:
        assert await anext(program.lines()) == b"0123456789"
        with pytest.raises(TooMuchOutput, match=r"'/bin/sh' wrote a line of more than 10 bytes"):
            await anext(program.lines())


async def test_too_many_lines_are_an_error_after_those_within_the_limit() -> None:
    async with start_program(sh("yes"), ProgramLimits(max_bytes=1001)) as program:
        assert [await anext(program.lines()) for _ in range(500)] == [b"y"] * 500
        with pytest.raises(TooMuchOutput, match="more than 1001 bytes"):
            await anext(program.lines())


async def test_too_much_output_is_an_error() -> None:
    assert len((await run_program(sh("yes | head -c 1000"), ProgramLimits(max_bytes=1000))).out) == 1000
    with pytest.raises(TooMuchOutput, match="'/bin/sh' wrote more than 999 bytes"):
        await run_program(sh("yes | head -c 1000"), ProgramLimits(max_bytes=999))


async def test_the_beginning_and_end_of_a_long_stderr_are_kept() -> None:
    ended = await run_program(sh("(echo begin; yes | head -c 5000000; echo end) >&2; echo out"))
    assert ended.out == b"out\n"
    assert ended.err.startswith("begin\ny\n")
    assert ended.err.endswith("y\nend\n")
    assert "[... 4992010 bytes left out ...]" in ended.err


async def test_an_excerpt_of_discarded_output_is_kept(tmp_path: Path) -> None:
    script = "echo listening; yes | head -c 3000000; echo oops >&2; echo end; echo > done; sleep 600"
    async with start_program(sh(script, cwd=tmp_path)) as server:
        assert await anext(server.lines()) == b"listening"
        server.discard_output()
        await written(tmp_path / "done")
    ended = await server.wait()
    assert (ended.code, ended.err) == (-9, "oops\n")
    assert ended.out.endswith(b"bytes left out ...]\n" + b"y\n" * 1998 + b"end\n")


async def test_a_program_whose_output_is_not_read_ends() -> None:
    async with start_program(sh("yes | head -c 3000000; exit 5")) as program:
        assert (await program.wait()).code == 5
        assert len(program.out) < 10_000


async def test_output_that_ends_early_does_not_end_the_program(tmp_path: Path) -> None:
    script = "exec >&- 2>&-; while [ ! -e go ]; do sleep 0.01; done; exit 6"
    async with start_program(sh(script, cwd=tmp_path)) as program:
        assert [line async for line in program.lines()] == []
        (tmp_path / "go").touch()
        assert (await program.wait()).code == 6


async def test_a_stopped_program_has_its_grace_to_finish() -> None:
    script = "trap 'echo bye; exit 7' TERM; echo ready; while true; do sleep 0.01; done"
    async with start_program(sh(script), ProgramLimits(grace=60)) as program:
        assert await anext(program.lines()) == b"ready"
    ended = await program.wait()  # the shell may have a word to say of its sleep
    assert (ended.code, ended.out) == (7, b"bye\n")


async def test_a_program_without_a_grace_period_is_killed_at_once() -> None:
    async with start_program(sh("trap 'exit 7' TERM; echo ready; while true; do sleep 0.01; done")) as program:
        assert await anext(program.lines()) == b"ready"
    assert (await program.wait()).code == -9


async def test_a_program_that_ignores_sigterm_is_killed_after_its_grace() -> None:
    async with start_program(sh("trap '' TERM; echo ready; sleep 600"), ProgramLimits(grace=0.05)) as program:
        assert await anext(program.lines()) == b"ready"
    assert (await program.wait()).code == -9


async def test_cancelling_the_stop_cuts_the_grace_short() -> None:
    stopping = asyncio.Event()

    async def use() -> None:
        async with start_program(
            sh("trap 'echo asked' TERM; echo ready; while true; do sleep 0.01; done"), long
        ) as program:
            try:
                assert await anext(program.lines()) == b"ready"
            finally:
                stopping.set()

    long = ProgramLimits(grace=3600)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        task = group.create_task(use())
        await stopping.wait()
        task.cancel()
    assert task.cancelled()


async def test_a_supervisor_ignores_signals_from_its_program() -> None:
    ended = await run_program(sh("for number in INT TERM HUP; do kill -$number $PPID; done; exit 8"))
    assert ended.code == 8


async def test_dead_orphans_are_reaped_while_the_program_runs() -> None:
    async with start_program(sh("(/bin/sh -c 'echo $$' &); sleep 600")) as program:
        orphan = Path("/proc", (await anext(program.lines())).decode())
        async with asyncio.timeout(60):
            while orphan.exists():
                await asyncio.sleep(0.01)


async def test_a_program_dies_with_its_supervisor(mark: str) -> None:
    async with start_program(sh("sleep 600 & echo $PPID; wait", env={**ENV, "MARK": mark})) as program:
        os.kill(int(await anext(program.lines())), signal.SIGKILL)
        await until_none_is(mark)


async def test_no_exit_code_is_invented_when_the_supervisor_was_killed() -> None:
    async with start_program(sh("echo $PPID; sleep 600")) as program:
        os.kill(int(await anext(program.lines())), signal.SIGKILL)
        with pytest.raises(ProgramLost, match="exit status of '/bin/sh' is unknown"):
            await program.wait()


@pytest.mark.slow
async def test_twenty_programs_run_concurrently() -> None:
    async with asyncio.TaskGroup() as group:
        runs = [group.create_task(run_program(sh(f"read x; echo $x; exit {n}", stdin=f"{n}\n"))) for n in range(20)]
    assert [run.result() for run in runs] == [ExitResult(n, f"{n}\n".encode(), "") for n in range(20)]


def test_programs_run_on_any_event_loop() -> None:
    assert uvloop.run(run_program(sh("cat; exit 9", stdin="in"))) == ExitResult(9, b"in", "")
