"""Rate-limit headers of hosted services."""

from datetime import UTC, datetime

import pytest

from batch_agent.backends.http.rate_limit_headers import read_rate_limits
from batch_agent.core.protocols.backend import ServiceLimit


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
    """Resets in seconds; -1 where there is no limit, and for less than nothing left."""
    headers = {
        "apim-request-id": "bb943c68-99ed-46ab-bda9-a5efbdf5897a",
        "x-ms-region": "North Central US",
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1",
        "x-ratelimit-limit-tokens": "-1",
        "x-ratelimit-remaining-tokens": "-1",
        "x-ratelimit-reset-tokens": "0",
    }
    assert read_rate_limits(headers) == {"requests": ServiceLimit(60, 59, 1.0)}
    refused = {
        "x-ratelimit-limit-requests": "1",
        "x-ratelimit-remaining-requests": "-1",
        "x-ratelimit-reset-requests": "105",
        "retry-after": "39",
    }
    assert read_rate_limits(refused) == {"requests": ServiceLimit(1, 0, 105.0)}


def test_older_versions_of_azure_report_no_limit_only_what_is_left() -> None:
    headers = {
        "x-ms-region": "North Central US",
        "x-ratelimit-remaining-requests": "79",
        "x-ratelimit-remaining-tokens": "61353",
    }
    assert read_rate_limits(headers) == {}


def test_headers_of_scaleway_and_groq() -> None:
    """Other services with OpenAI's names."""
    scaleway = {
        "x-ratelimit-limit-requests": "600",
        "x-ratelimit-remaining-requests": "299",
        "x-ratelimit-reset-requests": "100ms",
        "x-ratelimit-limit-tokens": "2000000",
        "x-ratelimit-remaining-tokens": "999987",
        "x-ratelimit-reset-tokens": "0ms",
    }
    assert read_rate_limits(scaleway) == {
        "requests": ServiceLimit(600, 299, 0.1),
        "tokens": ServiceLimit(2_000_000, 999_987, 0.0),
    }
    groq = {"x-ratelimit-limit-requests": "14400", "x-ratelimit-reset-requests": "2m59.56s"}
    assert read_rate_limits(groq) == {"requests": ServiceLimit(14_400, None, 179.56)}


def test_headers_of_anthropic() -> None:
    headers = {
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "49",
        "anthropic-ratelimit-requests-reset": "2026-03-01T12:00:02Z",
        "anthropic-ratelimit-tokens-limit": "38000",
        "anthropic-ratelimit-tokens-remaining": "36000",
        "anthropic-ratelimit-tokens-reset": "2026-03-01T12:00:02Z",
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
