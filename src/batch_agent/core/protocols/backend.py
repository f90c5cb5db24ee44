"""Seam of inference servers: the backend, its traits, and the protocols of what only some backends can do."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol, runtime_checkable

from ..events import EndpointChanged
from ..fast_dataclass import dataclass
from ..images import MAX_IMAGE_TOKENS
from ..requests import ContextHint, Delta, EncodedRequest, Lane, Request
from .store import EarlierSubmission


@dataclass(frozen=True, slots=True)
class Traits:
    """Capabilities of a backend, detected or known."""

    name: str
    model: str
    native_tools: bool
    json_schema: bool
    """It constrains answers to a JSON schema."""
    json_schema_with_tools: bool
    """It does so in requests with tools too, without preventing tool calls."""
    inflight: int
    """Initial limit of requests in flight, if the user sets none."""
    fixed_inflight: bool = False
    """Whether the server has exactly `inflight` slots, so that more requests never help."""
    context_tokens: int | None = None
    kv_tokens: int | None = None
    """Capacity of its KV cache, slower tiers included; None if it is unknown or irrelevant."""
    kv_running_tokens: int | None = None
    """Capacity of the tier that running requests use: what is in a slower tier has to be loaded back first."""
    strict_schema: bool = False
    """It takes only schemas that have a strict form (core/schema.py)."""
    has_agent_sessions: bool = False
    """It keeps a session per agent, until `Backend.leave`."""
    reports_rate_limits: bool = False
    """Its responses say how many requests and tokens it accepts per minute, which `ReportsRateLimits` passes on."""
    takes_hints: bool = False
    """It manages its KV cache by the hints in requests (`Request.hint`), and those of `TakesHints`."""
    managed_cache: bool = False
    """A prefix is cached only after the first answer, so warming it before a burst pays."""
    lanes: tuple[Lane, ...] = ("standard",)
    """Lanes that requests may take."""
    token_ids: bool = False
    """Its replies have the ids of their tokens, if a request asks for them (`Request.tokens`)."""
    unsupported_sampling: tuple[str, ...] = ()
    """Sampling options that it does not support."""
    images: bool | None = None
    """Whether the model takes images; None: unknown."""
    max_image_bytes: int | None = None
    """Largest image that it takes, before it is encoded."""
    max_image_side: int | None = None
    """The most pixels that a side of an image may have."""
    image_tokens: int = MAX_IMAGE_TOKENS
    """Most tokens of one image."""
    detected: tuple[str, ...] = ()
    """Active features that were detected, as text for the user."""


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """Load report of a server. Counters count from its start."""

    running: int = 0
    """Requests in its batch."""
    waiting: int = 0
    """Requests in its queue."""
    kv_usage: float | None = None
    """Share of its KV cache that running requests hold, without what is only cached."""
    preemptions: int = 0
    computed: int = 0
    """Tokens written to its KV cache: prompts without their cache hits, and answers."""
    kv_host_tokens: int | None = None
    """Capacity of the tier of its KV cache in host memory; None if there is none, or its size is not known yet."""


class Backend(Protocol):
    """Inference server. Warming a prefix is a request with max_tokens=1."""

    @property
    def traits(self) -> Traits: ...

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Delta]]:
        """Sends one turn. Raises BackendError only; leaving the context early aborts the request."""
        ...

    async def leave(self, agent: str) -> None:
        """Ends an agent: the server may drop what it keeps for it. Never raises, and returns soon."""
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class ReportsLoad(Protocol):
    """Backend whose server reports its load."""

    async def load(self) -> ServerLoad | None:
        """Load report, or None if there is none. Never raises BackendError, and returns soon."""
        ...


PaceKind = Literal["requests", "tokens", "input_tokens", "output_tokens"]
"""What a limit per minute counts. Some services count prompts and generated tokens apart."""


@dataclass(frozen=True, slots=True)
class ServiceLimit:
    """A limit per minute as a service reports it."""

    limit: int
    remaining: int | None = None
    """What may be sent now."""
    reset: float | None = None
    """Seconds until nothing of the limit is used."""


@runtime_checkable
class ReportsRateLimits(Protocol):
    """Backend whose responses may report limits per minute."""

    def observe_rate_limits(self, observer: Callable[[Mapping[PaceKind, ServiceLimit]], None]) -> Callable[[], None]:
        """Calls `observer` with the limits in each response that has some. Returns a function that ends this."""
        ...


@runtime_checkable
class CollectsRequests(Protocol):
    """Backend that collects the requests of many agents, and sends them together."""

    def observe_agents(self, on_their_way: Callable[[], int]) -> Callable[[], None]:
        """`on_their_way`: counts the agents that may send a request before any other request is answered: those that
        were admitted and one that is being admitted, less those that wait for a slot or for the budget. Requests that
        wait here are included. Returns a function to be called when the count may have changed."""
        ...

    def submitted(self, request: Request) -> "EarlierSubmission | None":
        """Whether the request was submitted before: it is not sent again, but its result awaited."""
        ...


@runtime_checkable
class TakesHints(Protocol):
    """Backend that can send a hint about an agent's context without a request to the model."""

    async def hint(self, hint: ContextHint) -> None:
        """Corrects the hint of the agent's last request, or does nothing if the server has no use for it. Never raises,
        and returns soon. The end of an agent is `Backend.leave`."""
        ...


@runtime_checkable
class HasEndpoints(Protocol):
    """Backend of several endpoints."""

    def unavailable(self) -> tuple[str, ...]:
        """Unavailable endpoints, each with its last error."""
        ...


@runtime_checkable
class AssignsEndpoints(Protocol):
    """Backend of several endpoints, each with a KV cache, that sends an agent's requests where it is resident.
    Endpoints are identified by their names."""

    on_routed: Callable[[str, str], None] | None
    """Called with the agent and the endpoint before each request is sent."""

    @property
    def kv_capacities(self) -> Mapping[str, int] | None:
        """Tokens that the KV cache of each endpoint holds; None if that is not known of all that are connected."""
        ...

    def assign(self, agent: str, endpoint: str) -> None:
        """The agent's requests go to this endpoint until they fail there or it is ejected."""
        ...

    def is_available(self, endpoint: str) -> bool:
        """Whether the endpoint takes requests: it is up, or may be probed, and is not draining."""
        ...

    def expected_wait(self, endpoint: str, requests: int) -> float:
        """Seconds until the endpoint would have answered so many requests, those in flight included. While its speed
        is unknown, only comparable with that of other endpoints."""
        ...


@runtime_checkable
class ChangesEndpoints(Protocol):
    """Backend whose endpoints may join and leave while it is open."""

    @property
    def traits(self) -> Traits:
        """Of the endpoints that take requests now."""
        ...

    def observe_endpoints(self, observer: Callable[[EndpointChanged], None]) -> Callable[[], None]:
        """Calls `observer` with each change from now on. Returns a function that ends this."""
        ...


@runtime_checkable
class CountsTokens(Protocol):
    """Backend whose server counts tokens."""

    async def count_tokens(self, text: str) -> int | None:
        """Tokens of the text, or None if the server does not say. Never raises BackendError, and returns soon."""
        ...


@runtime_checkable
class RendersPrompts(Protocol):
    """Backend whose server renders the prompt of a request without computing it."""

    async def render_prompt(self, request: Request) -> bytes | None:
        """Ids of the prompt, as the server renders its messages with all tools; None if the server does not say. Never
        raises BackendError."""
        ...


@runtime_checkable
class EncodesRequests(Protocol):
    """Backend that can show a request as it would send it."""

    def encode(self, request: Request) -> EncodedRequest:
        """Sends nothing."""
        ...
