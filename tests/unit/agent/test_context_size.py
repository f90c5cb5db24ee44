"""How many tokens the next request has."""

import pytest

from batch_agent.agent.context_size import ContextSize, chars_of
from batch_agent.core.messages import Assistant, Thought, ToolCall, ToolResult, ToolResults, User
from batch_agent.core.requests import Reply, Usage

CALL = ToolCall("id", "look", "{}")


def test_the_context_size_is_estimated_until_the_first_reported_usage() -> None:
    size = ContextSize(4_000)
    assert size.tokens == 1_000
    size.on_reply(Reply("x" * 400, "stop", Usage()))
    assert size.tokens == 1_100


def test_counted_tokens_are_exact_and_later_text_is_estimated_by_the_measured_ratio() -> None:
    size = ContextSize(3_000)
    size.on_reply(Reply("x" * 100, "stop", Usage(1_000, 900, 77)))
    assert size.tokens == 1_077
    size.add(300)
    assert size.tokens == 1_177
    size.add(-600)
    assert size.tokens == 977


@pytest.mark.parametrize(("counted", "per_token"), [(1, 16.0), (10**9, 0.25), (750, 4.0)])
def test_implausible_token_counts_are_bounded(counted: int, per_token: float) -> None:
    size = ContextSize(3_000)
    size.on_reply(Reply("", "stop", Usage(counted, 0, 0)))
    assert size.chars_per_token == per_token


def test_the_context_size_is_never_negative() -> None:
    size = ContextSize(4_000)
    size.on_reply(Reply("", "stop", Usage(1, 0, 0)))
    size.add(-4_000)
    assert size.tokens == 0


def test_the_context_size_includes_everything_that_is_sent() -> None:
    assert chars_of(User("12345")) == 5
    assert chars_of(Assistant("123", (CALL,), (Thought("45", "signature"), Thought(redacted="678")))) == 3 + 6 + 2 + 3
    assert chars_of(ToolResults((ToolResult(CALL, "1234"), ToolResult(CALL, "")))) == 4
