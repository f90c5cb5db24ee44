"""Token ids of agents on a real vLLM. benchmarks/rollouts.py compares those of many with the engine's own log."""

from pathlib import Path

import pytest
from tests.live.codex import codex_program
from tests.live.forced_calls import ForcedCalls, call_of
from tests.live.opencode import make_project, opencode_program
from tests.live.token_checks import check_agents, rollouts

from batch_agent import BatchAgent, CodexRuntime, OpenCodeRuntime


async def test_agents_that_call_tools_continue_the_ids_that_were_sampled(vllm_url: str, tmp_path: Path) -> None:
    await check_agents(vllm_url, "vllm", tmp_path, ["Ariel", "Dido", "Calypso"])


@pytest.mark.nightly
async def test_opencode_does_not_notice_that_its_tokens_are_kept(vllm_url: str, tmp_path: Path) -> None:
    backend = await ForcedCalls.open(vllm_url, "vllm", call_of("read", "filePath", "read.me"))
    project, program = make_project(tmp_path / "project"), opencode_program()
    results = await BatchAgent.run(
        task="Say which ship {it} is.",
        inputs=["one", "two"],
        backend=backend,
        runtime=OpenCodeRuntime(workdir=project, command=program, prompt="You are a clerk.", tools=("read",)),
        max_turns=4,
        max_tokens=64,
        tokens=True,
        checkpoint_dir=tmp_path / "run",
        progress=False,
    )
    await backend.aclose()
    for result, rollout in zip(results.raise_for_failures(), rollouts(tmp_path / "run"), strict=True):
        assert [call.name for call in result.tool_calls] == ["read"]
        assert len(rollout.turns) == 2
        assert sum(len(record.tokens.sampled) // 4 for record in rollout.records) == result.usage.output


@pytest.mark.nightly
async def test_codex_does_not_notice_that_its_tokens_are_kept(vllm_url: str, tmp_path: Path) -> None:
    backend = await ForcedCalls.open(vllm_url, "vllm", call_of("exec_command", "cmd", "cat read.me"))
    project, program = make_project(tmp_path / "project"), codex_program()
    results = await BatchAgent.run(
        task="Say which ship {it} is.",
        inputs=["one", "two"],
        backend=backend,
        runtime=CodexRuntime(workdir=project, command=program, prompt="You are a clerk. Answer in one word."),
        max_turns=4,
        max_tokens=64,
        tokens=True,
        checkpoint_dir=tmp_path / "run",
        progress=False,
        timeout_per_turn=600,
    )
    await backend.aclose()
    for result, rollout in zip(results.raise_for_failures(), rollouts(tmp_path / "run"), strict=True):
        assert [call.name for call in result.tool_calls] == ["exec_command"]
        assert len(rollout.turns) == 2
        assert sum(len(record.tokens.sampled) // 4 for record in rollout.records) == result.usage.output
        assert not rollout.breaks
        assert rollout.records[-1].sent_as_ids
