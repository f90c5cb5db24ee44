"""Arguments of a pool, and the environment variables that stand for them."""

import os
from typing import Any

from ..backends.hostfile import Endpoint, parse_hostfile
from ..core.errors import SpecError
from ..core.requests import Sampling
from ..core.validation import LONGEST, is_number


def from_environment(name: str) -> int | None:
    value = os.environ.get(f"AURORA_SWARM_{name}", "").strip()
    if not value:
        return None
    if not value.isdecimal():
        raise SpecError(f"The environment variable AURORA_SWARM_{name} must be a whole number; it is {value!r}.")
    return int(value)


def check_environment() -> None:
    if os.environ.get("AURORA_SWARM_PROXY_URL"):
        raise SpecError(
            "The environment variable AURORA_SWARM_PROXY_URL is not used here: write the proxy's addresses as "
            "endpoints, such as http://proxy:9090/host1/8000, and unset it."
        )


def endpoint_of(given: Endpoint | str | tuple[str, int]) -> Endpoint:
    if isinstance(given, Endpoint):
        return given
    match given:
        case (str(host), int(port)):
            return Endpoint(host, port)
        case str():
            return parse_hostfile([given])[0]
        case _:
            raise SpecError(f"An endpoint is a text, such as 'gpu1:8000', or a host with its port; got {given!r}.")


def check_flags(**flags: Any) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise SpecError(f"{name} must be True or False; got {flag!r}.")


def check_sampling(given: Any) -> None:
    if given is not None and not isinstance(given, Sampling):
        raise SpecError(f"sampling must be a Sampling or None; got {given!r}.")


def check_seconds(name: str, seconds: Any, *, is_zero_fine: bool) -> None:
    if not is_number(seconds) or not (seconds > 0 or (is_zero_fine and seconds == 0)):
        raise SpecError(
            f"{name} must be a number of seconds {'of at least' if is_zero_fine else 'above'} 0; got {seconds!r}."
        )
    if seconds > LONGEST:
        raise SpecError(f"{name} must be at most {LONGEST:,.0f} seconds; got {seconds!r}.")
