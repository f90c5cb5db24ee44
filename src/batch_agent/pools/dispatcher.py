"""Dispatcher: sends the prompts of one call to the endpoints of a pool, many per request.

A slow endpoint does not hold up others, and a rejected prompt does not affect others."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from math import ceil

from .. import aio
from ..backends.dialects.completions.decoder import PromptDelta, PromptEvent, PromptFinished
from ..backends.endpoints.endpoint_pool import EndpointPool
from ..backends.endpoints.failover import EMPTY_ANSWER, EndpointRejection, is_conclusive
from ..core.errors import BackendError, ErrorKind
from ..schedule.endpoints.routing import Ticket
from ..schedule.retry import is_overload_refusal
from .endpoint_share import PoolShare
from .endpoint_state import EndpointState, PendingPrompt, PromptBatch, choose_endpoint, refusal_delay
from .failure_policy import RECLAIMED, blames_endpoint, goes_first, is_rejection, record_failure
from .prompt_queue import DispatchOptions, PromptQueue
from .prompt_transport import OnPrompt
from .response import NO_END, Response, response_of
from .second_opinion import SecondOpinion
from .stragglers import AnswerLengths, find_early, find_stragglers, late_endpoints

_CHECK_INTERVAL = 0.2

SendPrompts = Callable[[int, Sequence[PendingPrompt], OnPrompt], Awaitable[None]]
"""Sends prompts to the endpoint with this index. Raises BackendError."""


class Dispatcher:
    """One call of a pool, from its prompts to the last response."""

    def __init__(
        self,
        endpoint_pool: EndpointPool,
        states: Sequence[EndpointState],
        share: PoolShare,
        endpoints: Sequence[int],
        send_prompts: SendPrompts,
        options: DispatchOptions,
        deliver: Callable[[Response], None],
    ) -> None:
        """`states`: state of every endpoint. `endpoints`: indices of the endpoints that may be used."""
        self.endpoint_pool = endpoint_pool
        self.endpoints = endpoints
        self.group: asyncio.TaskGroup
        self._states = states
        self._share = share
        self._send_prompts = send_prompts
        self._options = options
        self._deliver = deliver
        self._queue: PromptQueue
        self._in_flight: dict[PromptBatch, Ticket] = {}
        self._unanswered = 0
        self._lengths = AnswerLengths()
        self._changed = asyncio.Event()
        self._down_since: float | None = None
        self._second_opinion = SecondOpinion(self)
        self._checked_at = 0.0
        self._slow: set[int] = set()
        """Endpoints that seemed slow at the last check."""
        self._late: Mapping[int, float] = {}
        """Endpoints that get no prompts for now, because others would answer sooner."""

    async def run(self, prompts: Sequence[PendingPrompt]) -> None:
        """Sends the prompts. Returns when each of them has its response."""
        self._queue = PromptQueue(prompts, len(self.endpoints), self._options.max_batch_size)
        self._unanswered = len(prompts)
        self._share.calls.add(self)
        try:
            async with asyncio.TaskGroup() as self.group:
                while self._unanswered:
                    self._send_queued()
                    self._fail_if_all_down()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_CHECK_INTERVAL):
                            await self._changed.wait()
                    self._changed.clear()
                    self._reclaim_stragglers()
        finally:
            self._share.calls.discard(self)
            for batch in list(self._in_flight):  # cancelled before its request began
                self._end(batch)
            self._report_load()

    def _send_queued(self) -> None:
        while self._queue:
            size = self._queue.size
            endpoint = self.find_endpoint(size, self._queue.head.avoids)
            if endpoint is None:
                return
            batch = self.start_batch(endpoint, self._queue.next_batch(self._size_for(endpoint, size)))
            self.group.create_task(self._run_batch(batch))

    def _size_for(self, endpoint: int, size: int) -> int:
        """Size of a batch for an endpoint. One that may be down gets a single prompt."""
        state = self._states[endpoint]
        if not self.endpoint_pool.routing.is_up(endpoint):
            return 1
        size = min(size, max(1, self._options.max_prompts - state.unfinished))
        if self._share.membership.is_contended:
            size = min(size, max(1, self._share.room_at(endpoint)))
        return self._queue.size_at(endpoint, size)

    def find_endpoint(self, count: int, avoided: Collection[int] = (), max_prompts: int | None = None) -> int | None:
        """The endpoint for a batch of this many prompts; None if none has room."""
        usable = self._usable()
        preferred = [endpoint for endpoint in usable if endpoint not in avoided] or usable
        preferred = [endpoint for endpoint in preferred if endpoint not in self._late] or preferred
        if max_prompts is not None:
            return choose_endpoint(self._states, preferred, count, max_prompts)
        if self._share.membership.is_contended:
            return self._find_shared(preferred, count)
        return choose_endpoint(self._states, preferred, count, self._options.max_prompts)

    def _find_shared(self, usable: Sequence[int], count: int) -> int | None:
        """An endpoint with room, while a run also uses some of them. As without a run, an endpoint that has work gets
        more only if half of the batch fits."""
        free = [endpoint for endpoint in usable if self._share.room_at(endpoint) > 0]
        chosen = choose_endpoint(self._states, free, count, self._options.max_prompts)
        if chosen is None or not self._states[chosen].batches:
            return chosen
        return chosen if self._share.room_at(chosen) >= ceil(count / 2) else None

    def is_waiting_at(self, endpoint: int) -> bool:
        return bool(self._queue) and endpoint in self._usable()

    def wake(self) -> None:
        self._changed.set()

    def _report_load(self) -> None:
        if self._share.membership.is_contended:
            self._share.membership.changed()

    def _usable(self) -> list[int]:
        now = aio.now()
        return [
            endpoint
            for endpoint in self.endpoint_pool.routing.available(now)
            if endpoint in self.endpoints and self._states[endpoint].paused_until <= now
        ]

    def start_batch(self, endpoint: int, prompts: Sequence[PendingPrompt]) -> PromptBatch:
        """Counts a batch as in flight before its request is sent, so that the next batch goes elsewhere."""
        batch = PromptBatch(endpoint, prompts, is_unstreamed=self._options.is_unstreamed)
        self._in_flight[batch] = self.endpoint_pool.routing.sent(endpoint, len(prompts), aio.now())
        self._states[endpoint].on_sent(batch, aio.now())
        self._report_load()
        return batch

    def ticket(self, batch: PromptBatch) -> Ticket:
        """The routing ticket of a batch in flight."""
        return self._in_flight[batch]

    def _end(self, batch: PromptBatch) -> None:
        self.endpoint_pool.routing.abandoned(self._in_flight.pop(batch), aio.now())
        self._states[batch.endpoint].on_ended(batch)
        self._changed.set()
        self._report_load()

    async def _run_batch(self, batch: PromptBatch) -> None:
        """Sends a batch. Returns when each of its prompts is answered or queued again."""
        ticket = self._in_flight[batch]
        error = await self.send(batch)
        if error is None:
            return
        if not is_rejection(batch, error):
            self.retry(batch, error)
        elif len(batch.prompts) > 1:
            await self._second_opinion.on_batch(batch.unanswered, EndpointRejection(batch.endpoint, ticket, error))
        else:
            self._second_opinion.on_prompt(batch.prompts[0], EndpointRejection(batch.endpoint, ticket, error))

    def retry(self, batch: PromptBatch, error: BackendError) -> None:
        """Queues the prompts of a request that was interrupted or reclaimed. Prompts that failed too often fail for
        good."""
        hopeless = record_failure(batch, error, self._states[batch.endpoint], self.endpoints)
        again = [prompt for prompt in batch.unanswered if prompt not in hopeless]
        if error is RECLAIMED and not self._queue:
            self._spread(again, batch.endpoint)
        if is_overload_refusal(error) and again and self._states[batch.endpoint].paused_until <= aio.now():
            delay = refusal_delay(max(prompt.refusals for prompt in again) - 1, error.retry_after)
            self.group.create_task(self._requeue_later(again, delay))
        else:
            self.requeue(again, first=goes_first(batch, error))
        for prompt in hopeless:
            self.fail(prompt, error, batch.endpoint)

    def _spread(self, prompts: Sequence[PendingPrompt], source: int) -> None:
        """Distributes the last prompts to be sent evenly among all endpoints that take them over."""
        others = sum(endpoint != source and endpoint not in self._late for endpoint in self._usable())
        part = ceil(len(prompts) / max(1, others))
        for prompt in prompts:
            prompt.max_batch_size = min(prompt.max_batch_size, part)

    async def _requeue_later(self, prompts: Sequence[PendingPrompt], seconds: float) -> None:
        """Queues prompts again after a delay. Other prompts are sent meanwhile: the endpoint refused only these."""
        await asyncio.sleep(seconds)
        self.requeue(prompts)

    async def send(self, batch: PromptBatch) -> BackendError | None:
        """Sends one request and returns its error, if any. Unanswered prompts stay open in the batch."""
        pool, state, ticket = self.endpoint_pool, self._states[batch.endpoint], self._in_flight[batch]
        record = pool.members[batch.endpoint].record
        try:
            async with asyncio.timeout(None) as batch.scope:
                await self._send_prompts(batch.endpoint, batch.prompts, self._receiver(batch))
        except BackendError as error:
            batch.was_proven = record.is_proven
            record.on_miss()
            if blames_endpoint(batch, error, state) or not pool.routing.is_up(batch.endpoint):
                pool.health.record_failure(
                    ticket, batch.endpoint, error, is_certain=error.kind is not ErrorKind.BAD_REQUEST
                )
                pool.health.mark_down(batch.endpoint, error)
            if is_overload_refusal(error):
                state.on_refused(batch, error.retry_after, aio.now())
            return error
        except TimeoutError:
            return RECLAIMED
        else:
            if batch.open or any(prompt.chars for prompt in batch.prompts):
                pool.routing.done(ticket, aio.now())
                pool.health.mark_up(batch.endpoint)
            elif not pool.routing.is_up(batch.endpoint):  # empty answers do not bring it back
                pool.routing.failed(ticket, aio.now(), is_endpoint_fault=True)
            return BackendError(ErrorKind.SERVER, NO_END) if batch.open else None
        finally:
            self._end(batch)

    def _receiver(self, batch: PromptBatch) -> OnPrompt:
        state = self._states[batch.endpoint]

        def receive(event: PromptEvent) -> None:
            if event.index not in batch.open:
                return
            prompt = batch.prompts[event.index]
            if not batch.accepted.is_set():
                state.on_accepted(batch, aio.now())
            match event:
                case PromptDelta(_, text):
                    if text:
                        self.endpoint_pool.members[batch.endpoint].record.on_answer()
                        if not prompt.chars:
                            state.on_begun()
                    prompt.received.append(text)
                    prompt.chars += len(text)
                    state.on_output(len(text), aio.now())
                case PromptFinished(index):
                    state.on_answered(batch, index)
                    self._report_load()
                    if not prompt.chars and self._may_be_answered_elsewhere(prompt, batch.endpoint):
                        self._ask_elsewhere(prompt, batch)
                    else:
                        self._answer(prompt, event, batch.endpoint)

        return receive

    def _may_be_answered_elsewhere(self, prompt: PendingPrompt, endpoint: int) -> bool:
        """Whether an empty answer may be the endpoint's fault."""
        empty = {each.endpoint for each in prompt.rejections if each.error is EMPTY_ANSWER} | {endpoint}
        record = self.endpoint_pool.members[endpoint].record
        prompt.proven_empty += record.is_proven
        record.on_miss()
        if is_conclusive(prompt.proven_empty, len(empty)):
            return False
        return any(at not in empty and self.endpoint_pool.routing.is_healthy(at) for at in self.endpoints)

    def _ask_elsewhere(self, prompt: PendingPrompt, batch: PromptBatch) -> None:
        prompt.rejections.append(EndpointRejection(batch.endpoint, self._in_flight[batch], EMPTY_ANSWER))
        prompt.avoids.add(batch.endpoint)
        self.requeue([prompt], first=False)

    def _answer(self, prompt: PendingPrompt, done: PromptFinished, endpoint: int) -> None:
        for rejection in prompt.rejections:  # other endpoints rejected what this one has answered
            if prompt.chars or rejection.error is not EMPTY_ANSWER:
                self.endpoint_pool.health.blame(rejection)
        prompt.rejections.clear()
        self._lengths.add(prompt.chars)
        text, url = "".join(prompt.received), self.endpoint_pool.members[endpoint].url
        self._complete(response_of(prompt.index, text, done.finish, done.usage, url, endpoint))

    def fail(self, prompt: PendingPrompt, error: BackendError, endpoint: int) -> None:
        """Fails a prompt. `endpoint`: -1 if the prompt was not sent."""
        url = self.endpoint_pool.members[endpoint].url if endpoint >= 0 else ""
        self._complete(Response(prompt.index, "", str(error), error.kind, endpoint=url, agent_index=endpoint))

    def _complete(self, response: Response) -> None:
        self._unanswered -= 1
        self._changed.set()
        self._deliver(response)

    def requeue(self, prompts: Sequence[PendingPrompt], *, first: bool = True) -> None:
        self._queue.put_back(prompts, first=first)
        self._changed.set()
        self._report_load()

    def _reclaim_stragglers(self) -> None:
        """Takes work from slow endpoints that others would finish sooner. While prompts are queued, takes only work
        that has hardly begun."""
        now = aio.now()
        if now < self._checked_at + _CHECK_INTERVAL:
            return
        self._checked_at = now
        usable, longest = self._usable(), max((state.longest_unfinished for state in self._states), default=0)
        typical = self._lengths.typical(longest, self._unanswered)
        self._late = late_endpoints(self._states, usable, len(self._queue), self._lengths.evenness(longest))
        found = find_early(self._states, self._late, self._in_flight, typical)
        if not self._queue:
            found = found or find_stragglers(self._states, usable, self._in_flight, typical, now)
        slow, self._slow = self._slow, {batch.endpoint for batch in found}
        for batch in found:  # only at the second consecutive check: output comes in bursts, and one may be half read
            if batch.endpoint in slow and batch.scope is not None:
                batch.is_reclaimed = True
                batch.scope.reschedule(now)

    def _fail_if_all_down(self) -> None:
        now = aio.now()
        if any(self.endpoint_pool.routing.is_healthy(endpoint) for endpoint in self.endpoints):
            self._down_since = None
            return
        self._down_since = now if self._down_since is None else self._down_since
        if now - self._down_since >= self._options.patience:
            error = self.endpoint_pool.health.no_endpoint_error({}, self.endpoints)
            for prompt in self._queue.drain():
                self.fail(prompt, error, -1)
