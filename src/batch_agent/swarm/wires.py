"""How prompts go to the endpoints of a pool: many in a request where that can be done, each alone where not."""

import asyncio
from collections.abc import Callable, Sequence

from ..backends.batched import ListWire
from ..backends.dialects.completions_answers import Piece, PromptDone, PromptEvent
from ..backends.fleet import Fleet
from ..backends.http import HttpBackend
from ..core.errors import BackendError, ErrorKind
from ..core.messages import User
from ..core.prompt import Prompt
from ..core.requests import Finished, Request, Sampling, TextDelta
from .wrapping import Wrapping, find_wrapping, has_batch_route

_KNOW_VLLM = ("vllm", "sim")
_NO_PROMPT = Prompt("")
_PROBE = Sampling(max_tokens=1)

Hear = Callable[[PromptEvent], None]


class Wires:
    """Found out once, at the first endpoint that is there: all serve the same model."""

    def __init__(self, fleet: Fleet, notify: Callable[[str], None], *, is_raw: bool) -> None:
        self._fleet = fleet
        self._notify = notify
        self._is_raw = is_raw
        self._wrapping = Wrapping()
        self._are_chats = False
        self._take_lists: bool | None = None
        """None until one was taken, or refused."""
        self.requests = 0

    async def open(self) -> None:
        """Finds out how a list of prompts gets the model's chat template."""
        backend = next(member.backend for member in self._fleet.members if isinstance(member.backend, HttpBackend))
        if self._is_raw:
            return
        found = await find_wrapping(backend.server, self._fleet.traits.model)
        if found is not None:
            self._wrapping = found
        elif await has_batch_route(backend.server):
            self._are_chats = True
        else:
            self._only_alone("it does not show its chat template")

    async def ask(self, place: int, prompts: Sequence[str], sampling: Sampling, patience: float, hear: Hear) -> None:
        """Raises BackendError; what was told as done stays done."""
        backend = await self._fleet.members[place].opened(self._fleet.traits.model)
        if not isinstance(backend, HttpBackend) or self._take_lists is False:
            await self._each_alone(place, prompts, sampling, patience, hear)
            return
        wire = self._wire(backend)
        self.requests += 1
        try:
            await wire.ask([self._wrapping.around(prompt) for prompt in prompts], sampling, patience, hear)
            self._take_lists = True
        except BackendError as error:
            if error.kind not in (ErrorKind.BAD_REQUEST, ErrorKind.NOT_FOUND) or self._take_lists:
                raise
            if await self._takes_a_list(wire):
                self._take_lists = True
                raise
            self._only_alone(f"it takes no lists ({error})")
            await self._each_alone(place, prompts, sampling, patience, hear)

    async def alone(
        self, place: int, prompt: str, sampling: Sampling, patience: float, hear: Hear, at: int = 0
    ) -> None:
        """As a conversation, for which the server has its template; raw ones as a list of one."""
        backend = await self._fleet.members[place].opened(self._fleet.traits.model)
        self.requests += 1
        if self._is_raw and isinstance(backend, HttpBackend):
            await self._wire(backend).ask([prompt], sampling, patience, lambda event: hear(_at(event, at)))
            return
        request = Request(_NO_PROMPT, (User(prompt),), self._fleet.traits.model, sampling)
        try:
            async with asyncio.timeout(patience), backend.stream(request) as deltas:
                async for delta in deltas:
                    match delta:
                        case TextDelta(text):
                            hear(Piece(at, text))
                        case Finished(reason, usage):
                            hear(PromptDone(at, reason, usage))
                        case _:
                            pass
        except TimeoutError as error:
            message = f"{self._fleet.members[place].url} did not answer within {patience:g} s."
            raise BackendError(ErrorKind.TURN_TIMEOUT, message) from error

    async def _each_alone(
        self, place: int, prompts: Sequence[str], sampling: Sampling, patience: float, hear: Hear
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

    async def _takes_a_list(self, wire: ListWire) -> bool:
        self.requests += 1
        try:
            await wire.ask([self._wrapping.around("Hi"), self._wrapping.around("Ho")], _PROBE, 60.0, lambda _: None)
        except BackendError as error:
            return error.kind not in (ErrorKind.BAD_REQUEST, ErrorKind.NOT_FOUND)
        return True

    def _only_alone(self, why: str) -> None:
        if self._take_lists is not False:
            self._take_lists = False
            self._notify(f"{self._fleet.traits.name}: each prompt is a request of its own, because {why}.")

    def _wire(self, backend: HttpBackend) -> ListWire:
        return ListWire(
            backend.server,
            self._fleet.traits.model,
            are_chats=self._are_chats,
            is_raw=self._is_raw,
            only_standard=backend.traits.name not in _KNOW_VLLM,
        )


def _at(event: PromptEvent, at: int) -> PromptEvent:
    match event:
        case Piece(_, text):
            return Piece(at, text)
        case PromptDone(_, finish, usage):
            return PromptDone(at, finish, usage)
