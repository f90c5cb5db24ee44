"""Transport of prompts to the endpoints of a pool: many per request if the server accepts that, otherwise one.

A batch is sent as plain texts, to which the client applies the model's chat template. It finds the template by
rendering a marker with the server's own tokenizer."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import orjson

from ..backends.batch_completions import BatchCompletionClient
from ..backends.dialects.completions.decoder import PromptDelta, PromptEvent, PromptFinished
from ..backends.endpoints.endpoint_pool import EndpointPool
from ..backends.http.client import ServerClient
from ..backends.http.json_body import BadJson, loads
from ..backends.http_backend import HttpBackend
from ..backends.probe import admin_url
from ..core.errors import BackendError, ErrorKind
from ..core.fast_dataclass import dataclass
from ..core.messages import Prompt, User
from ..core.requests import Finished, Request, Sampling, TextDelta

_TIMEOUT = 10.0
_MARKERS = ("Q7xMarkerZ3", "Another 42 marker, with words.", "\n  One more, with space around it. \n")


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """The text before and after a user's message."""

    prefix: str = ""
    suffix: str = ""
    strips: bool = False
    """Whether whitespace at the ends of a message is removed, as by many templates."""

    def render(self, prompt: str) -> str:
        return f"{self.prefix}{prompt.strip() if self.strips else prompt}{self.suffix}"


async def find_chat_template(server: ServerClient, model: str) -> ChatTemplate | None:
    """The chat template of the model; None if the server does not show it, or if it does more than surround the
    message."""
    found: ChatTemplate | None = None
    for marker in _MARKERS:
        messages = [{"role": "user", "content": marker}]
        tokens = await _tokenize(server, {"model": model, "messages": messages, "add_generation_prompt": True})
        if tokens is None:
            return None
        shown = await _post(server, "/detokenize", {"model": model, "tokens": tokens})
        text = shown.get("prompt") if isinstance(shown, dict) else None
        if not isinstance(text, str) or text.count(marker.strip()) != 1:
            return None
        found = found or ChatTemplate(text[: text.index(marker)], text[text.index(marker) + len(marker) :])
        if found.render(marker) != text:
            found = replace(found, strips=True)
        as_prompt = {"model": model, "prompt": text, "add_special_tokens": False}
        if found.render(marker) != text or await _tokenize(server, as_prompt) != tokens:
            return None
    return found


async def has_batch_route(server: ServerClient) -> bool:
    """Whether the server accepts many conversations in one request."""
    try:
        return b"/v1/chat/completions/batch" in await server.get(admin_url(server.root, "/openapi.json"), _TIMEOUT)
    except BackendError:
        return False


async def _tokenize(server: ServerClient, body: dict[str, Any]) -> list[int] | None:
    reply = await _post(server, "/tokenize", body)
    tokens = reply.get("tokens") if isinstance(reply, dict) else None
    return tokens if isinstance(tokens, list) and tokens else None


async def _post(server: ServerClient, path: str, body: dict[str, Any]) -> Any:
    reply = await server.post_or_none(admin_url(server.root, path), orjson.dumps(body), _TIMEOUT)
    try:
        return None if reply is None else loads(reply)
    except BadJson:
        return None


_VLLM_FLAVORS = ("vllm", "sim")
"""Flavors that accept vLLM's extensions."""
_NO_PROMPT = Prompt("")
_PROBE = Sampling(max_tokens=1)
_PROBE_PROMPTS = ("Hi", "Ho")
_PROBE_TIMEOUT = 60.0
_MAX_TEMPLATE_PROBES = 3
"""Number of endpoints that are queried for the chat template before it is considered hidden."""
_NOT_IMPLEMENTED = 501

OnPrompt = Callable[[PromptEvent], None]


class PromptTransport:
    """Sends prompts in the format that each endpoint accepts.

    All endpoints serve one model, so the chat template is determined once. Whether an endpoint accepts batches is
    determined when it rejects one."""

    def __init__(self, endpoint_pool: EndpointPool, notify: Callable[[str], None], *, is_raw: bool) -> None:
        self._pool = endpoint_pool
        self._notify = notify
        self._is_raw = is_raw
        self._template: ChatTemplate | None = ChatTemplate() if is_raw else None
        self._sends_chats = False
        """Whether batches are conversations, to which the server applies its template itself."""
        self._accepts_batches: dict[int, bool] = {}
        """Whether each endpoint accepts batches, once it has accepted or rejected one."""
        self._only_standard: set[int] = set()
        """Endpoints that reject vLLM's extensions."""
        self._rejects_all: set[int] = set()
        """Endpoints that also rejected a harmless prompt."""
        self._probe_lock = asyncio.Lock()
        self._is_reported = False
        self.requests = 0

    async def open(self) -> None:
        """Determines how the prompts of a batch get the model's chat template."""
        backends = [member.backend for member in self._pool.members if isinstance(member.backend, HttpBackend)]
        for backend in backends[:_MAX_TEMPLATE_PROBES]:
            if self._template is None:
                self._template = await find_chat_template(backend.server, self._pool.traits.model)
        if self._template is None:
            self._sends_chats = bool(backends) and await has_batch_route(backends[0].server)
            if not self._sends_chats:
                self._report_single("the server does not show its chat template")

    async def blamed(self, endpoint: int, sampling: Sampling, error: BackendError) -> BackendError:
        """The error to report for a rejected request. If the endpoint also rejects a harmless prompt, no prompt is at
        fault, and the error says so."""
        record = self._pool.members[endpoint].record
        if error.kind is not ErrorKind.BAD_REQUEST:
            return error
        async with self._probe_lock:
            if record.is_proven:
                self._rejects_all.discard(endpoint)
                return error
            if endpoint not in self._rejects_all:
                try:
                    harmless = replace(sampling, max_tokens=1)
                    await self.send_single(endpoint, _PROBE_PROMPTS[0], harmless, _PROBE_TIMEOUT, lambda _: None)
                except BackendError as other:
                    if other.kind is not ErrorKind.BAD_REQUEST:
                        return error
                    self._rejects_all.add(endpoint)
                else:
                    record.on_answer()
                    return error
        url = self._pool.members[endpoint].url
        hint = f"It rejects even the prompt {_PROBE_PROMPTS[0]!r}: check its options with `batch-agent doctor {url}`."
        message = f"{error} {hint}"
        return BackendError(ErrorKind.NOT_FOUND, message, status=error.status)

    async def send(
        self,
        endpoint: int,
        prompts: Sequence[str],
        sampling: Sampling,
        timeout: float,
        on_event: OnPrompt,
        indices: Sequence[int] | None = None,
    ) -> None:
        """Sends prompts. `indices`: indices of the prompts in their call, for the request log. Raises BackendError;
        prompts that were reported as finished stay finished."""
        backend = await self._pool.members[endpoint].get_backend(self._pool.traits)
        may_batch = (self._template is not None or self._sends_chats) and self._accepts_batches.get(endpoint, True)
        if may_batch and isinstance(backend, HttpBackend):
            await self._send_batch(endpoint, backend, prompts, sampling, timeout, on_event, indices)
        else:
            await self._send_each(endpoint, prompts, sampling, timeout, on_event, indices)

    async def send_single(
        self,
        endpoint: int,
        prompt: str,
        sampling: Sampling,
        timeout: float,
        on_event: OnPrompt,
        index: int | None = None,
        position: int = 0,
    ) -> None:
        """Sends one prompt as a conversation, to which the server applies its template, or a raw one as a batch of one.
        `index`: index of the prompt in its call, for the request log. `position`: its position in the batch, for
        events."""
        backend = await self._pool.members[endpoint].get_backend(self._pool.traits)
        if self._is_raw and isinstance(backend, HttpBackend):
            await self._send_batch(
                endpoint,
                backend,
                [prompt],
                sampling,
                timeout,
                lambda event: on_event(_with_index(event, position)),
                None if index is None else [index],
            )
            return
        self.requests += 1
        request = Request(_NO_PROMPT, (User(prompt),), self._pool.traits.model, sampling, index=index)
        try:
            async with asyncio.timeout(timeout), backend.stream(request) as deltas:
                async for delta in deltas:
                    match delta:
                        case TextDelta(text):
                            on_event(PromptDelta(position, text))
                        case Finished(reason, usage):
                            on_event(PromptFinished(position, reason, usage))
                        case _:
                            pass
        except TimeoutError as error:
            message = f"{self._pool.members[endpoint].url} did not answer within {timeout:g} s."
            raise BackendError(ErrorKind.TURN_TIMEOUT, message) from error

    async def _send_batch(
        self,
        endpoint: int,
        backend: HttpBackend,
        prompts: Sequence[str],
        sampling: Sampling,
        timeout: float,
        on_event: OnPrompt,
        indices: Sequence[int] | None,
    ) -> None:
        template, client = self._template or ChatTemplate(), self._client(endpoint, backend)
        self.requests += 1

        def receive(event: PromptEvent) -> None:
            self._accepts_batches.setdefault(endpoint, True)
            on_event(event)

        index = indices[0] if indices is not None and len(indices) == 1 else None
        try:
            await client.send([template.render(prompt) for prompt in prompts], sampling, timeout, receive, index)
        except BackendError as error:
            if not _may_mean_no_batches(error):
                raise
            async with self._probe_lock:
                if endpoint not in self._accepts_batches:
                    await self._probe_batches(endpoint, backend, error)
            may_split = not self._accepts_batches.get(endpoint, True) and not (self._is_raw and len(prompts) == 1)
            if not may_split and self._client(endpoint, backend) == client:
                raise
            await self.send(endpoint, prompts, sampling, timeout, on_event, indices)

    async def _send_each(
        self,
        endpoint: int,
        prompts: Sequence[str],
        sampling: Sampling,
        timeout: float,
        on_event: OnPrompt,
        indices: Sequence[int] | None,
    ) -> None:
        """Sends each prompt alone. Raises the first error after all requests have ended."""
        errors: list[BackendError] = []

        async def send_one(position: int, prompt: str) -> None:
            index = None if indices is None else indices[position]
            try:
                await self.send_single(endpoint, prompt, sampling, timeout, on_event, index, position)
            except BackendError as error:
                errors.append(error)

        async with asyncio.TaskGroup() as group:
            for position, prompt in enumerate(prompts):
                group.create_task(send_one(position, prompt))
        if errors:
            raise errors[0]

    async def _probe_batches(self, endpoint: int, backend: HttpBackend, rejection: BackendError) -> None:
        """Determines whether the server rejected a prompt, batches in general, or vLLM's extensions."""
        error = await self._probe_error(endpoint, backend)
        if error is not None and _may_mean_no_batches(error) and not self._client(endpoint, backend).only_standard:
            self._only_standard.add(endpoint)
            error = await self._probe_error(endpoint, backend)
            if error is not None:
                self._only_standard.discard(endpoint)
        if error is None:
            self._accepts_batches[endpoint] = True
            self._pool.members[endpoint].record.on_answer()
        elif _may_mean_no_batches(error) and await self._accepts_single(endpoint):
            self._accepts_batches[endpoint] = False
            self._report_single(f"the server does not accept lists of prompts ({rejection})")

    async def _probe_error(self, endpoint: int, backend: HttpBackend) -> BackendError | None:
        """The server's error for a batch of harmless prompts."""
        template = self._template or ChatTemplate()
        self.requests += 1
        try:
            prompts = [template.render(prompt) for prompt in _PROBE_PROMPTS]
            await self._client(endpoint, backend).send(prompts, _PROBE, _PROBE_TIMEOUT, lambda _: None)
        except BackendError as error:
            return error
        return None

    async def _accepts_single(self, endpoint: int) -> bool:
        """Whether the server accepts one harmless prompt. If not, batches are not the reason for the rejection."""
        if self._is_raw:
            return True
        try:
            await self.send_single(endpoint, _PROBE_PROMPTS[0], _PROBE, _PROBE_TIMEOUT, lambda _: None)
        except BackendError as error:
            return not _may_mean_no_batches(error)
        return True

    def _report_single(self, reason: str) -> None:
        if not self._is_reported:
            self._is_reported = True
            self._notify(f"{self._pool.traits.name}: each prompt is sent in its own request, because {reason}.")

    def _client(self, endpoint: int, backend: HttpBackend) -> BatchCompletionClient:
        return BatchCompletionClient(
            backend.server,
            self._pool.traits.model,
            are_chats=self._sends_chats,
            is_raw=self._is_raw,
            only_standard=backend.traits.name not in _VLLM_FLAVORS or endpoint in self._only_standard,
            observe=backend.observe,
        )


def _may_mean_no_batches(error: BackendError) -> bool:
    return error.kind in (ErrorKind.BAD_REQUEST, ErrorKind.NOT_FOUND) or error.status == _NOT_IMPLEMENTED


def _with_index(event: PromptEvent, index: int) -> PromptEvent:
    match event:
        case PromptDelta(_, text):
            return PromptDelta(index, text)
        case PromptFinished(_, finish, usage):
            return PromptFinished(index, finish, usage)
