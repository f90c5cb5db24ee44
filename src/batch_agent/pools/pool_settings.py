"""Validation of a pool's arguments, and the environment variables for their defaults."""

import os
from typing import Any

from ..backends.address import address_of_backend
from ..backends.endpoints.endpoint_identity import backend_url
from ..backends.endpoints.hostfile import Endpoint, parse_hostfile
from ..core.errors import SpecError
from ..core.options.backend_settings import BackendSettings, NamedBackend
from ..core.options.extra_fields import check_extra
from ..core.requests import Sampling
from ..core.validation import MAX_SECONDS, is_number


def from_environment(name: str) -> int | None:
    value = os.environ.get(f"AURORA_SWARM_{name}", "").strip()
    if not value:
        return None
    if not value.isdecimal():
        raise SpecError(f"The environment variable AURORA_SWARM_{name} must be an integer; got {value!r}.")
    return int(value)


def check_environment() -> None:
    if os.environ.get("AURORA_SWARM_PROXY_URL"):
        raise SpecError(
            "The environment variable AURORA_SWARM_PROXY_URL is not supported: use the proxy's addresses as endpoints, "
            "such as http://proxy:9090/host1/8000, and unset it."
        )


GivenEndpoint = Endpoint | str | tuple[str, int] | BackendSettings


def endpoint_of(given: GivenEndpoint) -> Endpoint:
    if isinstance(given, Endpoint):
        return given
    if isinstance(given, BackendSettings):
        return parse_hostfile([str(address_of_backend(given, needs_key=False).root.with_query(None))])[0]
    match given:
        case (str(host), int(port)):
            return Endpoint(host, port)
        case str():
            return parse_hostfile([given])[0]
        case _:
            raise SpecError(
                f"An endpoint must be a string, such as 'gpu1:8000', (host, port) or Backend(...); got {given!r}."
            )


def backend_of(given: GivenEndpoint, endpoint: Endpoint) -> NamedBackend:
    """The backend to connect to: the given one, or the URL of the endpoint."""
    return given if isinstance(given, BackendSettings) else backend_url(endpoint)


def check_flags(**flags: Any) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise SpecError(f"{name} must be True or False; got {flag!r}.")


def check_sampling(given: Any) -> None:
    if given is not None and not isinstance(given, Sampling):
        raise SpecError(f"sampling must be a Sampling or None; got {given!r}.")
    if given is not None:
        check_extra(given.extra)


def check_seconds(name: str, seconds: Any, *, may_be_zero: bool) -> None:
    if not is_number(seconds) or not (seconds > 0 or (may_be_zero and seconds == 0)):
        raise SpecError(f"{name} must be a number of seconds {'>=' if may_be_zero else '>'} 0; got {seconds!r}.")
    if seconds > MAX_SECONDS:
        raise SpecError(f"{name} must be at most {MAX_SECONDS:,.0f} seconds; got {seconds!r}.")
