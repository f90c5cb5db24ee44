"""Opens and closes the resources of a run with program agents: gateway, runtime and sessions."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from ..backends.address import address_of_backend
from ..core.agent_config import AgentConfig
from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.options.backend_settings import BackendSettings, has_source, settings_of
from ..core.program_runtime import ModelAccess, ModelEndpoint, Runtime, RuntimeContext
from ..core.protocols.backend import Traits
from ..core.spec import BatchSpec
from ..engine.turn_runner import TurnRunner
from ..rollouts.token_recorder import TokenRecorder
from .action_adapter import ActionAdapter
from .completion_service import GatewayService
from .gateway import Gateway, open_gateway
from .program_sessions import ProgramSessions
from .program_turn_runner import ProgramTurnRunner
from .scratch_dir import remove_abandoned, scratch_folder

_WITHOUT_ADDRESS = ("local", "bedrock")
"""Backends without an address that a program could use."""


@asynccontextmanager
async def open_program_host(
    spec: BatchSpec,
    config: AgentConfig,
    traits: Traits,
    turn_runner: TurnRunner,
    notify: Callable[[str], None],
    tokens: TokenRecorder | None = None,
) -> AsyncIterator[ProgramTurnRunner]:
    """Yields the turn runner that runs programs as turns. Their requests go through `turn_runner`. Raises SpecError."""
    runtime, model = spec.runtime, config.model
    assert runtime is not None
    sessions = ProgramSessions(turn_runner.admission, turn_runner.events)
    adapter = ActionAdapter(config, traits, uses_actions=_uses_actions(spec, traits))
    service = GatewayService(turn_runner, adapter, sessions, spec.max_turns, tokens)
    await asyncio.to_thread(remove_abandoned)
    with scratch_folder() as folder:
        async with open_gateway(service) as gateway:
            access = _GatewayAccess(gateway, model) if runtime.gateway else _direct(spec, runtime, model)
            context = RuntimeContext(
                folder,
                access,
                spec.context.context_tokens or traits.context_tokens,
                notify,
            )

            def release(agent: str) -> None:
                gateway.dismiss(agent)
                service.leave(agent)

            async with runtime.open(context) as factory:
                yield ProgramTurnRunner(
                    factory,
                    sessions,
                    turn_runner.admission,
                    turn_runner.turn_time,
                    spec.retry,
                    release,
                    turn_runner.events,
                )


def _uses_actions(spec: BatchSpec, traits: Traits) -> bool:
    mode = spec.prefix.tool_mode
    return mode == "action" or (mode == "auto" and not traits.native_tools)


@dataclass(frozen=True, slots=True)
class _GatewayAccess:
    """Access to the model through the gateway."""

    gateway: Gateway
    model: str

    def endpoint(self, agent: str, masks: Mapping[str, str]) -> ModelEndpoint:
        return ModelEndpoint(self.gateway.url, self.gateway.admit(agent, masks), self.model)


@dataclass(frozen=True, slots=True)
class _DirectAccess:
    """Direct access to the server: one address for all agents, without masking."""

    server: ModelEndpoint

    def endpoint(self, agent: str, masks: Mapping[str, str]) -> ModelEndpoint:
        return self.server


def _direct(spec: BatchSpec, runtime: Runtime, model: str) -> ModelAccess:
    backend = spec.backend
    if spec.spending.counts_tokens:
        raise SpecError(
            f"gateway=False: requests that {runtime.name} sends to the server itself cannot be counted in a budget. "
            "Use gateway=True, or leave out max_total_tokens and max_usd."
        )
    settings = settings_of(backend) if isinstance(backend, str | BackendSettings) else None
    if settings is None or has_source(settings) or settings.url.partition("://")[0] in _WITHOUT_ADDRESS:
        raise SpecError(
            f"gateway=False: {runtime.name} sends requests to the server itself and needs a backend with an address, "
            f"such as vllm://host:port; got {backend!r}. Use gateway=True."
        )
    server = address_of_backend(settings)
    if settings.headers or server.flavor_or_default.key_header != "Authorization":
        raise SpecError(
            f"gateway=False: {runtime.name} sends only an API key, and {settings.label} needs other headers too. Use "
            "gateway=True."
        )
    url = str(server.root).removesuffix("/").removesuffix("/v1")
    return _DirectAccess(ModelEndpoint(url, server.key or "none", model))
