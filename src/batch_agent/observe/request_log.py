"""Request log: each request to the model and the raw response, as a line of a JSONL file and of the DEBUG log."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..core.errors import SpecError
from ..core.json import dumps, loads
from ..core.requests import Exchange, Request, Usage
from ..plan.row_keys import row_key

_log = logging.getLogger("batch_agent")

Notify = Callable[[str], None]


class RequestLog:
    """Observer of the requests of a run, a flow or a pool. Attempts of a turn are numbered from 1."""

    def __init__(self, path: Path | None, notify: Notify) -> None:
        """`path`: the log file; None logs at DEBUG only. Raises SpecError if the file cannot be written."""
        self._file = None if path is None else _LogFile(path, notify)
        self._logs = _log.isEnabledFor(logging.DEBUG)
        self._attempts: dict[tuple[str, str], tuple[int, int]] = {}
        """Turn and attempts of each agent's last request, by stage and agent."""

    def __call__(self, exchange: Exchange) -> None:
        attempt = self._attempt(exchange.request)
        if self._file is not None:
            self._file.append(dumps(_line(exchange, attempt)) + b"\n")
        if self._logs:
            _log.debug("%s", _text(exchange, attempt))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def _attempt(self, request: Request) -> int:
        if not request.agent:
            return 1
        agent = request.stage, request.agent
        turn, attempts = self._attempts.get(agent, (-1, 0))
        attempt = attempts + 1 if turn == request.turn else 1
        self._attempts[agent] = request.turn, attempt
        return attempt


def read_request_log(path: str | Path) -> Iterator[dict[str, Any]]:
    """The lines of a request log, oldest first. Skips lines that a killed process or a full disk left incomplete.
    Raises OSError."""
    with Path(path).expanduser().open("rb") as file:
        for line in file:
            try:
                entry = loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                yield entry


class _LogFile:
    """File to which whole lines are appended, possibly by several processes."""

    def __init__(self, path: Path, notify: Notify) -> None:
        self._path = path
        self._notify = notify
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise SpecError(f"log_requests={str(path)!r} cannot be written: {error.strerror}.") from error
        self._is_torn = _is_torn_file(self._fd)

    def append(self, line: bytes) -> None:
        """Writes a line. If the disk is full, warns once and closes the file; the run continues without it."""
        if self._fd is None:
            return
        left = memoryview(b"\n" + line if self._is_torn else line)
        self._is_torn = False
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            self.close()
            self._notify(
                f"log_requests={str(self._path)!r} cannot be written: {error.strerror}. The run continues; its further "
                "requests are not logged."
            )

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):
                os.close(fd)


def _is_torn_file(fd: int) -> bool:
    """Whether the last line of a file is incomplete, because the process that wrote it was killed."""
    with suppress(OSError):  # a pipe or a device
        size = os.fstat(fd).st_size
        return size > 0 and os.pread(fd, 1, size - 1) != b"\n"
    return False


def _line(exchange: Exchange, attempt: int) -> dict[str, Any]:
    request, sent = exchange.request, exchange.sent
    return {
        "at": round(exchange.at, 3),
        "stage": request.stage or None,
        "index": request.index,
        "key": row_key(request.agent.partition(".")[0]) if request.agent else None,
        "agent": row_key(request.agent) or None,
        "turn": request.turn + 1 if request.agent else None,
        "attempt": attempt,
        "model": request.model,
        "method": sent.method,
        "url": sent.url,
        "headers": sent.headers,
        "body": sent.body,
        "status": exchange.status,
        "seconds": round(exchange.seconds, 4),
        "usage": None if exchange.usage is None else _tokens(exchange.usage),
        "error": exchange.error,
        "response_headers": exchange.headers,
        "response": exchange.response,
    }


def _text(exchange: Exchange, attempt: int) -> str:
    """An exchange on one line."""
    request, sent, usage = exchange.request, exchange.sent, exchange.usage
    target = f"{sent.method} {sent.url}" if sent.url else "request"
    outcome = "no response" if exchange.status is None else str(exchange.status)
    written = f", {usage.all_written} written" if usage is not None and usage.all_written else ""
    tokens = "" if usage is None else f", {usage.input} tokens in ({usage.cached} cached{written}), {usage.output} out"
    retry = f" attempt {attempt}" if attempt > 1 else ""
    error = f": {exchange.error}" if exchange.error else ""
    took = f"{exchange.seconds * 1000:.0f} ms"
    return f"{target} model={request.model} {outcome} {took}{tokens}, {_sender(request)}{retry}{error}"


def _sender(request: Request) -> str:
    if request.agent:
        sender = f"agent {request.index} turn {request.turn + 1}"
    else:
        sender = "no agent" if request.index is None else f"prompt {request.index}"
    return f"stage {request.stage}, {sender}" if request.stage else sender


def _tokens(usage: Usage) -> dict[str, int]:
    """Tokens of a request. Tokens written to the provider's cache are included only if there are any."""
    written = {"written": usage.written, "written_hour": usage.written_hour}
    tokens = {"input": usage.input, "cached": usage.cached, "output": usage.output}
    return tokens | {name: count for name, count in written.items() if count}
