"""`log_requests=` of a pool: a line for each request, as of a run."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.support.sim_hosts import BATCH, CHAT, COMPLETIONS, Host, pool_of, refuse, up

from batch_agent import SpecError, VLLMPool, read_request_log
from batch_agent.sim.http import ClientConnection

KEY = "sk-very-secret-0123456789"


def lines_of(path: Path) -> list[dict[str, Any]]:
    return list(read_request_log(path))


def sent_to(host: Host, path: str) -> list[str]:
    return sorted(json.dumps(body, sort_keys=True) for posted, body in host.posts if posted == path)


def bodies(lines: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(line["body"], sort_keys=True) for line in lines)


async def test_each_prompt_that_is_sent_alone_has_a_line_with_its_index(tmp_path: Path) -> None:
    log, host = tmp_path / "logs" / "requests.jsonl", Host()
    async with pool_of(host, log_requests=log) as pool:
        await pool.send_all(["zero", "", "two"])
        await pool.post(0, "posted")
    lines = lines_of(log)
    assert bodies(lines) == sent_to(host, CHAT)
    by_text = {line["body"]["messages"][0]["content"]: line for line in lines}
    assert {text: line["index"] for text, line in by_text.items()} == {"zero": 0, "two": 2, "posted": 0}
    for line in lines:
        assert (line["method"], line["status"], line["error"], line["model"]) == ("POST", 200, None, "sim")
        assert line["url"] == f"{host.url}{CHAT}"
        assert (line["agent"], line["turn"], line["attempt"], line["stage"]) == (None, None, 1, None)
        assert line["usage"]["output"] == line["response"]["usage"]["completion_tokens"] == 8


async def test_each_list_of_prompts_has_a_line_with_the_body_and_the_raw_response(tmp_path: Path) -> None:
    log, host = tmp_path / "requests.jsonl", Host()
    async with pool_of(host, log_requests=str(log)) as pool:
        responses = await pool.send_all_batched([f"prompt {number}" for number in range(6)])
    lines = lines_of(log)
    assert bodies(lines) == sent_to(host, COMPLETIONS)
    assert sum(len(line["body"]["prompt"]) for line in lines) == 6
    assert sum(line["usage"]["output"] for line in lines) == sum(response.usage.output for response in responses)
    for line in lines:
        assert (line["status"], line["error"], line["url"]) == (200, None, f"{host.url}{COMPLETIONS}")
        assert line["index"] == (None if len(line["body"]["prompt"]) > 1 else line["index"])
        assert line["response"].startswith("data: {")
        assert line["response"].endswith("data: [DONE]\n\n")


async def test_lists_of_conversations_and_sub_pools_are_logged_too(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    hosts = Host(without=("/tokenize",)), Host(without=("/tokenize",))
    async with pool_of(*hosts, log_requests=log) as pool:
        await pool.select([1]).send_all_batched(["a", "b"])
    lines = lines_of(log)
    assert {line["url"] for line in lines} == {f"{hosts[1].url}{BATCH}"}
    assert bodies(lines) == sent_to(hosts[1], BATCH)
    assert lines[0]["response"]["choices"]


async def test_a_list_that_is_rejected_has_a_line_with_the_status_and_the_answer(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"

    def odd(path: str, body: Any, connection: ClientConnection) -> bool:
        return path == COMPLETIONS and "bad" in str(body["prompt"]) and refuse(connection, 400, "bad prompt")

    hosts = Host(odd=odd), Host(odd=odd)
    async with pool_of(*hosts, log_requests=log) as pool:
        responses = await pool.send_all_batched(["good", "bad", "fine", "right"])
    assert [response.success for response in responses] == [True, False, True, True]
    lines = lines_of(log)
    assert bodies(lines) == sorted(sent_to(hosts[0], COMPLETIONS) + sent_to(hosts[1], COMPLETIONS))
    rejected = [line for line in lines if line["status"] == 400]
    assert rejected
    for line in rejected:
        assert line["error"].startswith("bad_request")
        assert line["response"]["error"]["message"] == "bad prompt"


async def test_a_list_whose_server_dies_has_a_line_without_a_status(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"

    def odd(path: str, body: Any, connection: ClientConnection) -> bool:
        if path == COMPLETIONS:
            host.kill()
        return path == COMPLETIONS

    host = Host(odd=odd)
    async with pool_of(host, log_requests=log, patience=0.1) as pool:
        responses = await pool.send_all_batched(["a", "b"])
    assert not any(response.success for response in responses)
    first = lines_of(log)[0]
    assert (first["status"], first["response"]) == (None, None)
    assert first["error"]


async def test_the_keys_of_a_pool_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "requests.jsonl"
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    async with pool_of(Host(), log_requests=log) as pool:
        await pool.send_all_batched([f"My key is {KEY}", "b"])
        await pool.send_all([f"My key is {KEY}"])
    assert KEY not in log.read_text()
    assert {line["headers"]["Authorization"] for line in lines_of(log)} == {"Bearer ***"}


async def test_a_path_that_cannot_be_written_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    async with up(Host()) as [host]:
        with pytest.raises(SpecError, match=r"^log_requests=.* cannot be written"):
            async with VLLMPool([host.address], log_requests=file / "requests.jsonl"):
                pass
        assert host.posts == []


async def test_debug_has_a_line_for_each_request_of_a_pool(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "batch_agent")
    host = Host()
    async with pool_of(host) as pool:
        await pool.send_all_batched(["a", "b"])
        await pool.send_all(["c"])
    lists = [each.getMessage() for each in caplog.records if each.getMessage().startswith("POST")]
    assert any(line.startswith(f"POST {host.url}{COMPLETIONS} model=sim 200 ") for line in lists)
    assert lists[-1].startswith(f"POST {host.url}{CHAT} model=sim 200 ")
    assert lists[-1].endswith(", prompt 0")
