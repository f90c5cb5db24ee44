"""Answers a batch file without a server: requests in, responses out, in the format of OpenAI and `vllm run-batch`."""

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import orjson

from .. import aio
from ..batch_api.lines import InputLine, check_lines, read_line, response_line
from ..batch_api.resources import BatchProblem
from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.spec import BatchSpec
from ..data.append_file import AppendFile
from ..tools import Tool
from .batch_store import new_id
from .line_service import LineResponse, open_line_service

STDIN = "-"
_SHOWN_PROBLEMS = 3
_PROGRESS_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RunBatchResult:
    """Counts of the output's lines: those that succeeded now or in an earlier run, and those that failed."""

    completed: int
    failed: int
    resumed: int
    """Number of completed lines that come from earlier runs."""


async def run_batch(
    source: str, out: Path, spec: BatchSpec, tools: Sequence[Tool], notify: Callable[[str], None]
) -> RunBatchResult:
    """Answers each line of `source`, a file or `-` for standard input, and appends each response to `out` at once.
    Lines with a response of status 200 in `out` are not sent again. `spec`: only its backend, model, limits, retries
    and timeouts apply. Raises SpecError, BackendError and RunStopped; responses so far are in `out`."""
    with _opened(source) as file:
        numbers = _checked(file, source)
        kept = _kept(out, numbers)
        completed, failed, shown_at = len(kept), 0, aio.now()
        with AppendFile(out, "-o") as output:
            async with open_line_service(spec, tools, notify) as service:
                _check_urls(file, service.endpoints)
                output.replace(kept.values())
                if kept:
                    notify(f"{len(kept):,} of {len(numbers):,} lines are in {out} already.")

                async def deliver(line: InputLine, response: LineResponse) -> None:
                    nonlocal completed, failed, shown_at
                    ids = new_id("batch_req_"), line.custom_id, response.status, new_id("req_")
                    output.append(response_line(*ids, response.body))
                    completed, failed = completed + response.ok, failed + (not response.ok)
                    if aio.now() - shown_at >= _PROGRESS_SECONDS:
                        shown_at = aio.now()
                        notify(f"{completed + failed:,} of {len(numbers):,} lines, {failed:,} failed.")

                rest = (line for line in _lines(file) if line.custom_id not in kept)
                await service.answer("line", rest, deliver)
    return RunBatchResult(completed, failed, len(kept))


@contextmanager
def _opened(source: str) -> Iterator[BinaryIO]:
    """The file, which is read more than once, so piped input is stored first."""
    try:
        if source != STDIN:
            with Path(source).open("rb") as file:
                yield file
            return
        with tempfile.TemporaryFile() as spooled:
            spooled.writelines(sys.stdin.buffer)
            yield spooled
    except OSError as error:
        raise SpecError(f"{source!r} cannot be read: {error.strerror}.") from error


def _checked(file: BinaryIO, source: str) -> dict[str, int]:
    """Numbers of the lines by custom id. Raises SpecError before anything is sent."""
    numbers: dict[str, int] = {}
    problems: list[str] = []
    file.seek(0)
    for each in check_lines(file, max_lines=None):
        if isinstance(each, InputLine):
            numbers[each.custom_id] = each.number
        else:
            problems.append(each.message if each.line is None else f"line {each.line}: {each.message}")
    if problems:
        more = f" And {len(problems) - _SHOWN_PROBLEMS:,} more." if len(problems) > _SHOWN_PROBLEMS else ""
        raise SpecError(f"{source!r} is not a batch file: {' '.join(problems[:_SHOWN_PROBLEMS])}{more}")
    return numbers


def _check_urls(file: BinaryIO, endpoints: Sequence[str]) -> None:
    for line in _lines(file):
        if line.url not in endpoints:
            raise SpecError(
                f"Line {line.number} is for {line.url!r}, which this backend is not used for. It takes "
                f"{', '.join(endpoints)}."
            )


def _lines(file: BinaryIO) -> Iterator[InputLine]:
    file.seek(0)
    for number, raw in enumerate(file, start=1):
        line = read_line(raw, number) if raw.strip() else None
        if line is not None and not isinstance(line, BatchProblem):
            yield line


def _kept(out: Path, numbers: dict[str, int]) -> dict[str, bytes]:
    """Lines of an earlier output that need not be sent again, by custom id. Drops a last line that a killed process
    left incomplete. Raises SpecError if the file is not the output of this input."""
    kept: dict[str, bytes] = {}
    try:
        with out.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if not raw.endswith(b"\n"):
                    break
                custom_id, ok = _read_output(raw, number, out)
                if custom_id not in numbers:
                    raise SpecError(
                        f"{str(out)!r} has a response for {custom_id!r}, which is not in the input. Use another file."
                    )
                if ok:
                    kept[custom_id] = raw
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SpecError(f"-o {str(out)!r} cannot be read: {error.strerror}.") from error
    return kept


def _read_output(raw: bytes, number: int, out: Path) -> tuple[str, bool]:
    try:
        match orjson.loads(raw):
            case {"custom_id": str(custom_id), "response": {"status_code": int(status)}}:
                return custom_id, status == 200
            case {"custom_id": str(custom_id), "response": None}:
                return custom_id, False
    except orjson.JSONDecodeError:
        pass
    raise SpecError(f"{str(out)!r} is not the output of a batch: see its line {number}. Use another file.")
