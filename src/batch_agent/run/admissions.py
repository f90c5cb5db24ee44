"""Admission to the servers of the runs of one flow. Runs with the same server share a controller."""

import re
import socket
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import AsyncExitStack
from dataclasses import field
from hashlib import blake2b
from typing import TYPE_CHECKING

from ..backends.endpoints.endpoint_loads import addresses_of, endpoint_loads
from ..core.events import EndpointChanged
from ..core.fast_dataclass import dataclass
from ..core.options.backend_settings import NAMED, BackendSettings, endpoints_in, settings_of
from ..core.protocols.backend import Backend, ChangesEndpoints, ReportsLoad, ReportsRateLimits
from ..core.protocols.event_sink import EventSink
from ..core.spec import BatchSpec
from ..engine.admission import AdmissionController
from ..engine.admission_setup import build_admission
from ..engine.monitor import monitor_load, sample_gauges
from ..engine.slots import shared_slots
from ..schedule.health import REJECTED_AGENTS, Health
from .resources import RunResources
from .setup import RunSetup

if TYPE_CHECKING:
    from ..cluster.cluster_session import ClusterSession

_LOOPBACK = re.compile(r"^local://|//(?:[^/@]*@)?(?:localhost|127\.|\[::1\])")
_OUTAGE_SECONDS_PER_RETRY = 5.0
"""Seconds that a run waits for an unavailable backend, per retry that the user allows."""


@dataclass(slots=True)
class Admissions:
    """Admission controller and health by server."""

    setups: Sequence[RunSetup]
    stack: AsyncExitStack
    events: EventSink | None = None
    cluster: "ClusterSession | None" = None
    _by_address: dict[Hashable, tuple[AdmissionController, Health]] = field(default_factory=dict)

    @property
    def controllers(self) -> list[AdmissionController]:
        return [admission for admission, _ in self._by_address.values()]

    def admission(
        self,
        setup: RunSetup,
        shared_chars: int,
        backend: Backend,
        server: Backend,
        chars_per_token: float,
        depth: int,
        agents: int | None,
    ) -> tuple[AdmissionController, Health]:
        """Opens the admission controller and health of a server, which all runs with that server share."""
        spec = setup.spec
        address = _address(spec)
        if (known := self._by_address.get(address)) is not None:
            return known[0].share(shared_chars, depth, has_later_turns=has_later_turns(spec), server=server), known[1]
        specs = [other.spec for other in self.setups if other is setup or _address(other.spec) == address]
        is_alone = len(self.setups) == 1 and self.cluster is None
        admission = build_admission(
            spec,
            backend,
            shared_chars,
            chars_per_token,
            self.events,
            has_later_turns=any(map(has_later_turns, specs)),
            agents=agents if is_alone else None,
            server=server,
        )
        max_rejected = None if spec.runtime else REJECTED_AGENTS  # programs try what a server accepts
        health = Health(spec.retry.max_retries * _OUTAGE_SECONDS_PER_RETRY, max_rejected)
        self._by_address[address] = admission, health
        return admission, health

    async def monitor(self, runs: Sequence[RunResources]) -> None:
        """Polls the load of each server during the runs, and shares limits with other workers."""
        first = {id(run.admission): run for run in runs}
        names: Counter[str] = Counter()
        for admission, _ in self._by_address.values():
            run = first[id(admission)]
            server, spec = run.server, run.setup.spec
            if isinstance(spec.backend, NAMED) and not run.is_complete:
                addresses = addresses_of(spec.backend, server)
                self.stack.enter_context(shared_slots(admission.slots, endpoint_loads(), addresses))
            if isinstance(server, ChangesEndpoints):
                self.stack.callback(follow_endpoints(server, admission, spec, self.events))
            if admission.residency is not None or isinstance(server, ReportsLoad):
                await self.stack.enter_async_context(monitor_load(server, admission))
            if server.traits.reports_rate_limits and isinstance(server, ReportsRateLimits):
                self.stack.callback(server.observe_rate_limits(admission.slots.on_service_limits))
            if self.events is not None:
                name = server.traits.name
                names[name] += 1  # stages may use several servers of a kind
                shown = name if names[name] == 1 else f"{name} {names[name]}"
                await self.stack.enter_async_context(sample_gauges(admission, shown, self.events))
        if self.cluster is not None:
            admissions = {_server_id(run.setup.spec): run.admission for run in runs}
            await self.stack.enter_async_context(self.cluster.share_limits(admissions))


def has_later_turns(spec: BatchSpec) -> bool:
    """Whether the agents of a run may have more than one turn."""
    return bool(spec.tools or spec.runtime) and spec.max_turns > 1


def _address(spec: BatchSpec) -> Hashable:
    """Runs with the same address use the same server."""
    return spec.backend if isinstance(spec.backend, str | tuple | BackendSettings) else id(spec.backend)


def _server_id(spec: BatchSpec) -> str:
    """Id of the server among workers. A loopback address includes the machine, because it differs for each."""
    address = str(spec.backend)
    if isinstance(spec.backend, NAMED):
        endpoints = [settings_of(each) for each in endpoints_in(spec.backend)]
        address = " ".join([*(each.url for each in endpoints), *filter(None, map(_own_account, endpoints))])
    if _LOOPBACK.search(address):
        address = f"{address} {socket.gethostname()}"
    return blake2b(address.encode(errors="replace"), digest_size=8).hexdigest()  # the address may contain a key


def _own_account(settings: BackendSettings) -> str:
    """What distinguishes a backend from others at the same URL, such as its organization. Holds no secrets."""
    return " ".join([*filter(None, (settings.base_url, settings.organization, settings.project)), *settings.variables])


def follow_endpoints(
    server: ChangesEndpoints, admission: AdmissionController, spec: BatchSpec, events: EventSink | None
) -> Callable[[], None]:
    """Adapts limits and informs views as endpoints join and leave. Returns a function that stops it."""

    def on_change(change: EndpointChanged) -> None:
        if events is not None:
            events.emit(change)
        share = admission.slots.share
        if share is not None and change.state != "draining" and isinstance(spec.backend, NAMED):
            share.move(endpoint_loads(), addresses_of(spec.backend, server))

    limits_end = admission.follow(server, scales=spec.limits.max_inflight is None)
    views_end = server.observe_endpoints(on_change)

    def end() -> None:
        limits_end()
        views_end()

    return end
