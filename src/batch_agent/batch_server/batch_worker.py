"""Worker of the batch server: validates batches, answers their lines, and writes their files. An interrupted batch
continues with the lines that have no response yet."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from itertools import islice
from typing import Literal

from ..aio import unwrap_group
from ..atomic_file import atomic_write
from ..batch_api.lines import (
    InputLine,
    cancelled_line,
    check_lines,
    expired_line,
    read_line,
    response_line,
)
from ..batch_api.resources import (
    Batch,
    BatchProblem,
    BatchRequest,
    BatchUsage,
    RequestCounts,
    StoredFile,
    cannot_cancel,
    usage_of_line,
)
from ..core.run_failure import RunStopped
from ..schedule.retry import Backoff
from .batch_store import BatchStore, FinishedLine, new_id
from .line_service import LineResponse, LineService

_MAX_PROBLEMS = 50
"""Maximum number of an input file's problems that a failed batch shows."""
_OUTAGE = Backoff(5.0, 60.0)
"""Seconds between attempts to use an unavailable backend."""
End = Literal["completed", "expired", "cancelled"]


class BatchWorker:
    """Processes batches concurrently. They share the slots of the service evenly."""

    def __init__(
        self, store: BatchStore, service: LineService, notify: Callable[[str], None], *, max_lines: int
    ) -> None:
        self._store = store
        self._service = service
        self._notify = notify
        self._max_lines = max_lines
        self._group: asyncio.TaskGroup | None = None
        self._scopes: dict[str, asyncio.Timeout] = {}
        """Scopes of batches whose lines are being answered. Rescheduling a scope stops that."""
        self._stop = asyncio.Event()

    @property
    def _is_stopping(self) -> bool:
        return self._stop.is_set()

    async def run(self, stop: asyncio.Event, grace: float) -> None:
        """Processes batches until `stop` is set. It then begins no further line, and waits `grace` seconds for lines in
        flight. Raises StoreError."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for batch in list(self._store.batches.values()):
                    if not batch.has_ended:
                        group.create_task(self._process(batch.id))
                await stop.wait()
                self._stop.set()
                for batch_id in self._scopes:
                    self._end_scope(batch_id, grace)
        except BaseExceptionGroup as failures:
            raise unwrap_group(failures) from None

    def _end_scope(self, batch_id: str, seconds: float) -> None:
        """Stops answering the lines of a batch after this many seconds, unless it ends sooner."""
        scope = self._scopes.get(batch_id)
        if scope is None or scope.expired():
            return
        due, until = scope.when(), asyncio.get_running_loop().time() + seconds
        scope.reschedule(until if due is None else min(due, until))

    async def create(self, wanted: BatchRequest) -> Batch:
        """Raises ApiError."""
        self._store.file(wanted.input_file_id)
        batch = Batch(new_id("batch_"), wanted.endpoint, wanted.input_file_id, int(time.time()), wanted.metadata)
        await self._store.put_batch(batch)
        if self._group is not None and not self._is_stopping:
            self._group.create_task(self._process(batch.id))
        return batch

    async def cancel(self, batch_id: str) -> Batch:
        """Raises ApiError."""
        batch = self._store.batch(batch_id)
        if batch.has_ended:
            raise cannot_cancel(batch)
        batch = await self._store.put_batch(batch.moved("cancelling", time.time()))
        self._end_scope(batch_id, 0.0)
        return batch

    async def _process(self, batch_id: str) -> None:
        batch = self._store.batches[batch_id]
        if batch.status == "validating":
            batch = await self._validate(batch)
        if batch.status == "in_progress":
            await self._answer(batch)
        batch = self._store.batches[batch_id]
        if batch.has_ended or (self._is_stopping and not await self._is_answered(batch)):
            return
        end: End = "completed"
        if batch.status == "cancelling":
            end = "cancelled"
        elif not await self._is_answered(batch):
            end = "expired"
        await self._finalize(batch, end)

    async def _validate(self, batch: Batch) -> Batch:
        total, problems = await asyncio.to_thread(self._check, batch)
        batch = self._store.batches[batch.id]
        if batch.status != "validating":  # cancelled by now
            return batch
        if problems:
            failed = replace(batch.moved("failed", time.time()), problems=problems)
            return await self._store.put_batch(failed)
        started = replace(batch.moved("in_progress", time.time()), counts=RequestCounts(total))
        return await self._store.put_batch(started)

    def _check(self, batch: Batch) -> tuple[int, tuple[BatchProblem, ...]]:
        """The number of requests, and their problems. Blocks."""
        total = 0
        problems: list[BatchProblem] = []
        try:
            with self._store.path(batch.input_file_id).open("rb") as file:
                for each in check_lines(file, batch.endpoint, self._max_lines):
                    if isinstance(each, BatchProblem):
                        problems.append(each)
                    total += 1
        except OSError as error:
            problems.append(BatchProblem("invalid_file", f"The input file cannot be read: {error.strerror}."))
        return total, tuple(islice(problems, _MAX_PROBLEMS))

    async def _answer(self, batch: Batch) -> None:
        """Answers lines until all are answered, the batch expires or is cancelled, or the server stops."""
        failures = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, batch.expires_at - time.time())) as scope:
                self._scopes[batch.id] = scope
                try:
                    while not self._is_stopping:
                        try:
                            await self._answer_rest(batch)
                            return
                        except RunStopped as stopped:
                            delay = _OUTAGE.delay(failures)
                            failures += 1
                            self._notify(f"{batch.id} waits {delay:g} s: {stopped}")
                            with suppress(TimeoutError):
                                async with asyncio.timeout(delay):
                                    await self._stop.wait()
                finally:
                    del self._scopes[batch.id]

    async def _answer_rest(self, batch: Batch) -> None:
        finished = await self._store.finished(batch.id)
        succeeded = sum(finished.values())
        known = RequestCounts(batch.counts.total, succeeded, len(finished) - succeeded)
        self._store.batches[batch.id] = replace(self._store.batches[batch.id], counts=known)

        async def deliver(line: InputLine, response: LineResponse) -> None:
            output = response_line(new_id("batch_req_"), line.custom_id, response.status, new_id("req_"), response.body)
            await self._store.record_line(batch.id, FinishedLine(line.number, response.ok, output))
            shown = self._store.batches[batch.id]
            counts = shown.counts
            counted = replace(
                counts, completed=counts.completed + response.ok, failed=counts.failed + (not response.ok)
            )
            self._store.batches[batch.id] = replace(shown, counts=counted)

        with self._lines(batch) as lines:
            rest = (line for line in lines if line.number not in finished)
            await self._service.answer(batch.id, rest, deliver, lambda: self._is_stopping)

    async def _is_answered(self, batch: Batch) -> bool:
        return len(await self._store.finished(batch.id)) == batch.counts.total

    async def _finalize(self, batch: Batch, end: End) -> None:
        if batch.status == "in_progress":
            batch = await self._store.put_batch(batch.moved("finalizing", time.time()))
        files, usage = await asyncio.to_thread(self._write_files, batch, end)
        finished = await self._store.finished(batch.id)
        succeeded = sum(finished.values())
        ended = replace(
            batch.moved(end, time.time()),
            counts=RequestCounts(batch.counts.total, succeeded, len(finished) - succeeded),
            output_file_id=next((file.id for file in files if file.filename.endswith("_output.jsonl")), None),
            error_file_id=next((file.id for file in files if file.filename.endswith("_error.jsonl")), None),
            usage=usage if succeeded else None,
        )
        await self._store.end_batch(ended, files)

    def _write_files(self, batch: Batch, end: End) -> tuple[list[StoredFile], BatchUsage]:
        """Writes the output file, and the error file with the lines that were not executed, and sums the usage in the
        output. Blocks. A repetition replaces the files."""
        missing_line = cancelled_line if end == "cancelled" else expired_line
        files, usage = list[StoredFile](), BatchUsage()
        for kind in ("output", "error"):
            file_id = f"file-{batch.id.removeprefix('batch_')}-{kind}"
            path, done = self._store.path(file_id), set[int]()
            with atomic_write(path, is_private=True) as file:
                for line in self._store.read_finished(batch.id):
                    done.add(line.number)
                    if line.ok == (kind == "output"):
                        file.write(line.output)
                        usage += usage_of_line(line.output) if line.ok else BatchUsage()
                if kind == "error" and len(done) < batch.counts.total:
                    with self._lines(batch) as lines:
                        for each in lines:
                            if each.number not in done:
                                file.write(missing_line(new_id("batch_req_"), each.custom_id))
            size = path.stat().st_size
            if not size:
                path.unlink()
                continue
            files.append(StoredFile(file_id, f"{batch.id}_{kind}.jsonl", "batch_output", size, int(time.time())))
        return files, usage

    def _lines(self, batch: Batch) -> AbstractContextManager[Iterator[InputLine]]:
        return _OpenLines(self._store, batch)


class _OpenLines:
    """Iterator over the requests of a validated file."""

    def __init__(self, store: BatchStore, batch: Batch) -> None:
        self._path = store.path(batch.input_file_id)
        self._stack = ExitStack()

    def __enter__(self) -> Iterator[InputLine]:
        file = self._stack.enter_context(self._path.open("rb"))
        read = (read_line(raw, number) for number, raw in enumerate(file, start=1) if raw.strip())
        return (line for line in read if isinstance(line, InputLine))

    def __exit__(self, *_: object) -> None:
        self._stack.close()
