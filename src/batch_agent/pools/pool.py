"""Pool of endpoints that serve the same model: prompts in, one response per prompt out, in order."""

import asyncio
import logging
import math
import random
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from os import PathLike
from types import TracebackType
from typing import Any, Self

from ..backends.connect import open_endpoint_pool
from ..backends.dialects.completions.decoder import PromptDelta, PromptEvent, PromptFinished
from ..backends.dialects.completions.encoder import encode
from ..backends.endpoints.endpoint_identity import labelled, server_of
from ..backends.endpoints.endpoint_loads import endpoint_loads
from ..backends.endpoints.endpoint_pool import EndpointPool
from ..backends.endpoints.hostfile import Endpoint
from ..channel import Channel
from ..core.errors import BackendError, ErrorKind, SpecError
from ..core.requests import RequestObserver, Sampling
from ..core.safe_text import safe_text
from ..core.validation import at_least, is_whole, path, text_or_none
from ..lazy_imports import lazy_modules
from .dispatcher import Dispatcher
from .endpoint_share import PoolShare
from .endpoint_state import EndpointState, PendingPrompt
from .patterns import checked_list
from .pool_settings import (
    GivenEndpoint,
    backend_of,
    check_environment,
    check_flags,
    check_sampling,
    check_seconds,
    endpoint_of,
    from_environment,
)
from .prompt_queue import DispatchOptions
from .prompt_transport import OnPrompt, PromptTransport
from .response import NO_END, Response, response_of

with lazy_modules(globals()):
    from ..observe import request_log

_log = logging.getLogger("batch_agent")
OnResponse = Callable[[Response], Any]


@dataclass(slots=True)
class _Core:
    """Resources that a pool and its sub-pools share."""

    endpoint_pool: EndpointPool
    transport: PromptTransport
    states: list[EndpointState]
    share: PoolShare
    stack: AsyncExitStack


class VLLMPool:
    """`async with VLLMPool(parse_hostfile("agents.hostfile"), model="...") as pool`.

    Each prompt goes to the endpoint that will answer it first, together with many others in one request. A prompt that
    the server rejects, or an endpoint that dies, affects no other prompt. A prompt is a user's message: the model's
    chat template is applied to it, unless `raw=True`."""

    def __init__(
        self,
        endpoints: Sequence[GivenEndpoint],
        model: str | None = None,
        *,
        max_tokens: int | None = None,
        max_tokens_aggregation: int | None = None,
        use_batch: bool = True,
        timeout: float = 300.0,
        raw: bool = False,
        prompts_per_endpoint: int = 512,
        patience: float = 30.0,
        sampling: Sampling | None = None,
        log_requests: str | PathLike[str] | None = None,
    ) -> None:
        """`max_tokens`: limit of an answer (default: AURORA_SWARM_MAX_TOKENS, or 512). `max_tokens_aggregation`: limit
        of an answer that merges others (default: AURORA_SWARM_MAX_TOKENS_AGGREGATION, or twice max_tokens). `timeout`:
        seconds until an endpoint's next output, or until the whole answer to a prompt that is sent alone.
        `prompts_per_endpoint`: maximum number of prompts in flight at one endpoint. `patience`: seconds to wait for an
        endpoint when all are down. `log_requests`: a .jsonl file to which each request and its raw response are
        appended, without secrets, for `read_request_log`. Raises SpecError."""
        check_environment()
        max_tokens = from_environment("MAX_TOKENS") or 512 if max_tokens is None else max_tokens
        at_least("max_tokens", max_tokens, 1)
        if max_tokens_aggregation is None:
            max_tokens_aggregation = from_environment("MAX_TOKENS_AGGREGATION")
        at_least("max_tokens_aggregation", 1 if max_tokens_aggregation is None else max_tokens_aggregation, 1)
        at_least("prompts_per_endpoint", prompts_per_endpoint, 1)
        check_seconds("timeout", timeout, may_be_zero=False)
        check_seconds("patience", patience, may_be_zero=True)
        text_or_none("model", model)
        check_flags(use_batch=use_batch, raw=raw)
        check_sampling(sampling)
        if isinstance(endpoints, str) or not isinstance(endpoints, Sequence) or not endpoints:
            raise SpecError(f"endpoints must be a non-empty list, such as ['gpu1:8000']; got {endpoints!r}.")
        self.endpoints: list[Endpoint] = [endpoint_of(given) for given in endpoints]
        self._backends = [backend_of(*each) for each in zip(endpoints, self.endpoints, strict=True)]
        self.max_tokens = max_tokens
        self.max_tokens_aggregation = max_tokens_aggregation or 2 * max_tokens
        self.use_batch = use_batch
        self.timeout = timeout
        self._log_requests = None if log_requests is None else path("log_requests", log_requests)
        self._model = model
        self._raw = raw
        self._options = DispatchOptions(max_prompts=prompts_per_endpoint, patience=patience)
        self._sampling = sampling or Sampling()
        encode(["Hi"], "", replace(self._sampling, max_tokens=max_tokens))  # fails here instead of in a call
        self._indices = list(range(len(self.endpoints)))
        """Indices of the endpoints in the list of the whole pool."""
        self._core: list[_Core] = []
        self._open_lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Opens the pool. Raises SpecError for endpoints with different models and for a request log that cannot be
        written, and BackendError if no endpoint can be reached."""
        if self._core:
            raise SpecError("The pool is already open.")
        await self._opened()
        return self

    async def _opened(self) -> _Core:
        async with self._open_lock:
            if not self._core:
                self._core.append(await self._connect())
        return self._core[0]

    async def _connect(self) -> _Core:
        servers = {label: server_of(each) for label, each in labelled(self._backends).items()}
        async with AsyncExitStack() as stack:
            observe = self._observer(stack)
            endpoint_pool = await open_endpoint_pool(
                self._backends, self._model, uses_tools=False, notify=_notify, timeout=self.timeout, observe=observe
            )
            stack.push_async_callback(endpoint_pool.aclose)
            transport = PromptTransport(endpoint_pool, _notify, is_raw=self._raw)
            await transport.open()
            states = [EndpointState() for _ in servers]
            share = PoolShare(endpoint_pool, states, self._options.max_prompts, endpoint_loads(), servers.__getitem__)
            stack.callback(share.membership.leave)
            return _Core(endpoint_pool, transport, states, share, stack.pop_all())

    def _observer(self, stack: AsyncExitStack) -> RequestObserver | None:
        """Observer of the requests; None if they are not logged."""
        if self._log_requests is None and not _log.isEnabledFor(logging.DEBUG):
            return None
        return stack.enter_context(request_log.RequestLog(self._log_requests, _notify))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections of this pool and its sub-pools. Needed only without `async with`."""
        if self._core:
            await self._core.pop().stack.aclose()

    @property
    def size(self) -> int:
        return len(self._indices)

    @property
    def requests(self) -> int:
        """Number of requests sent so far by this pool and its sub-pools."""
        return self._open.transport.requests

    def by_tag(self, key: str, value: str | None = None) -> Self:
        """A pool of the endpoints with this tag, or with this value of a field."""
        wanted = key if value is None else f"{key}={value}"
        return self._select([at for at, endpoint in enumerate(self.endpoints) if endpoint.has(wanted)])

    def select(self, indices: Sequence[int]) -> Self:
        """A pool of the endpoints with these indices."""
        return self._select(list(indices))

    def slice(self, start: int, stop: int) -> Self:
        """A pool of the endpoints from `start` to `stop`, like a slice of a list."""
        return self._select(list(range(self.size))[start:stop])

    def sample(self, n: int) -> Self:
        """A pool of `n` random endpoints, or of all if there are fewer."""
        at_least("n", n, 0)
        return self._select(sorted(random.sample(range(self.size), min(n, self.size))))

    def drain(self, agent_index: int) -> None:
        """Sends no more prompts to this endpoint; prompts in flight are finished."""
        self._open.endpoint_pool.routing.drain(self._index(agent_index))

    def undrain(self, agent_index: int) -> None:
        """Sends prompts to this endpoint again."""
        self._open.endpoint_pool.routing.undrain(self._index(agent_index))

    async def post(self, agent_index: int, prompt: str, max_tokens: int | None = None) -> Response:
        """Sends one prompt to one endpoint, regardless of its load. A failure is returned as a response."""
        endpoint, received = self._index(agent_index), list[PromptEvent]()
        core = await self._opened()
        sampling = self._sampling_for(max_tokens)
        if not _is_prompt(prompt):
            return _invalid_prompt(0, prompt)
        url = core.endpoint_pool.members[endpoint].url
        try:
            await core.transport.send_single(endpoint, prompt, sampling, self.timeout, received.append, 0)
        except BackendError as error:
            return Response(0, "", str(error), error.kind, endpoint=url, agent_index=agent_index)
        return _response(received, url, agent_index)

    async def post_batch(
        self, agent_index: int, prompts: Sequence[str], max_tokens: int | None = None
    ) -> list[Response]:
        """Sends many prompts to one endpoint."""
        responses = await self.select([agent_index])._send(prompts, max_tokens, None, in_batches=self.use_batch)
        return [replace(each, agent_index=agent_index) if each.agent_index == 0 else each for each in responses]

    async def send_all(
        self, prompts: Sequence[str], max_tokens: int | None = None, *, on_response: OnResponse | None = None
    ) -> list[Response]:
        """Sends each prompt in its own request, to the endpoint with the least load."""
        return await self._send(prompts, max_tokens, on_response, in_batches=False)

    async def send_all_batched(
        self, prompts: Sequence[str], max_tokens: int | None = None, *, on_response: OnResponse | None = None
    ) -> list[Response]:
        """Sends many prompts in each request. `on_response`: receives each response when it is complete."""
        return await self._send(prompts, max_tokens, on_response, in_batches=self.use_batch)

    async def stream(self, prompts: Sequence[str], max_tokens: int | None = None) -> AsyncIterator[Response]:
        """Yields responses as they complete. Leaving early cancels the rest."""
        completed: Channel[Response] = Channel(math.inf)
        work = self._send(prompts, max_tokens, completed.put, in_batches=self.use_batch)
        sending = asyncio.get_running_loop().create_task(work)
        sending.add_done_callback(lambda _: completed.close())
        try:
            async for response in completed:
                yield response
            sending.result()
        finally:
            sending.cancel()
            await asyncio.wait([sending])

    async def broadcast_prompt(self, prompt: str, max_tokens: int | None = None) -> list[Response]:
        """Sends the same prompt to every endpoint."""
        self._check_size()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.post(at, prompt, max_tokens)) for at in range(self.size)]
        return [replace(task.result(), index=at) for at, task in enumerate(tasks)]

    async def _send(
        self, prompts: Sequence[str], max_tokens: int | None, on_response: OnResponse | None, *, in_batches: bool
    ) -> list[Response]:
        self._check_size()
        core = await self._opened()
        sampling, all_prompts = self._sampling_for(max_tokens), checked_list("prompts", prompts)
        responses: dict[int, Response] = {}
        local = {endpoint: at for at, endpoint in enumerate(self._indices)}

        def deliver(response: Response) -> None:
            if response.agent_index >= 0:
                response = replace(response, agent_index=local[response.agent_index])
            responses[response.index] = response
            if on_response is not None:
                try:
                    on_response(response)
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException:  # noqa: BLE001 - a user's function may raise anything
                    _log.exception("on_response raised for prompt %d; the other prompts continue", response.index)

        async def send(endpoint: int, batch: Sequence[PendingPrompt], on_event: OnPrompt) -> None:
            texts, indices = [each.prompt for each in batch], [each.index for each in batch]
            transport = core.transport
            try:
                if in_batches:
                    await transport.send(endpoint, texts, sampling, self.timeout, on_event, indices)
                else:
                    await transport.send_single(endpoint, texts[0], sampling, self.timeout, on_event, indices[0])
            except BackendError as error:
                raise await transport.blamed(endpoint, sampling, error) from error

        for index, prompt in enumerate(all_prompts):
            if not _is_prompt(prompt):
                deliver(_invalid_prompt(index, prompt))
        pending = [PendingPrompt(index, prompt) for index, prompt in enumerate(all_prompts) if _is_prompt(prompt)]
        options = self._options
        if not in_batches:
            options = replace(options, max_batch_size=1, is_unstreamed=not self._raw)
        await Dispatcher(core.endpoint_pool, core.states, core.share, self._indices, send, options, deliver).run(
            pending
        )
        return [responses[index] for index in range(len(all_prompts))]

    def _sampling_for(self, max_tokens: int | None) -> Sampling:
        context = self._open.endpoint_pool.traits.context_tokens
        wanted = self.max_tokens if max_tokens is None else max_tokens
        at_least("max_tokens", wanted, 1)
        return replace(self._sampling, max_tokens=wanted if context is None else min(wanted, context))

    def _check_size(self) -> None:
        if not self.size:
            raise SpecError("This pool has no endpoints: none matched the tag or the indices it was selected by.")

    def _index(self, agent_index: int) -> int:
        if not is_whole(agent_index) or not 0 <= agent_index < self.size:
            raise SpecError(f"agent_index must be from 0 to {self.size - 1}; got {agent_index!r}.")
        return self._indices[agent_index]

    def _select(self, indices: Sequence[int]) -> Self:
        chosen = type(self).__new__(type(self))
        chosen.__dict__ |= self.__dict__
        chosen._indices = [self._index(at) for at in indices]
        chosen.endpoints = [self.endpoints[at] for at in indices]
        return chosen

    @property
    def _open(self) -> _Core:
        if not self._core:
            raise SpecError("The pool is not open: use it as `async with VLLMPool(...) as pool`.")
        return self._core[0]


def _response(events: Sequence[PromptEvent], url: str, agent_index: int) -> Response:
    text = "".join(event.text for event in events if isinstance(event, PromptDelta))
    done = next((event for event in events if isinstance(event, PromptFinished)), None)
    if done is None:
        return Response(0, text, NO_END, ErrorKind.SERVER, endpoint=url, agent_index=agent_index)
    return response_of(0, text, done.finish, done.usage, url, agent_index)


def _is_prompt(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _invalid_prompt(index: int, value: Any) -> Response:
    return Response(index, "", f"A prompt must be a non-empty string; got {value!r}.", ErrorKind.BAD_INPUT)


def _notify(text: str) -> None:
    print(f"batch-agent: {safe_text(text)}", file=sys.stderr, flush=True)
