"""Follows a page as its reader would: its files are written, its Python is run in order in one namespace, its commands
are typed, in a folder of the page's own."""

import ast
import asyncio
import inspect
import io
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.docs.markdown import Block, blocks_of, commands_of
from tests.support.forked_programs import Call

from batch_agent import Results

RUN = ("python", "bash", "console", "sh")
"""What is run; of other languages only what has a title is used, as a file."""
PROGRAMS = ("batch-agent", "cat", "cut", "head", "python")
"""What may be typed; all else is to be marked as not run."""
SHOWN = ("text", "toml", "yaml", "json", "jsonl", "csv", "mermaid", "ini")


@dataclass(frozen=True, slots=True)
class Needs:
    """What a page takes for granted. Better to show it there, in a block with a title."""

    files: Mapping[str, str] = field(default_factory=dict)
    python: str = ""
    """Run before the first block."""
    check: str = ""
    """Run after the last one."""
    backend: str = ""
    """For commands that would else start the embedded model, which takes its time."""
    may_fail: bool = False
    """Whether agents of this page may fail; those of others may not."""


class Reading:
    """One page. Raises what its code raises; AssertionError for a command that fails and for what is printed otherwise
    than shown."""

    def __init__(self, page: Path, needs: Needs, folder: Path, call: Call, addresses: Mapping[str, str]) -> None:
        self._page, self._needs, self._folder, self._call = page, needs, folder, call
        self._addresses = addresses
        self._names: dict[str, Any] = {"__name__": page.stem.replace("-", "_")}
        self._said = ""
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._runner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.__exit__(kind, error, trace)

    def follow(self) -> None:
        for name, text in self._needs.files.items():
            self._write(name, text)
        self._run(self._needs.python, 0)
        for block in blocks_of(self._page.read_text()):
            self._follow(block)
        self._call_tests()
        self._run(self._needs.check, 0)

    def _follow(self, block: Block) -> None:
        if block.not_run:
            return
        if block.title:
            self._write(block.title, block.text)
        if block.language == "python":
            self._run(block.text, block.line)
            self._check_results(block)
        elif block.language in RUN:
            self._type(block)
        elif block.language == "text" and block.follows and not block.title:
            self._check_said(block.text, block)

    def _run(self, text: str, line: int) -> None:
        # Blank lines in front give errors the numbers of the page's lines.
        source = "\n" * line + self._here(text)
        code = compile(source, str(self._page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with redirect_stdout(io.StringIO()) as said:
            if code.co_flags & inspect.CO_COROUTINE:
                self._runner.run(eval(code, self._names))
            else:
                exec(code, self._names)
        self._said = said.getvalue()

    def _type(self, block: Block) -> None:
        """A block is a shell of its own, which begins in the page's folder."""
        folder, environment = self._folder, dict[str, str]()
        for command, shown in commands_of(block):
            words = shlex.split(self._here(command), comments=True)
            match words:
                case ["export", *named]:
                    environment |= dict(word.split("=", 1) for word in named)
                case ["cd", into]:
                    folder /= into
                case ["batch-agent", *rest] if not _needs_a_shell(command):
                    self._end(self._call(*rest, *self._backend_for(words), cwd=folder, **environment), command, block)
                case _:
                    self._end(_in_bash(self._here(command), folder, environment), command, block)
            if block.is_exact:
                self._check_said(shown, block)

    def _end(self, done: "subprocess.CompletedProcess[str]", command: str, block: Block) -> None:
        assert done.returncode == block.status, f"{self._place(block)}: {command}\n{done.stdout}{done.stderr}"
        self._said = done.stdout

    def _backend_for(self, words: list[str]) -> list[str]:
        asks = words[1:2] in (["run"], ["plan"], ["init"], ["demo"])
        if not self._needs.backend or not asks or "--backend" in words:
            return []
        return ["--backend", self._here(self._needs.backend)]

    def _check_said(self, shown: str, block: Block) -> None:
        said = f"{self._place(block)} shows something else than what is printed:\n{self._said}"
        assert shown.split() == self._said.split(), said

    def _check_results(self, block: Block) -> None:
        if self._needs.may_fail:
            return
        for name, value in self._names.items():
            if isinstance(value, Results):
                failed = [str(result.error) for result in value if not result.ok]
                assert not failed, f"{self._place(block)}: agents of {name} failed: {failed[:3]}"

    def _call_tests(self) -> None:
        for name, value in list(self._names.items()):
            if name.startswith("test_"):
                if inspect.iscoroutinefunction(value):
                    self._runner.run(value())
                else:
                    value()

    def _write(self, name: str, text: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._here(text))

    def _here(self, text: str) -> str:
        """With the servers that it names replaced by those that stand in for them."""
        for told, real in self._addresses.items():
            text = text.replace(told, real)
        return text

    def _place(self, block: Block) -> str:
        return f"{self._page.name}:{block.line}"


def _in_bash(command: str, folder: Path, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    program = command.split()[0]
    assert program in PROGRAMS, f"{command!r} is not run here: say so by a comment before its block"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder, env={**os.environ, **environment, "PATH": path}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def _needs_a_shell(command: str) -> bool:
    words = shlex.shlex(command, posix=True, punctuation_chars="|&;<>")
    words.whitespace_split = True
    return any(set(word) <= set("|&;<>") for word in words)
