"""Registry of endpoint load, one per event loop: runs and pools in one loop find each other here."""

import asyncio
from weakref import WeakKeyDictionary

from ...core.options.backend_settings import SOURCE_SCHEMES, BackendSettings, NamedBackends
from ...lazy_imports import lazy_modules
from ...schedule.endpoint_load import EndpointLoads
from .endpoint_identity import check_distinct, server_of

with lazy_modules(globals()):
    from . import endpoint_pool

_LOADS: WeakKeyDictionary[asyncio.AbstractEventLoop, EndpointLoads] = WeakKeyDictionary()


def endpoint_loads() -> EndpointLoads:
    """The registry of the running event loop. Runs in other threads have their own loop, and are not seen."""
    return _LOADS.setdefault(asyncio.get_running_loop(), EndpointLoads())


def addresses_of(url: NamedBackends, server: object = None) -> list[str]:
    """The address of each server that `url` names: the same for all ways to write it. `server`: the open backend, which
    knows the endpoints of a source. Raises SpecError."""
    given = [url] if isinstance(url, str | BackendSettings) else url
    for each in given:
        if (each if isinstance(each, str) else each.url).startswith(SOURCE_SCHEMES):
            return _addresses_in_service(server)
    return [server_of(each) for each in (given if len(given) == 1 else check_distinct(given))]


def _addresses_in_service(server: object) -> list[str]:
    assert isinstance(server, endpoint_pool.EndpointPool), "what a source lists is a pool"
    return [server_of(name.partition(" ")[0]) for name in server.names]
