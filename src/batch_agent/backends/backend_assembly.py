"""Assembly of a server's backend, with dialect, extensions and traits from its flavor and from the probe."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.errors import SpecError
from ..core.protocols.backend import Traits
from ..core.requests import ContextHint, RequestObserver
from ..lazy_imports import lazy_modules
from .address import BackendAddress
from .dialects.dialect import Dialect
from .dialects.openai.context_hints import COMPLETIONS_PATH, hint_request
from .dialects.openai.encoder import PATH, OpenAIChat
from .flavors import ANTHROPIC, BY_OWNER, COMPATIBLE, Flavor, OpenAIExtensions, enforces_schema, takes_images
from .http.client import ServerClient
from .http_backend import HttpBackend
from .load_metrics import load_reader_for
from .probe import ServedModel, ServerInfo, admin_url, has_unstable_tier
from .session_cleanup import SessionCloser, close_session, drop_context, final_request
from .token_counter import prompt_renderer_for, token_counter_for

with lazy_modules(globals()):
    from .dialects.anthropic import encoder as anthropic_encoder
    from .http import late_abort

if TYPE_CHECKING:
    from .http.late_abort import LateAborts

_HINT_TIMEOUT = 5.0


def http_backend(
    server: ServerClient,
    address: BackendAddress,
    flavor: Flavor,
    model: ServedModel,
    info: ServerInfo,
    observe: RequestObserver | None = None,
) -> HttpBackend:
    """Builds the backend of a server."""
    if (header := address.settings.session_header) is not None:
        flavor = with_session_header(flavor, header)
    session_closer, dialect = _session_closer(server, flavor, info, address, model.name), _dialect(flavor, info, model)
    return HttpBackend(
        server,
        dialect,
        server_traits(flavor, model, info, has_agent_sessions=session_closer is not None),
        session_closer,
        read_load=load_reader_for(server, flavor),
        count_tokens=token_counter_for(server, flavor, model.name),
        observe=observe,
        send_hint=_hint_sender(server, info, model.name),
        daily_requests=flavor.daily_requests,
        render_prompt=prompt_renderer_for(server, dialect) if flavor.extensions.prompt_ids else None,
        late_aborts=_late_aborts(flavor, info),
    )


def with_session_header(flavor: Flavor, header: str) -> Flavor:
    """The flavor of a server behind a router that keeps the requests of a session together. Raises SpecError."""
    if flavor.dialect != "openai":
        raise SpecError(f"Backend: session_header needs an OpenAI-compatible server; {flavor.scheme}:// is not one.")
    return replace(flavor, extensions=replace(flavor.extensions, session_header=header))


def _late_aborts(flavor: Flavor, info: ServerInfo) -> "LateAborts | None":
    if not has_unstable_tier(info, flavor.name):
        return None
    return late_abort.LateAborts()


def detect_flavor(address: BackendAddress, models: list[ServedModel]) -> Flavor:
    """The flavor that the URL names, or that the server reports."""
    owner = BY_OWNER.get(models[0].owner) if models else None
    flavor = address.flavor
    if flavor is None:
        return owner or COMPATIBLE
    if flavor is ANTHROPIC and not address.is_default:
        # Another server with Anthropic's dialect keeps its own abilities.
        host = owner if owner is not None and owner is not ANTHROPIC else COMPATIBLE
        return replace(host, dialect=ANTHROPIC.dialect, ignores=ANTHROPIC.ignores, rejects_early=False)
    return flavor


def _dialect(flavor: Flavor, info: ServerInfo, model: ServedModel) -> Dialect:
    if flavor.dialect == "anthropic":
        return anthropic_encoder.AnthropicMessages(
            max_output_tokens=model.max_output_tokens, strict_schema=flavor is ANTHROPIC
        )
    return OpenAIChat(_active_extensions(flavor.extensions, info))


def _active_extensions(extensions: OpenAIExtensions, info: ServerInfo) -> OpenAIExtensions:
    """The extensions of the flavor, adapted to what the server reports that it acts on."""
    if extensions.session_field and not info.sessions:
        extensions = replace(extensions, session_field="")
    if info.plugin is not None:
        extensions = replace(extensions, context_hints=True)
    if info.priority is False and (info.refuses_priority or not info.priority_eviction):
        return replace(extensions, priority="")
    if info.priority and info.low_priority_first:  # eviction still keeps the high values: it is of no use then
        return replace(extensions, priority="low_first")
    # Where sessions are kept they come first, and a closed one is evicted before all open ones.
    return replace(extensions, evicts_by_priority=bool(info.priority_eviction) and not info.sessions)


def _session_closer(
    server: ServerClient, flavor: Flavor, info: ServerInfo, address: BackendAddress, model: str
) -> SessionCloser | None:
    if flavor.dialect != "openai":
        return None
    if flavor.extensions.session_field and info.sessions:
        return SessionCloser(server.post_or_none, close_session(admin_url(server.root, "/close_session")))
    if info.plugin is not None:
        drop = drop_context(server.url(COMPLETIONS_PATH), model)
        return SessionCloser(server.post_or_none, drop, last_request_closes=True)
    if address.ends_sessions:
        return SessionCloser(server.post_or_none, final_request(server.url(PATH), model))
    return None


def _hint_sender(
    server: ServerClient, info: ServerInfo, model: str
) -> Callable[[ContextHint], Awaitable[object]] | None:
    if info.plugin is None:
        return None
    url = server.url(COMPLETIONS_PATH)
    return lambda hint: server.post_or_none(url, hint_request(model, hint), _HINT_TIMEOUT)


def server_traits(flavor: Flavor, model: ServedModel, info: ServerInfo, *, has_agent_sessions: bool = False) -> Traits:
    return Traits(
        name=flavor.name,
        model=model.name,
        native_tools=bool(flavor.native_tools),
        json_schema=enforces_schema(flavor, model.name),
        json_schema_with_tools=flavor.json_schema_with_tools,
        inflight=info.slots or flavor.inflight,
        fixed_inflight=flavor.fixed_inflight,
        context_tokens=model.context_tokens,
        # Without a prefix cache nothing is kept between turns, so residency is not guarded.
        kv_tokens=info.kv_retained_tokens if info.prefix_cache is not False else None,
        kv_running_tokens=info.kv_tokens,
        strict_schema=flavor.extensions.strict_schema or flavor is ANTHROPIC,
        has_agent_sessions=has_agent_sessions,
        takes_hints=info.plugin is not None and flavor.dialect == "openai",
        reports_rate_limits=flavor.rate_limit_headers,
        managed_cache=flavor.managed_cache,
        lanes=flavor.lanes,
        token_ids=bool(flavor.extensions.prompt_ids) and flavor.dialect == "openai",
        unsupported_sampling=flavor.ignores,
        images=info.images if info.images is not None else takes_images(flavor, model.name),
        max_image_bytes=flavor.max_image_bytes,
        max_image_side=flavor.max_image_side,
        image_tokens=flavor.image_tokens,
        detected=tuple(_describe(flavor, model, info)),
    )


def _describe(flavor: Flavor, model: ServedModel, info: ServerInfo) -> list[str]:
    """What was detected, for the report of the run."""
    seen = [f"{flavor.name} {info.version}" if info.version else flavor.name]
    if model.context_tokens:
        seen.append(f"context window of {model.context_tokens:,} tokens")
    if info.prefix_cache is not None:
        seen.append(f"prefix cache {'on' if info.prefix_cache else 'OFF'}")
    if info.kv_tokens:
        seen.append(f"KV cache of {info.kv_tokens:,} tokens")
    if info.sessions:
        seen.append("sessions")
    if info.priority:
        seen.append("priorities")
    if info.plugin:
        seen.append(f"batch-agent-vllm {info.plugin.version}")
    if info.priority_eviction:
        seen.append("eviction by priority")
    if info.host_tier:
        unstable = (
            ", which is UNSTABLE in this version (batch-agent doctor)" if has_unstable_tier(info, flavor.name) else ""
        )
        seen.append(f"second tier: {info.host_tier}{unstable}")
    return seen
