"""Anthropic's messages and message batches, through Anthropic's own client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from batch_agent.sim import BatchConfig, SimConfig, SimServer

from .conftest import SECONDS

if TYPE_CHECKING:
    import anthropic
    from anthropic import Anthropic
    from anthropic.types.messages.batch_create_params import Request

pytestmark = pytest.mark.slow
TOOL: Any = {"name": "look_up", "input_schema": {"type": "object", "properties": {"key": {"type": "string"}}}}


@pytest.fixture(scope="module", autouse=True)
def client_library() -> None:
    """Imported where its tests run, and not where they are only collected: it takes two seconds."""
    global anthropic
    import anthropic


@pytest.fixture
def claude(sim: SimServer) -> Iterator[Anthropic]:
    with anthropic.Anthropic(base_url=sim.url, api_key="none", max_retries=0) as client:
        yield client


def message(text: str = "hello") -> Any:
    return {"model": "sim", "max_tokens": 8, "messages": [{"role": "user", "content": text}]}


def requests(*texts: str) -> list[Request]:
    return [{"custom_id": f"line-{number}", "params": message(text)} for number, text in enumerate(texts)]


def results(claude: Anthropic, batch_id: str) -> dict[str, Any]:
    return {each.custom_id: each.result for each in claude.messages.batches.results(batch_id)}


def test_a_message_is_answered_as_the_same_chat_is(claude: Anthropic, sim: SimServer) -> None:
    answer = claude.messages.create(**message('[[sim: {"text": "four"}]]'))
    assert [block.text for block in answer.content if block.type == "text"] == ["four"]
    assert (answer.stop_reason, answer.usage.input_tokens, answer.usage.output_tokens) == ("end_turn", 14, 2)
    with claude.messages.stream(**message('[[sim: {"text": "four"}]]')) as stream:
        assert stream.get_final_text() == "four"
    assert sim.billed("standard")["requests"] == 2


def test_tools_are_called_and_their_results_read(claude: Anthropic) -> None:
    asked: Any = {**message(), "max_tokens": 200, "tools": [TOOL]}
    call = claude.messages.create(**asked)
    assert call.stop_reason == "tool_use"
    used = call.content[0]
    assert used.type == "tool_use"
    assert used.name == "look_up"
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": used.id, "content": "it is 4"}]}
    asked["messages"] += [{"role": "assistant", "content": call.content}, result]
    assert claude.messages.create(**asked).stop_reason == "end_turn"
    with claude.messages.stream(**{**asked, "messages": asked["messages"][:1]}) as stream:
        streamed = stream.get_final_message().content[0]
    assert streamed.type == "tool_use"
    assert (streamed.name, streamed.input) == (used.name, used.input)


def test_errors_have_anthropics_format(claude: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
        claude.messages.create(**{**message(), "model": "other"})
    with pytest.raises(anthropic.InternalServerError, match="api_error"):
        claude.messages.create(**message('[[sim: {"fault": "500"}]]'))


def test_a_batch_of_messages_ends_with_the_clock(claude: Anthropic, sim: SimServer) -> None:
    batch = claude.messages.batches.create(requests=requests('[[sim: {"text": "one"}]]', '[[sim: {"fault": "500"}]]'))
    assert (batch.processing_status, batch.request_counts.processing) == ("in_progress", 2)
    with pytest.raises(anthropic.AnthropicError):
        list(claude.messages.batches.results(batch.id))
    sim.advance(SECONDS)
    batch = claude.messages.batches.retrieve(batch.id)
    assert batch.processing_status == "ended"
    assert (batch.request_counts.succeeded, batch.request_counts.errored) == (1, 1)
    found = results(claude, batch.id)
    assert found["line-0"].message.content[0].text == "one"
    assert (found["line-1"].type, found["line-1"].error.error.type) == ("errored", "api_error")
    assert sim.billed("batch")["requests"] == 1


def test_a_cancelled_batch_has_canceled_lines(claude: Anthropic, sim: SimServer) -> None:
    batch = claude.messages.batches.create(requests=requests(*"abcdefghij"))
    sim.advance(SECONDS / 2)
    assert claude.messages.batches.cancel(batch.id).processing_status == "canceling"
    sim.advance(SECONDS / 10)
    batch = claude.messages.batches.retrieve(batch.id)
    assert (batch.processing_status, batch.request_counts.succeeded, batch.request_counts.canceled) == ("ended", 5, 5)
    assert claude.messages.batches.delete(batch.id).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.batches.retrieve(batch.id)


def test_lists_are_paged_in_both_directions(claude: Anthropic) -> None:
    ids = [claude.messages.batches.create(requests=requests("a")).id for _ in range(5)]
    assert [each.id for each in claude.messages.batches.list(limit=2)] == ids[::-1]
    assert [each.id for each in claude.messages.batches.list(before_id=ids[0], limit=2).data] == [ids[2], ids[1]]


@pytest.mark.parametrize(("fault", "kinds"), [("expired", ["expired", "expired"]), ("errored", ["errored"])])
def test_lines_can_expire_or_fail(claude: Anthropic, sim: SimServer, fault: str, kinds: list[str]) -> None:
    sim.arm(fault, share=0.25 * len(kinds))
    batch = claude.messages.batches.create(requests=requests(*"abcd"))
    sim.advance(SECONDS)
    found = [each.type for each in results(claude, batch.id).values() if each.type != "succeeded"]
    assert found == kinds


def test_a_batch_exists_although_its_answer_was_an_error(claude: Anthropic, sim: SimServer) -> None:
    for fault, error in (
        ("error_after_create", anthropic.InternalServerError),
        ("lost_answer", anthropic.APIConnectionError),
    ):
        sim.arm(fault)
        with pytest.raises(error):
            claude.messages.batches.create(requests=requests("a"))
    assert len(list(claude.messages.batches.list())) == 2


def test_a_batch_can_be_refused_and_its_results_lost(claude: Anthropic, sim: SimServer) -> None:
    for fault, error in (("failed", anthropic.BadRequestError), ("token_limit", anthropic.RateLimitError)):
        sim.arm(fault)
        with pytest.raises(error):
            claude.messages.batches.create(requests=requests("a"))
    sim.arm("lost_file")
    batch = claude.messages.batches.create(requests=requests("a"))
    sim.advance(SECONDS)
    with pytest.raises(anthropic.NotFoundError):
        results(claude, batch.id)
    assert sim.metrics()["sim:batch_submissions_total"] == 1


def test_a_custom_id_is_given_once(claude: Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="unique"):
        claude.messages.batches.create(requests=requests("a") * 2)


def test_the_default_clock_is_real_time() -> None:
    with (
        SimServer(SimConfig(zero_latency=True, batches=BatchConfig(seconds=0))) as sim,
        anthropic.Anthropic(base_url=sim.url, api_key="none") as claude,
    ):
        batch = claude.messages.batches.create(requests=requests("a"))
        assert claude.messages.batches.retrieve(batch.id).processing_status == "ended"
