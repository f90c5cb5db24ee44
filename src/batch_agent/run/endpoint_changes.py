"""Endpoints that join and leave during a run: limits follow them, and views are told."""

from collections.abc import Callable

from ..backends.endpoints.endpoint_loads import addresses_of, endpoint_loads
from ..core.events import EndpointChanged
from ..core.options.backend_settings import NAMED
from ..core.protocols import ChangesEndpoints, EventSink
from ..core.spec import BatchSpec
from ..engine.admission import AdmissionController


def follow_endpoints(
    server: ChangesEndpoints, admission: AdmissionController, spec: BatchSpec, events: EventSink | None
) -> Callable[[], None]:
    """Follows the endpoints of a server from now on. Returns a function that ends this."""

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
