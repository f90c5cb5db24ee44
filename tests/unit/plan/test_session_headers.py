"""Session headers at the head of a system prompt, against those that batch-agent 0.2 took out."""

import re

import pytest

from batch_agent.core.messages import PREAMBLE

PROMPT = "You are kind.\nAnswer briefly."
FORMER = re.compile(r"^(x-anthropic-[^\n]*\n|x-amz-[^\n]*\n)", re.MULTILINE | re.IGNORECASE)
"""As 0.2 had it."""


@pytest.mark.parametrize(
    "header",
    [
        "x-anthropic-billing-header: cc_version=0.2.93; cch=abc123==",
        "x-anthropic-session: 42",
        "X-Anthropic-Session-Id: 42",
        "x-amz-date: 20260101T000000Z",
        "X-Amz-Security-Token: FwoGZXIvYXdzE",
        "x-amz-request-id : 1",
        "x-anthropic-session: 1\nx-amz-date: 2",
        "x-amz-date: 2\n\nx-anthropic-billing-header: 1",
    ],
)
def test_the_headers_that_0_2_took_off_the_head_of_a_prompt_are_taken_off(header: str) -> None:
    given = f"{header}\n{PROMPT}"
    assert FORMER.sub("", given).strip() == PREAMBLE.sub("", given) == PROMPT


@pytest.mark.parametrize("header", ["x-session-id: 42", "x-stainless-header: 1", "  x-amz-date: 1"])
def test_headers_that_0_2_left_are_taken_off_too(header: str) -> None:
    given = f"{header}\n{PROMPT}"
    assert FORMER.sub("", given) == given
    assert PREAMBLE.sub("", given) == PROMPT


def test_a_prompt_that_is_nothing_but_a_header_is_empty() -> None:
    assert PREAMBLE.sub("", "x-amz-date: 1") == ""


@pytest.mark.parametrize(
    "prompt",
    [
        "Explain these headers:\nx-amz-date: the date of the request\nx-anthropic-version: the API",
        "x-amz- headers are those of AWS.\nExplain them.",
        "x-rays: explain them.",
        "",
    ],
)
def test_a_prompt_about_headers_stays_as_it_is(prompt: str) -> None:
    assert PREAMBLE.sub("", prompt) == prompt
