"""Rate-limit headers: limits per minute that a service reports with its responses."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from ...core.protocols.backend import PaceKind, ServiceLimit

_OPENAI: tuple[tuple[PaceKind, str], ...] = (("requests", "requests"), ("tokens", "tokens"))
_ANTHROPIC: tuple[tuple[PaceKind, str], ...] = (
    ("requests", "requests"),
    ("input_tokens", "input-tokens"),
    ("output_tokens", "output-tokens"),
)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def read_rate_limits(headers: Mapping[str, str], now: datetime | None = None) -> dict[PaceKind, ServiceLimit]:
    """Limits in the headers of OpenAI, which Azure and many gateways send too, or of Anthropic. Values that cannot be
    read are left out. `now`: for tests."""
    found: dict[PaceKind, ServiceLimit] = {}
    for kind, name in _OPENAI:
        limit = _count(headers.get(f"x-ratelimit-limit-{name}"))
        if limit is not None:
            remaining = _remaining(headers.get(f"x-ratelimit-remaining-{name}"))
            found[kind] = ServiceLimit(limit, remaining, _duration(headers.get(f"x-ratelimit-reset-{name}")))
    for kind, name in _ANTHROPIC:
        limit = _count(headers.get(f"anthropic-ratelimit-{name}-limit"))
        if limit is not None:
            remaining = _remaining(headers.get(f"anthropic-ratelimit-{name}-remaining"))
            reset = _until(headers.get(f"anthropic-ratelimit-{name}-reset"), now)
            found[kind] = ServiceLimit(limit, remaining, reset)
    return found


def _count(value: str | None) -> int | None:
    """Azure sends -1 where it has no limit."""
    value = (value or "").strip()
    return int(value) if value.isascii() and value.isdigit() and len(value) < 16 else None


def _remaining(value: str | None) -> int | None:
    """Azure sends a negative number for a limit that was exceeded."""
    value = (value or "").strip()
    return _count(value) if not value.startswith("-") or _count(value[1:]) is None else 0


def _duration(value: str | None) -> float | None:
    """Seconds of "6m0s", "120ms" or "1"."""
    value = (value or "").strip()
    parts = _DURATION.findall(value)
    if parts and "".join(number + unit for number, unit in parts) == value:
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    seconds = _count(value)
    return None if seconds is None else float(seconds)


def _until(value: str | None, now: datetime | None) -> float | None:
    """Seconds until a time in RFC 3339."""
    try:
        at = datetime.fromisoformat((value or "").strip())
    except ValueError:
        return None
    return max(0.0, (at - (now or datetime.now(UTC))).total_seconds()) if at.tzinfo is not None else None
