"""The real OpenCode on real models: eight agents at once."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.live.opencode import make_project, opencode_program

from batch_agent import BatchAgent, ErrorKind, OpenCodeRuntime, Results

WORDS = ("sea", "ship", "tide", "berth", "wind", "sail", "rope", "mast")
SHORT = 24
# Without the gateway, only OpenCode limits the answer; the model is the one in its endpoint files.
_SHORT_ANSWERS = {"{file:../endpoint/model}": {"limit": {"context": 4096, "output": SHORT}}}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


async def said(backend: str, project: Path, **options: Any) -> Results:
    """Each run has a prompt that no cache has seen."""
    runtime = OpenCodeRuntime(
        workdir=project,
        command=opencode_program(),
        prompt=f"You are clerk number {uuid4()}. Answer in one word.",
        config={"provider": {"batch": {"models": _SHORT_ANSWERS}}},
        **options,
    )
    return await BatchAgent.run(
        task="Say the word {it}.",
        inputs=WORDS,
        backend=backend,
        runtime=runtime,
        max_agents=8,
        max_turns=3,
        max_tokens=SHORT,
        temperature=0,
    )


@pytest.mark.nightly
async def test_on_vllm_the_prompt_is_computed_once_for_all_agents(vllm_url: str, project: Path) -> None:
    backend = vllm_url.replace("http://", "vllm://")
    through_us = await said(backend, project, tools=())
    direct = await said(backend, project, tools=(), gateway=False)
    for results in (through_us, direct):
        assert all(result.ok and result.text for result in results), results.failed
        assert all(result.turns == 1 and result.changes is not None for result in results)
    # Those that come in the same step of the engine, before anything is in its cache, compute it each.
    assert share(through_us) > 0.4
    assert share(through_us) > share(direct) + 0.1


async def test_on_vllm_tools_are_shown_to_the_model(vllm_url: str, project: Path) -> None:
    results = await said(vllm_url.replace("http://", "vllm://"), project, tools=("read",))
    assert all(result.ok or kind(result) is ErrorKind.MAX_TURNS for result in results)
    assert min(result.usage.input for result in results if result.ok) > 300


@pytest.mark.nightly
async def test_on_the_embedded_model_tools_are_called_in_action_mode(project: Path) -> None:
    results = await said("local://", project, tools=("read",))
    assert all(result.ok or kind(result) is ErrorKind.MAX_TURNS for result in results)
    assert results.usage.input > 0
    assert results.usage.cached > 0


def share(results: Results) -> float:
    return results.usage.cached / results.usage.input


def kind(result: Any) -> ErrorKind | None:
    return None if result.error is None else result.error.kind
