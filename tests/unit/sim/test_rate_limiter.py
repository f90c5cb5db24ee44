"""Limits per minute of the simulated server."""

import pytest

from batch_agent.sim import RateLimits
from batch_agent.sim.routes import RateLimiter


def test_a_request_beyond_the_limit_is_refused_until_the_bucket_has_filled() -> None:
    limiter = RateLimiter(RateLimits(rpm=2), 0.0)
    assert [limiter.retry_after(1, 0.0) for _ in range(3)] == [None, None, 30.0]
    assert limiter.retry_after(1, 30.0) is None
    assert limiter.refused == 1


def test_tokens_and_requests_are_limited_together() -> None:
    limiter = RateLimiter(RateLimits(rpm=100, tpm=600), 0.0)
    assert limiter.retry_after(600, 0.0) is None
    assert limiter.retry_after(10, 0.0) == 1.0


def test_a_short_burst_is_enforced_and_the_limit_of_the_minute_reported() -> None:
    limiter = RateLimiter(RateLimits(rpm=60, burst_s=2), 0.0)
    assert [limiter.retry_after(1, 0.0) for _ in range(3)] == [None, None, 1.0]
    assert limiter.headers() == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "58",
        "x-ratelimit-reset-requests": "2000ms",
    }


def test_headers_can_be_left_out() -> None:
    assert RateLimiter(RateLimits(rpm=60, headers=False), 0.0).headers() == {}


@pytest.mark.parametrize("invalid", [{"rpm": 0}, {"tpm": -1}, {"burst_s": 0}, {"burst_s": 61}])
def test_invalid_limits_are_rejected(invalid: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        RateLimits(**invalid)  # type: ignore[arg-type]
