"""Registry of endpoint load, one per event loop: runs and pools in one loop find each other here."""

import asyncio
from weakref import WeakKeyDictionary

from ...core.options.backend_settings import NamedBackends
from ...schedule.endpoint_load import EndpointLoads
from ..connect import endpoints_of, server_of

_LOADS: WeakKeyDictionary[asyncio.AbstractEventLoop, EndpointLoads] = WeakKeyDictionary()


def endpoint_loads() -> EndpointLoads:
    """The registry of the running event loop. Runs in other threads have their own loop, and are not seen."""
    return _LOADS.setdefault(asyncio.get_running_loop(), EndpointLoads())


def addresses_of(url: NamedBackends) -> list[str]:
    """The address of each server that `url` names: the same for all ways to write it. Raises SpecError."""
    return [server_of(each) for each in endpoints_of(url)]
