"""A run whose agents are programs: what they need is opened, and closed when the run is over."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from ..backends.address import address_of, parse
from ..core.agent_config import AgentConfig
from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.program_runtime import ModelAccess, ModelEndpoint, Runtime, RuntimeContext
from ..core.protocols import Traits
from ..core.spec import BatchSpec
from ..engine.turn_runner import BackendTurnRunner
from .action_adapter import ActionAdapter
from .completion_service import GatewayService
from .gateway import Gateway, open_gateway
from .program_sessions import ProgramSessions
from .program_turn_runner import ProgramTurnRunner
from .scratch_dir import remove_abandoned, scratch_folder

_DIRECT = ("local", "bedrock", "hostfile")
"""Backends that have no address for others."""


@asynccontextmanager
async def open_program_host(
    spec: BatchSpec, rules: AgentConfig, traits: Traits, asking: BackendTurnRunner, notify: Callable[[str], None]
) -> AsyncIterator[ProgramTurnRunner]:
    """The programs of the run, to hand turns to; their requests go through `asking`. Raises SpecError."""
    runtime, model = spec.runtime, rules.model
    assert runtime is not None
    visits = ProgramSessions(asking.admission, asking.events)
    acting = ActionAdapter(rules, traits, acts=_acts(spec, traits))
    serving = GatewayService(asking, acting, visits, spec.max_turns)
    await asyncio.to_thread(remove_abandoned)
    with scratch_folder() as folder:
        async with open_gateway(serving) as gateway:
            door = _GatewayAccess(gateway, model) if runtime.gateway else _direct(spec, runtime, model)
            house = RuntimeContext(
                folder,
                door,
                spec.context.context_tokens or traits.context_tokens,
                notify,
            )

            def forget(agent: str) -> None:
                gateway.dismiss(agent)
                serving.leave(agent)

            async with runtime.open(house) as crew:
                yield ProgramTurnRunner(
                    crew, visits, asking.admission, asking.turn_time, spec.retry, forget, asking.events
                )


def _acts(spec: BatchSpec, traits: Traits) -> bool:
    wanted = spec.prefix.tool_mode
    return wanted == "action" or (wanted == "auto" and not traits.native_tools)


@dataclass(frozen=True, slots=True)
class _GatewayAccess:
    """Through the gateway."""

    gateway: Gateway
    model: str

    def address(self, agent: str, hides: Mapping[str, str]) -> ModelEndpoint:
        return ModelEndpoint(self.gateway.url, self.gateway.admit(agent, hides), self.model)


@dataclass(frozen=True, slots=True)
class _DirectAccess:
    """Straight to the server: all agents have the same address, and nothing is hidden."""

    server: ModelEndpoint

    def address(self, agent: str, hides: Mapping[str, str]) -> ModelEndpoint:
        return self.server


def _direct(spec: BatchSpec, runtime: Runtime, model: str) -> ModelAccess:
    backend = spec.backend
    if spec.spend.counts_tokens:
        raise SpecError(
            f"gateway=False: what {runtime.name} asks the server itself, no budget can count. Leave gateway=True, or "
            "max_total_tokens and max_usd out."
        )
    if not isinstance(backend, str) or backend.partition("://")[0] in _DIRECT:
        raise SpecError(
            f"gateway=False: {runtime.name} would talk to the server itself, which needs a backend with an address of "
            f"its own, such as vllm://host:port; got {backend!r}. Leave gateway=True."
        )
    server = address_of(parse(backend))
    url = str(server.root).removesuffix("/").removesuffix("/v1")
    return _DirectAccess(ModelEndpoint(url, server.key or "none", model))
