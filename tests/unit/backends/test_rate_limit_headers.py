"""Rate-limit headers of hosted services."""

from datetime import UTC, datetime

import pytest

from batch_agent.backends.http.rate_limit_headers import read_rate_limits
from batch_agent.core.protocols import ServiceLimit


def test_headers_of_openai() -> None:
    headers = {
        "x-ratelimit-limit-requests": "500",
        "x-ratelimit-remaining-requests": "499",
        "x-ratelimit-reset-requests": "120ms",
        "x-ratelimit-limit-tokens": "30000",
        "x-ratelimit-remaining-tokens": "29000",
        "x-ratelimit-reset-tokens": "6m0s",
    }
    assert read_rate_limits(headers) == {
        "requests": ServiceLimit(500, 499, 0.12),
        "tokens": ServiceLimit(30_000, 29_000, 360.0),
    }


def test_headers_of_azure() -> None:
    headers = {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1",
        "x-ratelimit-limit-tokens": "-1",
    }
    assert read_rate_limits(headers) == {"requests": ServiceLimit(60, 59, 1.0)}
    assert read_rate_limits({"x-ratelimit-remaining-requests": "59"}) == {}


def test_headers_of_anthropic() -> None:
    headers = {
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "49",
        "anthropic-ratelimit-requests-reset": "2026-03-01T12:00:02Z",
        "anthropic-ratelimit-tokens-limit": "38000",
        "anthropic-ratelimit-input-tokens-limit": "30000",
        "anthropic-ratelimit-input-tokens-remaining": "28000",
        "anthropic-ratelimit-output-tokens-limit": "8000",
    }
    assert read_rate_limits(headers, datetime(2026, 3, 1, 12, tzinfo=UTC)) == {
        "requests": ServiceLimit(50, 49, 2.0),
        "input_tokens": ServiceLimit(30_000, 28_000),
        "output_tokens": ServiceLimit(8_000),
    }


@pytest.mark.parametrize("value", ["", "many", "-5", "1.5", "٣", "9" * 40])
def test_a_limit_that_cannot_be_read_is_left_out(value: str) -> None:
    assert read_rate_limits({"x-ratelimit-limit-requests": value}) == {}


@pytest.mark.parametrize("value", ["", "soon", "1x", "2026-03-01T12:00:02", "s1"])
def test_a_reset_that_cannot_be_read_is_unknown(value: str) -> None:
    openai = {"x-ratelimit-limit-requests": "5", "x-ratelimit-reset-requests": value}
    anthropic = {"anthropic-ratelimit-requests-limit": "5", "anthropic-ratelimit-requests-reset": value}
    assert read_rate_limits(openai) == read_rate_limits(anthropic) == {"requests": ServiceLimit(5)}
