"""The dashboard in a terminal: real programs on a pseudo-terminal, and what is seen there."""

import errno
import fcntl
import io
import logging
import os
import pty
import re
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO, cast

import pyte
import pytest
from rich.console import Console
from tests.support.forked_programs import Program, Programs

from batch_agent.core.events import PrefixReported, RunStarted
from batch_agent.core.run_reports import Finding, PrefixReport
from batch_agent.observe.live.terminal import Frame, LiveProgress, StreamRedirect, is_redirected
from batch_agent.sim import Script, SimConfig, SimServer

BEGIN, END = b"\x1b[?2026h", b"\x1b[?2026l"
_ON_TERMINAL = """
import os, sys
os.setsid()
terminal = os.open(sys.argv.pop(1), os.O_RDWR)
for number in (0, 1, 2) if sys.argv.pop(1) == "all" else (0, 2):
    os.dup2(terminal, number)
from batch_agent.cli.app import main; main()
"""
_TOOLS = """
import asyncio, logging, pathlib
logging.basicConfig(format="LOGGED %(message)s")
def look(name: str) -> str:
    '''Look up.'''
    print("PRINTED", name)
    logging.warning("%s\\nin two lines", name)
    return name
async def hold(name: str) -> str:
    '''Look up, one of them only when it may.'''
    while name == "key-3" and not pathlib.Path("may_end").exists():
        await asyncio.sleep(0.02)
    return name
"""


class Screen:
    """What a terminal shows of what it is sent. A change of width wraps long lines anew, as most terminals do, and the
    cursor stays where it was in the text."""

    def __init__(self, columns: int, lines: int) -> None:
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)

    def feed(self, data: bytes) -> None:
        self._stream.feed(data)

    @property
    def rows(self) -> list[str]:
        return [row.rstrip() for row in self._screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.rows)

    @property
    def columns(self) -> int:
        return self._screen.columns

    @property
    def shows_cursor(self) -> bool:
        return not self._screen.cursor.hidden

    def resize(self, columns: int, lines: int) -> None:
        screen, cursor = self._screen, self._screen.cursor
        text: list[str] = []
        at = 0
        for y, row in enumerate(self.rows):
            if y == cursor.y:
                at = len(text)
            text += [row[begin : begin + columns] for begin in range(0, len(row), columns)] or [""]
        while len(text) > at + 1 and not text[-1]:
            text.pop()
        gone = max(0, len(text) - lines)
        screen.resize(lines, columns)
        screen.cursor_position(1, 1)
        screen.erase_in_display(2)
        for y, row in enumerate(text[gone:], 1):
            screen.cursor_position(y, 1)
            screen.draw(row)
        screen.cursor_position(max(0, at - gone) + 1, 1)


class Terminal:
    """A pseudo-terminal with somebody who looks at it. An update that says where it ends is shown when it is whole."""

    def __init__(self, columns: int, lines: int) -> None:
        self.screen = Screen(columns, lines)
        self.sent = bytearray()
        self._shown = 0
        self._master, self._slave = pty.openpty()
        self.path = os.ttyname(self._slave)
        self._news = threading.Condition()
        self._set_size(columns, lines)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def resize(self, columns: int, lines: int) -> None:
        with self._news:
            self.screen.resize(columns, lines)
            self._set_size(columns, lines)

    def until(self, seen: Callable[[Screen], bool]) -> list[str]:
        """The rows, as soon as it is seen."""
        end = time.monotonic() + 30
        with self._news:
            while not seen(self.screen):
                if not self._news.wait(end - time.monotonic()):
                    raise AssertionError(f"never seen; last:\n{self.screen.text}")
            return self.screen.rows

    def close(self) -> None:
        os.close(self._slave)  # the reader gets to the end of it
        self._thread.join()
        os.close(self._master)

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:
                return
            self.sent += data
            begun = self.sent.rfind(BEGIN)
            until = begun if begun > self.sent.rfind(END) else len(self.sent)
            if until > self._shown:
                with self._news:
                    self.screen.feed(bytes(self.sent[self._shown : until]))
                    self._shown = until
                    self._news.notify_all()


@contextmanager
def terminal(columns: int = 100, lines: int = 30) -> Iterator[Terminal]:
    opened = Terminal(columns, lines)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture(scope="module")
def sim_url() -> Iterator[str]:
    with SimServer(SimConfig(step_base_ms=4), Script(answer_tokens=12)) as sim:
        yield sim.url


def start(
    programs: Programs, place: Path, where: Terminal, url: str, *words: str, streams: str = "all", **environment: str
) -> Program:
    (place / "in.jsonl").write_text("".join(f'{{"name": "number {index}"}}\n' for index in range(24)))
    (place / "mine.py").write_text(_TOOLS)
    asked = ["run", "--task", "Who is {name}?", "--inputs", "in.jsonl", "--max-inflight", "3", "--backend", url, *words]
    usual = {"TERM": "xterm-256color", "CI": "", "NO_COLOR": ""}
    return programs.start(
        _ON_TERMINAL, where.path, streams, *asked, cwd=place, environment={**usual, **environment}
    )  # fmt: skip


def frames(rows: list[str]) -> int:
    return sum(row.startswith("sim on sim ") for row in rows)


def has_advanced(screen: Screen) -> bool:
    return " of 24 " in screen.text and "0 of 24" not in screen.text


@pytest.mark.slow
def test_the_dashboard_is_redrawn_in_any_size_and_leaves_nothing_but_the_summary(
    tmp_path: Path, sim_url: str, programs: Programs
) -> None:
    with terminal() as seen:
        program = start(programs, tmp_path, seen, sim_url, "--tools", "mine:hold")
        rows = seen.until(has_advanced)
        assert frames(rows) == 1
        assert not seen.screen.shows_cursor
        for columns, lines in ((60, 30), (44, 12), (130, 40), (90, 9)):
            seen.resize(columns, lines)
            rows = seen.until(lambda screen: any(len(row) == screen.columns - 1 for row in _titles(screen)))
            assert frames(rows) == 1, "\n".join(rows)
            assert sum(row.startswith("agents ") for row in rows) == 1, "\n".join(rows)
        (tmp_path / "may_end").touch()
        assert program.wait() == 0
        seen.resize(100, 30)
        rows = seen.until(lambda screen: "Results: results.jsonl" in screen.text)
        assert any(row.startswith("24 of 24 agents answered in ") for row in rows)
        assert frames(rows) == 0
        assert not any(row.startswith(("agents ", "slots ", "tokens ")) or "━" in row for row in rows)
        assert seen.screen.shows_cursor


def _titles(screen: Screen) -> list[str]:
    return [row for row in screen.rows if row.startswith("sim on sim ")]


@pytest.mark.slow
def test_ctrl_c_gives_the_terminal_back_as_it_was(tmp_path: Path, sim_url: str, programs: Programs) -> None:
    with terminal() as seen:
        program = start(programs, tmp_path, seen, sim_url, "--tools", "mine:hold")
        seen.until(has_advanced)
        seen.type(b"\x03")
        assert program.wait() == 130
        rows = seen.until(lambda screen: "To resume: run the same command again" in "".join(screen.rows))  # wrapped
        assert frames(rows) == 0
        assert not any("━" in row or "Traceback" in row for row in rows)
        assert seen.screen.shows_cursor
        text = "".join(rows)
        [done] = re.findall(r"Stopped\. (\d+) of 24 agents are done; everything so far is kept in ", text)
        assert f"{done} of 24 agents answered, {24 - int(done)} not finished after " in text
        assert "Report: results.jsonl.checkpoint/report.html" in text


_SCRIPT = """
import os, sys
os.setsid()
terminal = os.open(sys.argv[1], os.O_RDWR)
for number in 0, 1, 2:
    os.dup2(terminal, number)
from batch_agent import BatchAgent
import mine
inputs = [{"name": f"number {index}"} for index in range(24)]
BatchAgent.run_sync(
    task="Who is {name}?", inputs=inputs, tools=[mine.hold], backend=sys.argv[2], max_inflight=3, checkpoint_dir="ck"
)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["at its end", "by ctrl-c"])
def test_the_summary_of_a_script_stays_in_the_terminal(
    tmp_path: Path, sim_url: str, programs: Programs, ends: str
) -> None:
    (tmp_path / "mine.py").write_text(_TOOLS)
    with terminal(120, 40) as seen:
        usual = {"TERM": "xterm-256color", "CI": "", "NO_COLOR": ""}
        program = programs.start(_SCRIPT, seen.path, sim_url, cwd=tmp_path, environment=usual)
        seen.until(has_advanced)
        if ends == "by ctrl-c":
            seen.type(b"\x03")
            assert program.wait() == -signal.SIGINT
            rows = seen.until(lambda screen: "KeyboardInterrupt" in screen.text)
            text = "".join(rows)
            [done] = re.findall(r"Stopped\. (\d+) of 24 agents are done; everything so far is kept in 'ck'\.", text)
            assert f"{done} of 24 agents answered, {24 - int(done)} not finished after " in text
            assert text.count("Traceback") == 1
            assert "During handling" not in text
        else:
            (tmp_path / "may_end").touch()
            assert program.wait() == 0
            rows = seen.until(lambda screen: "Report: ck/report.html" in screen.text)
            assert "24 of 24 agents answered in " in "".join(rows)
        assert "Report: ck/report.html" in rows
        assert frames(rows) == 0
        assert seen.screen.shows_cursor


@pytest.mark.slow
def test_what_tools_print_and_log_stands_above_and_a_pipe_gets_what_is_its_own(
    tmp_path: Path, sim_url: str, programs: Programs
) -> None:
    with terminal(100, 200) as seen:
        program = start(programs, tmp_path, seen, sim_url, "--tools", "mine:look", streams="err")
        rows = seen.until(lambda screen: has_advanced(screen) and "LOGGED" in screen.text)
        assert frames(rows) == 1
        first = next(row[: len("LOGGED")] for row in rows if row.startswith(("LOGGED", "sim on sim ")))
        assert first == "LOGGED"
        assert program.wait() == 0
        rows = seen.until(lambda screen: "Results: results.jsonl" in screen.text)
        logged = [at for at, row in enumerate(rows) if row.startswith("LOGGED ")]
        assert len(logged) == 24
        assert all(rows[at + 1] == "in two lines" for at in logged)
        assert "PRINTED" not in "".join(rows)
        assert program.stdout.read_text().count("PRINTED") == 24


@pytest.mark.parametrize(("words", "environment"), [(("--no-dashboard",), {}), ((), {"CI": "true"})])
def test_plain_lines_are_all_there_is_where_they_are_wanted(
    tmp_path: Path, sim_url: str, programs: Programs, words: tuple[str, ...], environment: dict[str, str]
) -> None:
    with terminal() as seen:
        program = start(programs, tmp_path, seen, sim_url, *words, **environment)
        assert program.wait() == 0
        rows = seen.until(lambda screen: "Results: results.jsonl" in screen.text)
        assert "24 of 24 agents answered" in "".join(rows)
        assert b"\x1b" not in seen.sent


def test_a_pipe_gets_the_dashboard_if_it_is_asked_for(tmp_path: Path, sim_url: str, programs: Programs) -> None:
    (tmp_path / "in.jsonl").write_text('{"name": "Ada"}\n{"name": "Bob"}\n')
    words = ("run", "--task", "Who is {name}?", "--inputs", "in.jsonl", "--backend", sim_url, "--dashboard")
    program = programs.start_command(*words, cwd=tmp_path)
    assert program.wait() == 0
    said, screen = program.stderr.read_bytes(), Screen(80, 24)
    screen.feed(said.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"))
    assert BEGIN in said
    assert frames(screen.rows) == 0
    assert "2 of 2 agents answered" in screen.text
    assert screen.shows_cursor


class Wired(io.StringIO):
    """A stream to a screen, as a terminal's driver would pass it on."""

    encoding = "utf-8"

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._screen.feed(text.replace("\r\n", "\n").replace("\n", "\r\n").encode())
        return len(text)


def wired(columns: int = 30, lines: int = 6) -> tuple[Screen, TextIO]:
    screen = Screen(columns, lines)
    return screen, cast("TextIO", Wired(screen))


def test_a_frame_is_drawn_in_place_below_what_is_printed() -> None:
    screen, stream = wired()
    frame = Frame(stream)
    stream.write("before\n")
    frame.open()
    frame.draw(["", "one", "two"])
    assert screen.rows == ["before", "", "one", "two", "", ""]
    frame.draw(["", "three"])
    assert screen.rows == ["before", "", "three", "", "", ""]
    frame.above("printed\n", stream)
    assert screen.rows == ["before", "printed", "", "three", "", ""]
    stream.write("past the frame\n")
    frame.draw(["", "four", "five", "six"])
    assert screen.rows == ["printed", "past the frame", "", "four", "five", "six"]
    assert not screen.shows_cursor
    frame.close()
    assert screen.rows == ["printed", "past the frame", "", "", "", ""]
    assert screen.shows_cursor


def test_a_terminal_that_is_gone_is_written_to_no_more() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    frame = Frame(Gone())
    frame.open()
    frame.draw(["one"])
    frame.close()


@pytest.mark.parametrize("error", [BrokenPipeError, OSError(errno.EIO, "gone"), ValueError("closed")])
def test_a_run_goes_on_without_its_terminal(error: Exception | type[Exception]) -> None:
    class Gone(io.StringIO):
        encoding = "utf-8"

        def write(self, text: str) -> int:
            raise error

        def flush(self) -> None:
            raise error

    with LiveProgress(Console(file=Gone(), force_terminal=True)) as view:
        view.emit(
            PrefixReported(PrefixReport(3, 10, 20, "here", findings=(Finding("uuid", "There is one.", "Drop it."),)))
        )
        view.emit(RunStarted("one", "m", 8, 1))
        view._redraw_loop.redraw()


def test_streams_and_log_handlers_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, terminal_stream = wired()
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal_stream)
    monkeypatch.setattr(sys, "stdout", pipe)
    logger, handler = logging.getLogger("a.tool"), logging.StreamHandler(terminal_stream)
    logger.addHandler(handler)
    frame = Frame(terminal_stream)
    redirecting = StreamRedirect(terminal_stream, frame)
    frame.open()
    redirecting.start()
    try:
        assert is_redirected()
        assert sys.stdout is pipe
        frame.draw(["", "frame"])
        print("half", end="", file=sys.stderr)
        assert screen.rows[:2] == ["", "frame"]
        print(" a line", file=sys.stderr)
        logger.warning("logged")
        sys.stderr.writelines(["and ", "a rest"])
        assert screen.rows[:4] == ["half a line", "logged", "", "frame"]
    finally:
        frame.close()
        redirecting.stop()
        logger.removeHandler(handler)
    assert screen.rows[:3] == ["half a line", "logged", "and a rest"]
    assert sys.stderr is terminal_stream
    assert handler.stream is terminal_stream
    assert not is_redirected()


def test_of_two_runs_at_once_one_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, stream = wired(60, 20)
    monkeypatch.setattr(sys, "stderr", stream)
    console = Console(file=stream, force_terminal=True)
    with LiveProgress(console) as first, LiveProgress(console) as second:
        first.emit(RunStarted("one", "m", 8, 1))
        second.emit(RunStarted("two", "m", 8, 1))
        first._redraw_loop.redraw()
        assert sum(row.startswith("m on ") for row in screen.rows) == 1
        assert second.state.run_stats.backend == "two"
    assert screen.text.strip() == ""
