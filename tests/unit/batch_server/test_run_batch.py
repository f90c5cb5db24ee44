"""`run-batch`: a file of requests in, a file of responses out, on any backend."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from batch_agent.batch_server.run_batch import RunBatchResult, run_batch
from batch_agent.core.errors import SpecError
from batch_agent.core.run_failure import RunStopped
from batch_agent.core.spec import BatchSpec
from batch_agent.sim import SimConfig, SimServer

from .conftest import chat_line, content_of, jsonl, read_responses, spec_of


async def answer(tmp_path: Path, spec: BatchSpec, *lines: dict[str, Any], tools: Any = ()) -> RunBatchResult:
    (tmp_path / "in.jsonl").write_bytes(jsonl(*lines))
    return await run_batch(str(tmp_path / "in.jsonl"), tmp_path / "out.jsonl", spec, tools, lambda _: None)


async def test_each_line_gets_the_answer_of_its_own_request(tmp_path: Path, sim: SimServer) -> None:
    lines = [chat_line(f"line-{number}", f'[[sim: {{"text": "answer {number}"}}]]') for number in range(50)]
    assert await answer(tmp_path, spec_of(sim), *lines) == RunBatchResult(50, 0, 0)
    responses = read_responses(tmp_path / "out.jsonl")
    assert {name: content_of(each) for name, each in responses.items()} == {
        f"line-{number}": f"answer {number}" for number in range(50)
    }


async def test_fields_that_batch_agent_does_not_know_reach_the_server_and_come_back(
    tmp_path: Path, sim: SimServer
) -> None:
    lines = [chat_line("a", service_tier="flex"), chat_line("b", ignore_eos=True, max_tokens=9, stream=True)]
    await answer(tmp_path, spec_of(sim), *lines)
    responses = read_responses(tmp_path / "out.jsonl")
    assert responses["a"]["body"]["service_tier"] == "flex"
    assert responses["b"]["body"]["choices"][0]["finish_reason"] == "length"
    assert responses["b"]["body"]["usage"]["completion_tokens"] == 9


async def test_a_line_that_the_server_rejects_costs_only_itself(tmp_path: Path, sim: SimServer) -> None:
    lines = [
        chat_line("good"),
        chat_line("no model", model="other"),
        chat_line("invalid", max_tokens=-1),
        chat_line("broken", '[[sim: {"fault": "500"}]]'),
    ]
    assert await answer(tmp_path, spec_of(sim, max_retries=1, backoff=0.01), *lines) == RunBatchResult(1, 3, 0)
    responses = read_responses(tmp_path / "out.jsonl")
    assert {name: each["status_code"] for name, each in responses.items()} == {
        "good": 200,
        "no model": 404,
        "invalid": 400,
        "broken": 502,
    }
    assert "max_tokens must be at least 1" in responses["invalid"]["body"]["error"]["message"]
    assert "127.0.0.1" not in (tmp_path / "out.jsonl").read_text()


async def test_a_file_whose_lines_all_name_another_model_is_answered_to_its_end(tmp_path: Path, sim: SimServer) -> None:
    lines = [chat_line(f"line-{number}", model="other") for number in range(40)]
    assert await answer(tmp_path, spec_of(sim), *lines) == RunBatchResult(0, 40, 0)


async def test_a_failure_that_passes_is_retried(tmp_path: Path, sim: SimServer) -> None:
    lines = [chat_line(kind, f'[[sim: {{"fault": "{kind}", "times": 2}}]] again') for kind in ("500", "garbage")]
    assert await answer(tmp_path, spec_of(sim, backoff=0.01), *lines) == RunBatchResult(2, 0, 0)


async def test_the_same_command_sends_only_lines_without_a_good_response(tmp_path: Path) -> None:
    with SimServer(SimConfig(zero_latency=True)) as sim:
        lines = [chat_line(f"line-{number}") for number in range(10)]
        spec = spec_of(sim, max_retries=0)
        bad = chat_line("bad", '[[sim: {"fault": "400", "times": 1}]]')
        assert await answer(tmp_path, spec, *lines, bad) == RunBatchResult(10, 1, 0)
        assert await answer(tmp_path, spec, *lines, bad, chat_line("new")) == RunBatchResult(12, 0, 10)
        assert len(read_responses(tmp_path / "out.jsonl")) == 12
        assert sim.billed("standard")["requests"] == 12


async def test_a_line_that_a_killed_process_did_not_complete_is_sent_again(tmp_path: Path, sim: SimServer) -> None:
    lines = [chat_line("a"), chat_line("b")]
    await answer(tmp_path, spec_of(sim), *lines)
    out = tmp_path / "out.jsonl"
    out.write_bytes(out.read_bytes()[:-20])
    assert await answer(tmp_path, spec_of(sim), *lines) == RunBatchResult(2, 0, 1)
    assert sorted(read_responses(out)) == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"custom_id": "elsewhere", "response": {"status_code": 200}}\n', "'elsewhere', which is not in the input"),
        (b"hello\n", "not the output of a batch"),
    ],
)
async def test_a_file_that_is_not_the_output_of_this_input_is_kept(
    tmp_path: Path, sim: SimServer, content: bytes, words: str
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_bytes(content)
    with pytest.raises(SpecError, match=words):
        await answer(tmp_path, spec_of(sim), chat_line("a"))
    assert out.read_bytes() == content


async def test_an_input_with_an_invalid_line_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    with SimServer(SimConfig(zero_latency=True)) as sim:
        with pytest.raises(SpecError, match=r"line 2: The custom_id 'a' .* duplicate"):
            await answer(tmp_path, spec_of(sim), chat_line("a"), chat_line("a"))
        with pytest.raises(SpecError, match="Line 1 is for '/v1/audio'"):
            await answer(tmp_path, spec_of(sim), chat_line("a", url="/v1/audio"))
        assert sim.metrics()["sim:http_requests_total"] == 0
    assert not (tmp_path / "out.jsonl").exists() or not (tmp_path / "out.jsonl").read_bytes()


async def test_requests_are_read_from_standard_input(
    tmp_path: Path, sim: SimServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(jsonl(chat_line("a")))))
    result = await run_batch("-", tmp_path / "out.jsonl", spec_of(sim), (), lambda _: None)
    assert result == RunBatchResult(1, 0, 0)


async def test_text_completions_are_passed_through(tmp_path: Path, sim: SimServer) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "one", "max_tokens": 4}}
    await answer(tmp_path, spec_of(sim), line)
    assert read_responses(tmp_path / "out.jsonl")["a"]["body"]["object"] == "text_completion"


async def test_a_route_that_the_server_does_not_have_fails_the_lines_only(tmp_path: Path, sim: SimServer) -> None:
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/embeddings", "body": {"input": "one"}}
        for number in range(30)
    ]
    assert await answer(tmp_path, spec_of(sim), *lines) == RunBatchResult(0, 30, 0)
    assert read_responses(tmp_path / "out.jsonl")["0"]["status_code"] == 404


async def test_lines_are_spread_over_endpoints_and_survive_the_death_of_one(tmp_path: Path, sim: SimServer) -> None:
    with SimServer(SimConfig(zero_latency=True)) as other:
        lines = [chat_line(f"line-{number}") for number in range(40)]
        assert await answer(tmp_path, spec_of(sim, other), *lines) == RunBatchResult(40, 0, 0)
        assert other.billed("standard")["requests"] > 0
    with SimServer(SimConfig(zero_latency=True)) as dying:
        stopped = dying.port
    dying.port = stopped
    more = [chat_line(f"more-{number}") for number in range(10)]
    assert await answer(tmp_path, spec_of(sim, dying), *lines, *more) == RunBatchResult(50, 0, 40)


async def test_a_backend_that_breaks_down_stops_the_command_and_keeps_what_was_answered(tmp_path: Path) -> None:
    with SimServer(SimConfig(zero_latency=True)) as sim:
        spec = spec_of(sim, max_retries=0)
        await answer(tmp_path, spec, chat_line("a"))
        lines = [chat_line("a"), *(chat_line(f"more-{number}", '[[sim: {"fault": "401"}]]') for number in range(20))]
        with pytest.raises(RunStopped, match="rejects every request"):
            await answer(tmp_path, spec, *lines)
    assert "a" in read_responses(tmp_path / "out.jsonl")


async def test_a_backend_with_another_api_gets_the_same_conversation(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}]
    with SimServer(SimConfig(zero_latency=True)) as sim:
        lines = [
            chat_line("text", '[[sim: {"text": "four"}]]', max_tokens=50),
            chat_line("call", tools=tools, max_tokens=50),
            chat_line("other model", model="other"),
            chat_line("no messages", messages=[]),
        ]
        spec = spec_of(sim, scheme="anthropic", model="sim")
        assert await answer(tmp_path, spec, *lines) == RunBatchResult(2, 2, 0)
        responses = read_responses(tmp_path / "out.jsonl")
        assert content_of(responses["text"]) == "four"
        call = responses["call"]["body"]["choices"][0]
        assert (call["finish_reason"], call["message"]["tool_calls"][0]["function"]["name"]) == (
            "tool_calls",
            "look_up",
        )
        assert (responses["other model"]["status_code"], responses["no messages"]["status_code"]) == (404, 400)
        line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "one"}}
        other = tmp_path / "other.jsonl"
        other.write_bytes(jsonl(line))
        with pytest.raises(SpecError, match="It takes /v1/chat/completions"):
            await run_batch(str(other), tmp_path / "other_out.jsonl", spec, (), lambda _: None)


def test_the_output_has_the_fields_of_openais_and_vllms_files() -> None:
    from batch_agent.batch_api.lines import response_line

    line = json.loads(response_line("batch_req_1", "a", 200, "req_1", b"{}"))
    assert list(line) == ["id", "custom_id", "response", "error"]
    assert list(line["response"]) == ["status_code", "request_id", "body"]
