"""The real Codex CLI and OpenAI's SDK on a real model, through the gateway's responses API: four agents at once."""

import sys
from pathlib import Path

import pytest
from tests.live.codex import codex_program
from tests.live.opencode import make_project

from batch_agent import BatchAgent, CodexRuntime, ProcessRuntime

WORDS = ("sea", "ship", "tide", "berth")
_PROGRAM = """
import os, sys
from openai import OpenAI

with OpenAI().responses.stream(
    model=os.environ["OPENAI_MODEL"], instructions="You are a clerk. Answer in one word.", input=sys.stdin.read(),
    max_output_tokens=24, temperature=0, store=False,
) as stream:
    kinds = [event.type for event in stream]
    response = stream.get_final_response() if kinds[-1] == "response.completed" else None
assert kinds[:2] == ["response.created", "response.in_progress"], kinds
assert kinds[-1] in ("response.completed", "response.incomplete"), kinds
assert response is None or response.usage.output_tokens > 0
print(kinds.count("response.output_text.delta"))
"""


@pytest.mark.nightly
async def test_on_vllm_four_codex_agents_answer_and_share_their_prompt(vllm_url: str, tmp_path: Path) -> None:
    runtime = CodexRuntime(
        workdir=make_project(tmp_path / "project"),
        command=codex_program(),
        prompt="You are a clerk. Answer in one word.",
    )
    results = await BatchAgent.run(
        task="Say the word {it}.",
        inputs=WORDS,
        backend=vllm_url.replace("http://", "vllm://"),
        runtime=runtime,
        max_agents=4,
        temperature=0,
    )
    assert all(result.ok and result.text for result in results), results.failed
    assert all(result.turns >= 1 and result.changes is not None for result in results)
    assert min(result.usage.input for result in results) > 300  # instructions, tools, AGENTS.md and the environment
    assert results.usage.cached > 0


async def test_on_vllm_openais_sdk_streams_responses(vllm_url: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(_PROGRAM)
    results = await BatchAgent.run(
        task="Say the word {it}.",
        inputs=WORDS,
        backend=vllm_url.replace("http://", "vllm://"),
        runtime=ProcessRuntime([sys.executable, str(file)]),
        max_agents=4,
    )
    assert [result.output for result in results.raise_for_failures()] == ["1"] * 4
    assert all(0 < result.usage.output <= 24 for result in results)
