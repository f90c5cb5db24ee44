"""Backend of the batch lane: collects the next request of every ready agent, and submits them together."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from copy import copy
from dataclasses import field, replace
from hashlib import blake2b
from typing import Any

import orjson

from ..backends.dialects.dialect import Dialect
from ..core.errors import BackendError, BatchAgentError, ErrorKind
from ..core.fast_dataclass import dataclass
from ..core.json import dumps
from ..core.protocols.backend import Backend, CountsTokens, Traits
from ..core.protocols.store import EarlierSubmission, KeepsSubmissions, Submission, SubmittedLine
from ..core.requests import Delta, EncodedRequest, Exchange, Finished, Request, RequestObserver
from ..media.image_files import with_image_data
from ..schedule.lanes.waves import EnqueuedTokens, Wave, WaveLine, divide
from ..schedule.retry import Backoff
from .batch_service import BatchLine, BatchService, BatchStatus, LineFailed, LineResult, not_processed
from .batch_tracker import CERTAIN_SECONDS, BatchGone, BatchTracker, CreationUnknown, line_id
from .submission_log import SubmissionLog

_INFLIGHT = 1_000_000
"""Requests that wait in files take only memory."""
_POLLS = Backoff(1.0, 60.0)
_OVER_LIMIT_DELAYS = Backoff(30.0, 600.0)
"""Seconds until a refused submission is repeated while nothing of this run is enqueued, because others use up the
limit."""
_TAKE_DELAY = 1.0
"""Seconds after which a line counts as received. By then, the fact that its agent has recorded precedes it in the queue
of the store."""
_REPORT_SECONDS = 600.0
_ANSWER_LIMITS = ("max_tokens", "max_completion_tokens")

Notify = Callable[[str], None]


@dataclass(slots=True, eq=False)
class _PendingLine:
    """A request for which an agent waits."""

    line: WaveLine
    body: bytes
    agent: str
    reserved: SubmittedLine
    result: "asyncio.Future[tuple[str, LineResult]]"
    """The wave with which it was submitted, and the outcome."""
    wave: str = ""
    """The wave whose result it waits for; empty until it is submitted."""


@dataclass(slots=True, eq=False)
class _TrackedSubmission:
    """A submission whose results this process awaits."""

    results: dict[str, LineResult] = field(default_factory=dict)
    """Results for which no agent waits, by key. In a later process, their agents may not have started yet."""
    has_all: bool = False


class BatchBackend:
    """Collects requests of the lane `batch` for the next wave, and sends others at once. Submissions are recorded in
    the store, so a later process waits for them instead of submitting again."""

    def __init__(
        self,
        live: Backend,
        dialect: Dialect,
        service: BatchService,
        store: KeepsSubmissions,
        notify: Notify = lambda text: None,
        *,
        polls: Backoff = _POLLS,
        observe: RequestObserver | None = None,
        mask: Callable[[str], str] = str,
    ) -> None:
        """`live`: sends requests of other lanes; the caller closes it. `observe`: called with each line that has a
        result. `mask`: masks the secrets that are sent to the provider."""
        self._observe = observe
        self._mask = mask
        self.live = live
        self.traits: Traits = replace(
            live.traits,
            inflight=_INFLIGHT,
            fixed_inflight=True,
            kv_tokens=None,
            kv_running_tokens=None,
            has_agent_sessions=False,
            reports_rate_limits=False,
            takes_hints=False,
            managed_cache=False,
        )
        self._dialect = dialect
        self._service = service
        self._notify = notify
        self._log = SubmissionLog(store)
        self._tracker = BatchTracker(service, self._log, polls, self._report)
        self._enqueued = EnqueuedTokens()
        self._has_room = asyncio.Event()
        self._wave = Wave(service.limits)
        self._pending: dict[str, _PendingLine] = {}
        self._agents = 0
        """Number of agents among the waiting requests."""
        self._tracked: dict[str, _TrackedSubmission] = {}
        self._on_their_way: Callable[[], int] = lambda: 0
        self._changed = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._taken: dict[str, list[str]] = {}
        self._take_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._opened = 0.0
        self._reported: dict[str, tuple[float, float]] = {}
        """Times at which each batch was submitted and last reported."""
        self.waves = 0
        """Number of closed waves."""
        self.is_worth_a_wave: Callable[[], bool] = lambda: True
        """Whether to submit a wave. If not, its requests fail with CAPACITY, and may take another lane."""

    async def open(self) -> None:
        """Reads the submissions of earlier processes. Raises StoreError."""
        await self._log.open()
        self._opened = asyncio.get_running_loop().time()
        if unfinished := self._log.unfinished:
            lines = sum(len(each.lines) for each in unfinished)
            self._notify(f"{lines:,} requests were submitted to {self.traits.name} before: their results are awaited.")

    def observe_agents(self, on_their_way: Callable[[], int]) -> Callable[[], None]:
        self._on_their_way = on_their_way
        return self._recount

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[Delta]]:
        if request.lane != "batch":
            async with self.live.stream(request) as deltas:
                yield deltas
            return
        pending, began = self._pend(request), time.time()
        key = pending.line.key
        try:
            wave, result = await self._result(pending)
        finally:
            self._abandon(key)
        if self._observe is not None:
            self._observe(self._exchange(request, pending.body, began, result))
        try:
            yield _deltas(self._decode(result))
        finally:
            self._take(wave, key)

    async def count_tokens(self, text: str) -> int | None:
        return await self.live.count_tokens(text) if isinstance(self.live, CountsTokens) else None

    def submitted(self, request: Request) -> EarlierSubmission | None:
        return None if request.lane != "batch" else self._log.earlier(self._key(request, self._encode(request)))

    async def leave(self, agent: str) -> None:
        await self.live.leave(agent)

    async def aclose(self) -> None:
        """Closes the backend. Batches stay at the provider."""
        for timer in (self._timer, self._take_timer):
            if timer is not None:
                timer.cancel()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._flush_taken()
        left = [each for each in self._log.unfinished if each.batch]
        if left:
            lines = sum(len(each.lines) for each in left)
            names = ", ".join(each.batch for each in left[:3]) + (", ..." if len(left) > 3 else "")
            self._notify(
                f"{lines:,} requests stay at {self.traits.name} in {_count(len(left), 'batch', 'batches')} ({names}), "
                "and are processed there. Run again with the same checkpoint to collect their results."
            )

    def _pend(self, request: Request) -> _PendingLine:
        key = self._key(request, self._encode(request))  # without the bytes of images, which their digests stand for
        body = self._encode(replace(request, messages=with_image_data(request.messages)))
        while key in self._pending:  # an equal request that belongs to no agent
            key = blake2b(key.encode(), digest_size=16).hexdigest()
        line = WaveLine(key, len(body))
        reserved = SubmittedLine(key)
        if (charge := request.charge) is not None:
            reserved = SubmittedLine(key, charge.worst.input, charge.worst.output, charge.usd)
        return _PendingLine(line, body, request.agent, reserved, asyncio.get_running_loop().create_future())

    def _encode(self, request: Request) -> bytes:
        """The body without the fields that concern only the scheduling of a request. It is the same after each
        resume."""
        return self._dialect.encode(replace(request, stream=False, agent="", priority=0, hint=None))

    def _key(self, request: Request, body: bytes) -> str:
        """Key of the request in all processes. Ignores an answer limit that is derived from the budget, because it
        differs between processes."""
        question = orjson.loads(body)
        for name in _ANSWER_LIMITS:
            question.pop(name, None)
        identity = f"{request.agent}\0{request.turn}\0".encode(errors="surrogatepass")
        return blake2b(identity + dumps(question), digest_size=16).hexdigest()

    async def _result(self, pending: _PendingLine) -> tuple[str, LineResult]:
        key = pending.line.key
        submission = self._log.find(key)
        if submission is not None:
            tracked = self._track(submission)
            if key in tracked.results:
                return submission.wave, tracked.results.pop(key)
            if tracked.has_all:
                self._log.release(submission.wave, key)
                submission = None  # its batch has ended without this line
        pending.wave = "" if submission is None else submission.wave
        self._pending[key] = pending
        self._agents += bool(pending.agent)
        if submission is None:
            self._wave.add(pending.line, asyncio.get_running_loop().time())
        self._recount()
        return await pending.result

    def _abandon(self, key: str) -> None:
        if self._pop(key) is not None:
            self._wave.remove(key)
            self._recount()

    def _pop(self, key: str) -> _PendingLine | None:
        pending = self._pending.pop(key, None)
        self._agents -= pending is not None and bool(pending.agent)
        return pending

    def _exchange(self, request: Request, body: bytes, began: float, result: LineResult) -> Exchange:
        """A line as an exchange, for the request log."""
        mask = self._mask
        sent = EncodedRequest("POST", self._dialect.path(request), {}, orjson.loads(mask(body.decode())))
        seconds = time.time() - began
        if isinstance(result, LineFailed):
            error = mask(str(result.error))
            return Exchange(request, sent, began, seconds, result.error.status, error=error, mask=mask)
        usage = None
        with suppress(BackendError):
            usage = next((each.usage for each in self._decode(result) if isinstance(each, Finished)), None)
        response = orjson.loads(mask(result.body.decode()))
        return Exchange(request, sent, began, seconds, 200, response=response, usage=usage, mask=mask)

    def _decode(self, result: LineResult) -> Sequence[Delta]:
        if isinstance(result, LineFailed):
            raise copy(result.error)  # several lines may share the error
        try:
            return self._dialect.decode_reply(result.body, "batch")
        except BackendError as error:
            error.status = error.status or 200  # it was processed, and is billed
            raise

    def _take(self, wave: str, key: str) -> None:
        self._log.release(wave, key)
        self._taken.setdefault(wave, []).append(key)
        if self._take_timer is None:
            self._take_timer = asyncio.get_running_loop().call_later(_TAKE_DELAY, self._flush_taken)

    def _flush_taken(self) -> None:
        self._take_timer = None
        taken, self._taken = self._taken, {}
        for wave, keys in taken.items():
            self._log.take(wave, keys)

    def _recount(self) -> None:
        self._changed = asyncio.get_running_loop().time()
        self._set_timer()

    def _set_timer(self) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self._wave.closes_at(self._agents_on_their_way(), self._changed)
        if at is not None:
            self._timer = loop.call_at(at, self._on_timer)

    def _agents_on_their_way(self) -> int:
        return self._on_their_way() - self._agents

    def _on_timer(self) -> None:
        """Counts again, because an agent that was not waiting when the timer was set may wait by now."""
        now, self._timer = asyncio.get_running_loop().time(), None
        at = self._wave.closes_at(self._agents_on_their_way(), self._changed)
        if at is None:
            return
        if at > now:
            self._timer = asyncio.get_running_loop().call_at(at, self._on_timer)
            return
        wave, self._wave = self._wave, Wave(self._service.limits)
        lines = [self._pending[key] for key in wave.lines]
        if not self.is_worth_a_wave():
            self._fail(lines, BackendError(ErrorKind.CAPACITY, "So few requests are not worth a batch."))
            return
        self.waves += 1
        self._submit_all(lines, 0)

    def _start(self, work: Coroutine[Any, Any, None], keys: Sequence[str]) -> None:
        """Starts a task. `keys`: lines that fail if it fails."""

        def ended(task: "asyncio.Task[None]") -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (bug := task.exception()) is not None:
                error = BackendError(ErrorKind.INTERNAL, f"{type(bug).__name__}: {bug}")
                self._fail([self._pending[key] for key in keys if key in self._pending], error)

        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended)

    def _submit_all(self, lines: Sequence[_PendingLine], refusals: int) -> None:
        """Submits lines in as many batches as the limits require. `refusals`: number of refusals because too much was
        enqueued."""
        by_key = {each.line.key: each for each in lines}
        for part in divide((each.line for each in lines), self._service.limits, self._enqueued.limit):
            self._start(self._submit([by_key[line.key] for line in part], refusals), [line.key for line in part])

    async def _submit(self, lines: Sequence[_PendingLine], refusals: int) -> None:
        while not self._enqueued.fits([each.line for each in lines]):
            self._has_room.clear()
            await self._has_room.wait()
        lines = [each for each in lines if not each.result.done()]  # some agents may have ended meanwhile
        if not lines:
            return
        wave = secrets.token_hex(8)
        self._enqueued.add(wave, [each.line for each in lines])
        self._tracked[wave] = _TrackedSubmission()
        for each in lines:
            each.wave = wave
        try:
            submission = await self._log.intend(wave, [each.reserved for each in lines])
            try:
                batch_lines = [BatchLine(line_id(wave, each.line.key), each.body) for each in lines]
                submission, status = await self._tracker.create(submission, batch_lines)
            except BackendError:
                self._log.forget(submission)
                raise
            self._announce(submission, status)
            await self._collect(submission, status, refusals)
        except CreationUnknown as unknown:
            self._fail(lines, unknown.error)
            del self._tracked[wave]
        except BatchAgentError as error:
            self._fail(lines, error)
            del self._tracked[wave]
        finally:
            self._enqueued.remove(wave)
            self._has_room.set()

    def _track(self, submission: Submission) -> _TrackedSubmission:
        tracked = self._tracked.get(submission.wave)
        if tracked is None:
            tracked = self._tracked[submission.wave] = _TrackedSubmission()
            self._start(self._resume(submission), [line.key for line in submission.lines])
        return tracked

    async def _resume(self, submission: Submission) -> None:
        """Waits for the batch of a submission that an earlier process recorded."""
        try:
            certain_in = self._opened + CERTAIN_SECONDS - asyncio.get_running_loop().time()
            found = await self._tracker.adopt(submission, certain_in)
            if found is None:
                self._log.forget(submission)
                self._resubmit(submission)
            else:
                await self._collect(*found, 0)
        except BatchGone as gone:
            self._on_lost(submission, gone)
        except CreationUnknown as unknown:
            self._fail(self._waiting(submission), unknown.error)
            del self._tracked[submission.wave]
        except BatchAgentError as error:
            self._fail(self._waiting(submission), error)
            del self._tracked[submission.wave]

    async def _collect(self, submission: Submission, status: BatchStatus, refusals: int) -> None:
        """Waits for a batch and delivers its results."""
        try:
            status = await self._tracker.wait(submission, status)
            if status.state == "failed":
                await self._on_failed(submission, status, refusals)
                return
            submission = await self._log.update(submission, has_ended=True)
            keys = {line_id(submission.wave, line.key): line.key for line in submission.lines}
            async with aclosing(self._tracker.results(status)) as results:
                async for result in results:
                    if (key := keys.get(result.id)) is not None:
                        self._deliver(submission.wave, key, result)
            reason = f"Batch {status.id} ended ({status.reported}) without a result for this request."
            self._deliver_missing(submission, BackendError(ErrorKind.SERVER, reason))
        except BatchGone as gone:
            self._on_lost(submission, gone)

    async def _on_failed(self, submission: Submission, status: BatchStatus, refusals: int) -> None:
        """Handles a failed batch, of which nothing was processed. Lines that are not at fault are submitted again."""
        self._log.forget(submission)
        if status.is_over_limit:
            self._enqueued.refused(submission.wave, str(status.error))
            self._has_room.set()
            if self._enqueued.is_empty and refusals:
                await asyncio.sleep(_OVER_LIMIT_DELAYS.delay(refusals - 1))
            self._submit_all(self._waiting(submission), refusals + 1)
            return
        error = status.error or not_processed(f"The provider did not accept batch {status.id}.")
        for at, line in enumerate(submission.lines):
            if not status.bad_lines or at in status.bad_lines:
                self._deliver(submission.wave, line.key, LineFailed(line.key, status.bad_lines.get(at, error)))
        self._resubmit(submission)

    def _waiting(self, submission: Submission) -> list[_PendingLine]:
        """Lines that wait for this submission, as opposed to a later one with the same request."""
        found = [self._pending.get(line.key) for line in submission.lines]
        return [each for each in found if each is not None and each.wave == submission.wave]

    def _deliver(self, wave: str, key: str, result: LineResult) -> None:
        pending = self._pending.get(key)
        if pending is None or pending.wave != wave:
            self._tracked[wave].results.setdefault(key, result)
            return
        self._pop(key)
        if not pending.result.done():
            pending.result.set_result((wave, result))
        self._recount()

    def _deliver_missing(self, submission: Submission, error: BackendError) -> None:
        """Fails the lines of a batch that has ended without a result for them."""
        self._tracked[submission.wave].has_all = True
        for each in self._waiting(submission):
            self._deliver(submission.wave, each.line.key, LineFailed(each.line.key, error))

    def _on_lost(self, submission: Submission, reason: BatchGone) -> None:
        """Handles results that the provider no longer has. Whatever it has processed is billed."""
        error = BackendError(ErrorKind.SERVER, f"The provider has lost the results of a batch: {reason}", status=200)
        waiting = len(self._waiting(submission))
        self._deliver_missing(submission, error)
        if waiting:
            self._notify(
                f"{self.traits.name} has lost the results of batch {submission.batch}: {waiting:,} requests fail."
            )

    def _resubmit(self, submission: Submission) -> None:
        """Moves the lines of an unprocessed submission to the next wave."""
        now = asyncio.get_running_loop().time()
        for each in self._waiting(submission):
            each.wave = ""
            self._wave.add(each.line, now)
        self._recount()

    def _fail(self, lines: Sequence[_PendingLine], error: BatchAgentError) -> None:
        for each in lines:
            if self._pending.get(each.line.key) is each:
                self._pop(each.line.key)
            if not each.result.done():
                each.result.set_exception(copy(error))
        self._recount()

    def _announce(self, submission: Submission, status: BatchStatus) -> None:
        now = asyncio.get_running_loop().time()
        self._reported[submission.wave] = now, now
        count = _count(len(submission.lines), "request", "requests")
        self._notify(f"Wave {self.waves}: {count} submitted to {self.traits.name} as batch {status.id}.")

    def _report(self, submission: Submission, status: BatchStatus) -> None:
        """Reports from time to time what is awaited."""
        now = asyncio.get_running_loop().time()
        began, last = self._reported.setdefault(submission.wave, (now, now))
        if status.state != "waiting":
            self._notify(
                f"Batch {status.id} has ended after {_duration(now - began)}: {status.done:,} of {status.total:,} "
                f"requests ({status.reported})."
            )
        elif now - last >= _REPORT_SECONDS:
            self._reported[submission.wave] = began, now
            self._notify(
                f"Waiting for batch {status.id} ({status.reported}) since {_duration(now - began)}: {status.done:,} of "
                f"{status.total:,} requests are done."
            )


async def _deltas(deltas: Sequence[Delta]) -> AsyncIterator[Delta]:
    for delta in deltas:
        yield delta


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
