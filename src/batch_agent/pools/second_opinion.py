"""Second opinion on a rejected batch: decides whether the endpoint or a prompt is at fault, and which prompt."""

import asyncio
import sys
from collections.abc import Collection, Sequence
from typing import Protocol

from ..backends.endpoints.endpoint_pool import EndpointPool
from ..backends.endpoints.failover import EMPTY_ANSWER, EndpointRejection
from ..core.errors import BackendError, ErrorKind
from ..schedule.endpoints.routing import Ticket
from .endpoint_state import PendingPrompt, PromptBatch
from .failure_policy import is_rejection


class BatchSender(Protocol):
    """The part of the dispatcher that a second opinion needs."""

    endpoint_pool: EndpointPool
    endpoints: Sequence[int]
    group: asyncio.TaskGroup

    def find_endpoint(
        self, count: int, avoided: Collection[int] = (), max_prompts: int | None = None
    ) -> int | None: ...

    def start_batch(self, endpoint: int, prompts: Sequence[PendingPrompt]) -> PromptBatch: ...

    def ticket(self, batch: PromptBatch) -> Ticket: ...

    async def send(self, batch: PromptBatch) -> BackendError | None: ...

    def retry(self, batch: PromptBatch, error: BackendError) -> None: ...

    def requeue(self, prompts: Sequence[PendingPrompt], *, first: bool = True) -> None: ...

    def fail(self, prompt: PendingPrompt, error: BackendError, endpoint: int) -> None: ...


class SecondOpinion:
    """The rejections of one call of a pool."""

    def __init__(self, sender: BatchSender) -> None:
        self._sender = sender

    async def on_batch(self, prompts: list[PendingPrompt], rejection: EndpointRejection) -> None:
        """Sends the batch to another endpoint. If that one also rejects it, a prompt in it is at fault."""
        endpoint = self._sender.find_endpoint(len(prompts), {rejection.endpoint}, max_prompts=sys.maxsize)
        if endpoint is None or endpoint == rejection.endpoint or rejection.error.kind is not ErrorKind.BAD_REQUEST:
            await self._isolate(prompts)
            return
        batch = self._sender.start_batch(endpoint, prompts)
        error = await self._rejection(batch)
        if error is None:
            self._sender.endpoint_pool.health.blame(rejection)
        elif is_rejection(batch, error):
            await self._isolate(batch.unanswered)
        else:
            self._sender.retry(batch, error)

    def on_prompt(self, prompt: PendingPrompt, rejection: EndpointRejection) -> None:
        """Sends the prompt to another endpoint. It fails if two endpoints reject it."""
        earlier = {each.endpoint for each in prompt.rejections if each.error is not EMPTY_ANSWER}
        rejected_by = earlier | {rejection.endpoint}
        is_counted_on = self._sender.endpoint_pool.routing.is_healthy
        others = [at for at in self._sender.endpoints if at not in rejected_by and is_counted_on(at)]
        if len(rejected_by) > 1 or not others or rejection.error.kind is not ErrorKind.BAD_REQUEST:
            self._sender.fail(prompt, rejection.error, rejection.endpoint)
            return
        prompt.rejections.append(rejection)
        prompt.avoids.add(rejection.endpoint)
        prompt.max_batch_size = 1
        self._sender.requeue([prompt])

    async def _isolate(self, suspects: list[PendingPrompt]) -> None:
        """Finds by bisection the prompt for which a batch was rejected, with one request per step. The other prompts
        are answered or queued again."""
        cleared: list[PendingPrompt] = []
        rejection: EndpointRejection | None = None
        while len(suspects) > 1:
            half, rest = suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :]
            endpoint = self._sender.find_endpoint(len(half), max_prompts=sys.maxsize)
            if endpoint is None:
                cleared += suspects
                break
            batch = self._sender.start_batch(endpoint, half)
            ticket = self._sender.ticket(batch)
            error = await self._rejection(batch)
            if error is None:
                suspects, rejection = rest, None
            elif is_rejection(batch, error):
                cleared += rest
                suspects, rejection = half, EndpointRejection(endpoint, ticket, error)
            else:
                self._sender.retry(batch, error)
                cleared += rest
                break
        else:
            if rejection is not None:
                self.on_prompt(suspects[0], rejection)
            else:  # the server may have rejected only the size of the batch
                suspects[0].max_batch_size = 1
                cleared += suspects
        self._sender.requeue(cleared)

    async def _rejection(self, batch: PromptBatch) -> BackendError | None:
        """Sends a batch and returns its error, or None as soon as the server begins to answer. A later error is
        handled in the background."""
        sending = self._sender.group.create_task(self._sender.send(batch))
        accepted = self._sender.group.create_task(batch.accepted.wait())
        await asyncio.wait([sending, accepted], return_when=asyncio.FIRST_COMPLETED)
        accepted.cancel()
        if sending.done():
            return sending.result()
        self._sender.group.create_task(self._retry_if_failed(batch, sending))
        return None

    async def _retry_if_failed(self, batch: PromptBatch, sending: "asyncio.Task[BackendError | None]") -> None:
        error = await sending
        if error is not None:
            self._sender.retry(batch, error)
