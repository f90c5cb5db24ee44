"""A pool of endpoints that serve the same model: prompts in, one response for each, in order."""

import asyncio
import logging
import math
import random
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from ..backends.connect import backend_url, open_endpoint_pool
from ..backends.dialects.completions.decoder import PromptDelta, PromptEvent, PromptFinished
from ..backends.dialects.completions.encoder import encode
from ..backends.endpoint_pool import EndpointPool
from ..backends.hostfile import Endpoint
from ..channel import Channel
from ..core.errors import BackendError, ErrorKind, SpecError
from ..core.requests import Sampling
from ..core.safe_text import safe_text
from ..core.validation import at_least, is_whole, text_or_none
from .dispatcher import Dispatcher
from .endpoint_state import EndpointState, PendingPrompt
from .patterns import listed
from .prompt_queue import DispatchOptions
from .prompt_transport import OnPrompt, PromptTransport
from .response import Response, response_of
from .settings import check_environment, check_flags, check_sampling, check_seconds, endpoint_of, from_environment

_log = logging.getLogger("batch_agent")
OnResponse = Callable[[Response], Any]


@dataclass(slots=True)
class _Core:
    """What a pool and its sub-pools share."""

    fleet: EndpointPool
    wires: PromptTransport
    lanes: list[EndpointState]
    stack: AsyncExitStack


class VLLMPool:
    """`async with VLLMPool(parse_hostfile("agents.hostfile"), model="...") as pool`.

    Prompts go to whoever is done with them first, many in one request. A prompt that no server takes, or an endpoint
    that dies, costs the other prompts nothing. By a prompt is meant what a user says: the model's chat template is put
    around it, unless `raw=True`."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint | str | tuple[str, int]],
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
    ) -> None:
        """`max_tokens`: of an answer (None: what AURORA_SWARM_MAX_TOKENS says, or 512); `max_tokens_aggregation`: of
        agents that put others' together (None: what AURORA_SWARM_MAX_TOKENS_AGGREGATION says, or twice max_tokens);
        `timeout`: seconds in which an endpoint must say something; what is a request of its own is said as a whole;
        `prompts_per_endpoint`: how many it has at once; `patience`: seconds for which endpoints are waited for when all
        are down. Raises SpecError."""
        check_environment()
        max_tokens = from_environment("MAX_TOKENS") or 512 if max_tokens is None else max_tokens
        at_least("max_tokens", max_tokens, 1)
        if max_tokens_aggregation is None:
            max_tokens_aggregation = from_environment("MAX_TOKENS_AGGREGATION")
        at_least("max_tokens_aggregation", 1 if max_tokens_aggregation is None else max_tokens_aggregation, 1)
        at_least("prompts_per_endpoint", prompts_per_endpoint, 1)
        check_seconds("timeout", timeout, is_zero_fine=False)
        check_seconds("patience", patience, is_zero_fine=True)
        text_or_none("model", model)
        check_flags(use_batch=use_batch, raw=raw)
        check_sampling(sampling)
        if isinstance(endpoints, str) or not isinstance(endpoints, Sequence) or not endpoints:
            raise SpecError(f"VLLMPool takes a list of endpoints, such as ['gpu1:8000']; got {endpoints!r}.")
        self.endpoints: list[Endpoint] = [endpoint_of(each) for each in endpoints]
        self.max_tokens = max_tokens
        self.max_tokens_aggregation = max_tokens_aggregation or 2 * max_tokens
        self.use_batch = use_batch
        self.timeout = timeout
        self._model = model
        self._raw = raw
        self._orders = DispatchOptions(most=prompts_per_endpoint, patience=patience)
        self._sampling = sampling or Sampling()
        encode(["Hi"], "", replace(self._sampling, max_tokens=max_tokens))  # or it is refused in mid-call
        self._places = list(range(len(self.endpoints)))
        self._core: list[_Core] = []
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Raises SpecError for endpoints that do not fit together, BackendError if none can be reached."""
        if self._core:
            raise SpecError("The pool is open already.")
        await self._opened()
        return self

    async def _opened(self) -> _Core:
        async with self._opening:
            if not self._core:
                self._core.append(await self._connect())
        return self._core[0]

    async def _connect(self) -> _Core:
        urls = [backend_url(endpoint) for endpoint in self.endpoints]
        async with AsyncExitStack() as stack:
            fleet = await open_endpoint_pool(urls, self._model, uses_tools=False, notify=_notify, timeout=self.timeout)
            stack.push_async_callback(fleet.aclose)
            wires = PromptTransport(fleet, _notify, is_raw=self._raw)
            await wires.open()
            return _Core(fleet, wires, [EndpointState() for _ in urls], stack.pop_all())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections, of sub-pools too. A pool that was used without `async with` is closed by this."""
        if self._core:
            await self._core.pop().stack.aclose()

    @property
    def size(self) -> int:
        return len(self._places)

    @property
    def requests(self) -> int:
        """Sent so far, by this pool and its sub-pools."""
        return self._open.wires.requests

    def by_tag(self, key: str, value: str | None = None) -> Self:
        """A pool of those with this tag, or with this value of a field."""
        wanted = key if value is None else f"{key}={value}"
        return self._of([at for at, endpoint in enumerate(self.endpoints) if endpoint.has(wanted)])

    def select(self, indices: Sequence[int]) -> Self:
        """A pool of the endpoints with these numbers."""
        return self._of(list(indices))

    def slice(self, start: int, stop: int) -> Self:
        """A pool of neighbours, as of a list."""
        return self._of(list(range(self.size))[start:stop])

    def sample(self, n: int) -> Self:
        """So many, by chance; all of them, in any case, if there are no more."""
        at_least("n", n, 0)
        return self._of(sorted(random.sample(range(self.size), min(n, self.size))))

    def drain(self, agent_index: int) -> None:
        """It gets nothing new; what is under way goes on."""
        self._open.fleet.routing.drain(self._place(agent_index))

    def undrain(self, agent_index: int) -> None:
        """It is given prompts again."""
        self._open.fleet.routing.undrain(self._place(agent_index))

    async def post(self, agent_index: int, prompt: str, max_tokens: int | None = None) -> Response:
        """One prompt to one endpoint, whatever it has to do. A failure is a response too."""
        place, received = self._place(agent_index), list[PromptEvent]()
        core = await self._opened()
        how = self._how(max_tokens)
        if not _is_prompt(prompt):
            return _no_prompt(0, prompt)
        url = core.fleet.members[place].url
        try:
            await core.wires.alone(place, prompt, how, self.timeout, received.append)
        except BackendError as error:
            return Response(0, "", str(error), error.kind, endpoint=url, agent_index=agent_index)
        return _response(received, url, agent_index)

    async def post_batch(
        self, agent_index: int, prompts: Sequence[str], max_tokens: int | None = None
    ) -> list[Response]:
        """Many prompts to one endpoint."""
        responses = await self.select([agent_index])._send(prompts, max_tokens, None, in_lists=self.use_batch)
        return [replace(each, agent_index=agent_index) if each.agent_index == 0 else each for each in responses]

    async def send_all(
        self, prompts: Sequence[str], max_tokens: int | None = None, *, on_response: OnResponse | None = None
    ) -> list[Response]:
        """Each prompt as a request of its own, to whoever has least to do."""
        return await self._send(prompts, max_tokens, on_response, in_lists=False)

    async def send_all_batched(
        self, prompts: Sequence[str], max_tokens: int | None = None, *, on_response: OnResponse | None = None
    ) -> list[Response]:
        """Many prompts in each request. `on_response` sees each response as it comes."""
        return await self._send(prompts, max_tokens, on_response, in_lists=self.use_batch)

    async def stream(self, prompts: Sequence[str], max_tokens: int | None = None) -> AsyncIterator[Response]:
        """Responses as they come. Leaving early calls off the rest."""
        came: Channel[Response] = Channel(math.inf)
        work = self._send(prompts, max_tokens, came.put, in_lists=self.use_batch)
        sending = asyncio.get_running_loop().create_task(work)
        sending.add_done_callback(lambda _: came.close())
        try:
            async for response in came:
                yield response
            sending.result()
        finally:
            sending.cancel()
            await asyncio.wait([sending])

    async def broadcast_prompt(self, prompt: str, max_tokens: int | None = None) -> list[Response]:
        """The same prompt to every endpoint."""
        self._check_size()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.post(at, prompt, max_tokens)) for at in range(self.size)]
        return [replace(task.result(), index=at) for at, task in enumerate(tasks)]

    async def _send(
        self, prompts: Sequence[str], max_tokens: int | None, on_response: OnResponse | None, *, in_lists: bool
    ) -> list[Response]:
        self._check_size()
        core = await self._opened()
        how, all_prompts = self._how(max_tokens), listed("prompts", prompts)
        responses: dict[int, Response] = {}
        local = {place: at for at, place in enumerate(self._places)}

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
                    _log.exception("on_response raised for prompt %d; the others go on", response.index)

        async def ask(place: int, some: Sequence[str], hear: OnPrompt) -> None:
            if in_lists:
                await core.wires.ask(place, some, how, self.timeout, hear)
            else:
                await core.wires.alone(place, some[0], how, self.timeout, hear)

        for index, prompt in enumerate(all_prompts):
            if not _is_prompt(prompt):
                deliver(_no_prompt(index, prompt))
        asked = [PendingPrompt(index, prompt) for index, prompt in enumerate(all_prompts) if _is_prompt(prompt)]
        orders = self._orders if in_lists else replace(self._orders, longest=1, are_whole=not self._raw)
        await Dispatcher(core.fleet, core.lanes, self._places, ask, orders, deliver).run(asked)
        return [responses[index] for index in range(len(all_prompts))]

    def _how(self, max_tokens: int | None) -> Sampling:
        context = self._open.fleet.traits.context_tokens
        wanted = self.max_tokens if max_tokens is None else max_tokens
        at_least("max_tokens", wanted, 1)
        return replace(self._sampling, max_tokens=wanted if context is None else min(wanted, context))

    def _check_size(self) -> None:
        if not self.size:
            raise SpecError("This pool has no endpoints: nothing has the tag, or the index, that was asked for.")

    def _place(self, agent_index: int) -> int:
        if not is_whole(agent_index) or not 0 <= agent_index < self.size:
            raise SpecError(f"This pool has {self.size} endpoints, from 0 on; there is no number {agent_index!r}.")
        return self._places[agent_index]

    def _of(self, indices: Sequence[int]) -> Self:
        chosen = type(self).__new__(type(self))
        chosen.__dict__ |= self.__dict__
        chosen._places = [self._place(at) for at in indices]
        chosen.endpoints = [self.endpoints[at] for at in indices]
        return chosen

    @property
    def _open(self) -> _Core:
        if not self._core:
            raise SpecError("The pool is not open: use it as `async with VLLMPool(...) as pool`.")
        return self._core[0]


def _response(events: Sequence[PromptEvent], url: str, place: int) -> Response:
    text = "".join(event.text for event in events if isinstance(event, PromptDelta))
    done = next((event for event in events if isinstance(event, PromptFinished)), None)
    if done is None:
        return Response(0, text, "The answer has no end.", ErrorKind.SERVER, endpoint=url, agent_index=place)
    return response_of(0, text, done.finish, done.usage, url, place)


def _is_prompt(given: Any) -> bool:
    return isinstance(given, str) and bool(given)


def _no_prompt(index: int, given: Any) -> Response:
    return Response(index, "", f"A prompt must be a text that is not empty; got {given!r}.", ErrorKind.BAD_INPUT)


def _notify(text: str) -> None:
    print(f"batch-agent: {safe_text(text)}", file=sys.stderr, flush=True)
