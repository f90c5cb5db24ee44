"""How prompts go to the endpoints of a pool: many in a request where that can be done, each alone where not."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ..backends.batch_completions import BatchCompletionClient
from ..backends.dialects.completions.decoder import PromptDelta, PromptEvent, PromptFinished
from ..backends.endpoint_pool import EndpointPool
from ..backends.http_backend import HttpBackend
from ..core.errors import BackendError, ErrorKind
from ..core.messages import Prompt, User
from ..core.requests import Finished, Request, Sampling, TextDelta
from .chat_template import ChatTemplate, find_chat_template, has_batch_route

_KNOW_VLLM = ("vllm", "sim")
_NO_PROMPT = Prompt("")
_PROBE = Sampling(max_tokens=1)
_PROBES = ("Hi", "Ho")
_PROBE_PATIENCE = 60.0
_ASKED_FOR_TEMPLATE = 3
"""Endpoints that are asked for the chat template before it is taken to be hidden."""
_NOT_IMPLEMENTED = 501

OnPrompt = Callable[[PromptEvent], None]
AskList = Callable[[int, Sequence[str], OnPrompt], Awaitable[None]]
"""Sends a list to an endpoint, by its place. Raises BackendError."""


class PromptTransport:
    """The chat template is found out once, for all serve the same model; who takes lists is, where one is refused."""

    def __init__(self, fleet: EndpointPool, notify: Callable[[str], None], *, is_raw: bool) -> None:
        self._fleet = fleet
        self._notify = notify
        self._is_raw = is_raw
        self._wrapping: ChatTemplate | None = ChatTemplate() if is_raw else None
        self._are_chats = False
        self._take_lists: dict[int, bool] = {}
        """By endpoint, from when one was taken, or refused."""
        self._only_standard: set[int] = set()
        """Endpoints that refuse what only vLLM takes."""
        self._finding_out = asyncio.Lock()
        self._is_said = False
        self.requests = 0

    async def open(self) -> None:
        """Finds out how a list of prompts gets the model's chat template."""
        there = [member.backend for member in self._fleet.members if isinstance(member.backend, HttpBackend)]
        for backend in there[:_ASKED_FOR_TEMPLATE]:
            if self._wrapping is None:
                self._wrapping = await find_chat_template(backend.server, self._fleet.traits.model)
        if self._wrapping is None:
            self._are_chats = bool(there) and await has_batch_route(there[0].server)
            if not self._are_chats:
                self._say("the server does not show its chat template")

    async def ask(
        self, place: int, prompts: Sequence[str], sampling: Sampling, patience: float, hear: OnPrompt
    ) -> None:
        """Raises BackendError; what was told as done stays done."""
        backend = await self._fleet.members[place].get_backend(self._fleet.traits.model)
        may_list = (self._wrapping is not None or self._are_chats) and self._take_lists.get(place, True)
        if may_list and isinstance(backend, HttpBackend):
            await self._list(place, backend, prompts, sampling, patience, hear)
        else:
            await self._each_alone(place, prompts, sampling, patience, hear)

    async def alone(
        self, place: int, prompt: str, sampling: Sampling, patience: float, hear: OnPrompt, at: int = 0
    ) -> None:
        """As a conversation, for which the server has its template; raw ones as a list of one."""
        backend = await self._fleet.members[place].get_backend(self._fleet.traits.model)
        if self._is_raw and isinstance(backend, HttpBackend):
            await self._list(place, backend, [prompt], sampling, patience, lambda event: hear(_at(event, at)))
            return
        self.requests += 1
        request = Request(_NO_PROMPT, (User(prompt),), self._fleet.traits.model, sampling)
        try:
            async with asyncio.timeout(patience), backend.stream(request) as deltas:
                async for delta in deltas:
                    match delta:
                        case TextDelta(text):
                            hear(PromptDelta(at, text))
                        case Finished(reason, usage):
                            hear(PromptFinished(at, reason, usage))
                        case _:
                            pass
        except TimeoutError as error:
            message = f"{self._fleet.members[place].url} has said nothing for {patience:g} s."
            raise BackendError(ErrorKind.TURN_TIMEOUT, message) from error

    async def _list(
        self,
        place: int,
        backend: HttpBackend,
        prompts: Sequence[str],
        sampling: Sampling,
        patience: float,
        hear: OnPrompt,
    ) -> None:
        wrapping, wire = self._wrapping or ChatTemplate(), self._wire(place, backend)
        self.requests += 1

        def taken(event: PromptEvent) -> None:
            self._take_lists.setdefault(place, True)
            hear(event)

        try:
            await wire.send([wrapping.around(prompt) for prompt in prompts], sampling, patience, taken)
        except BackendError as error:
            if not _may_mean_no_lists(error):
                raise
            async with self._finding_out:
                if place not in self._take_lists:
                    await self._find_out(place, backend, error)
            may_go_alone = not self._take_lists.get(place, True) and not (self._is_raw and len(prompts) == 1)
            if not may_go_alone and self._wire(place, backend) == wire:
                raise
            await self.ask(place, prompts, sampling, patience, hear)

    async def _each_alone(
        self, place: int, prompts: Sequence[str], sampling: Sampling, patience: float, hear: OnPrompt
    ) -> None:
        """Raises one of the errors, after all have come to their end."""
        errors: list[BackendError] = []

        async def one(at: int, prompt: str) -> None:
            try:
                await self.alone(place, prompt, sampling, patience, hear, at)
            except BackendError as error:
                errors.append(error)

        async with asyncio.TaskGroup() as group:
            for at, prompt in enumerate(prompts):
                group.create_task(one(at, prompt))
        if errors:
            raise errors[0]

    async def _find_out(self, place: int, backend: HttpBackend, refusal: BackendError) -> None:
        """Whether a list was refused for one of its prompts, for being one, or for what only vLLM knows."""
        error = await self._refusal(place, backend)
        if error is not None and _may_mean_no_lists(error) and not self._wire(place, backend).only_standard:
            self._only_standard.add(place)
            error = await self._refusal(place, backend)
            if error is not None:
                self._only_standard.discard(place)
        if error is None:
            self._take_lists[place] = True
        elif _may_mean_no_lists(error) and await self._takes_one(place):
            self._take_lists[place] = False
            self._say(f"the server takes no lists ({refusal})")

    async def _refusal(self, place: int, backend: HttpBackend) -> BackendError | None:
        """Of a list that no server has anything against."""
        wrapping = self._wrapping or ChatTemplate()
        self.requests += 1
        try:
            prompts = [wrapping.around(prompt) for prompt in _PROBES]
            await self._wire(place, backend).send(prompts, _PROBE, _PROBE_PATIENCE, lambda _: None)
        except BackendError as error:
            return error
        return None

    async def _takes_one(self, place: int) -> bool:
        """A prompt that no server has anything against. One that refuses this too has nothing against lists."""
        if self._is_raw:
            return True
        try:
            await self.alone(place, _PROBES[0], _PROBE, _PROBE_PATIENCE, lambda _: None)
        except BackendError as error:
            return not _may_mean_no_lists(error)
        return True

    def _say(self, why: str) -> None:
        if not self._is_said:
            self._is_said = True
            self._notify(f"{self._fleet.traits.name}: each prompt is a request of its own, because {why}.")

    def _wire(self, place: int, backend: HttpBackend) -> BatchCompletionClient:
        return BatchCompletionClient(
            backend.server,
            self._fleet.traits.model,
            are_chats=self._are_chats,
            is_raw=self._is_raw,
            only_standard=backend.traits.name not in _KNOW_VLLM or place in self._only_standard,
        )


def _may_mean_no_lists(error: BackendError) -> bool:
    return error.kind in (ErrorKind.BAD_REQUEST, ErrorKind.NOT_FOUND) or error.status == _NOT_IMPLEMENTED


def _at(event: PromptEvent, at: int) -> PromptEvent:
    match event:
        case PromptDelta(_, text):
            return PromptDelta(at, text)
        case PromptFinished(_, finish, usage):
            return PromptFinished(at, finish, usage)
