"""Inputs and conversations that are longer than the window of a real engine, and a plan of a run on it."""

from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest
from benchmarks.gpu.scenario import Scene
from benchmarks.gpu.scripted_backend import Played
from benchmarks.gpu.token_texts import Words, nonce
from benchmarks.gpu.turn_recorder import Watch
from pydantic import BaseModel
from scripts.engines.layout import MODEL_NAME
from tests.live.conftest import SMALL_WINDOW

from batch_agent import BatchAgent, ErrorKind, Results
from batch_agent.backends.connect import connect

TURNS = 6
WORDS = Words()


class Answer(BaseModel):
    number: int


async def play(url: str, **options: Any) -> Results:
    """Two agents whose tools give 450 tokens in each of their turns: too much for the window, in all."""
    start = nonce()
    scene = Scene(
        tasks=tuple(WORDS.own(number, start, "long", 150) for number in range(2)),
        turns=TURNS,
        output=8,
        system=f"{start} {WORDS.text('long', 40)}",
        said="Let me look that up.",
        result=WORDS.text("long result", 450),
        seconds=lambda key: 0.0,
    )
    backend, watch = await connect(url, None, uses_tools=False, notify=lambda text: None), Watch()
    try:
        results: Results = await BatchAgent.run(
            task="{it}",
            inputs=list(scene.tasks),
            system_prompt=scene.system,
            tools=[scene.tool(watch)],
            backend=Played(backend, scene, watch),
            max_tokens=64,
            **options,
        )
        return results
    finally:
        await backend.aclose()


@pytest.mark.nightly
async def test_a_conversation_that_outgrows_the_window_fails_without_compaction(small_vllm: str) -> None:
    results = await play(small_vllm, compact_at=None)
    assert [result.error.kind for result in results if result.error] == [ErrorKind.CONTEXT_OVERFLOW] * 2


@pytest.mark.parametrize("way", ["elide", pytest.param("summarize", marks=pytest.mark.nightly)])
async def test_a_conversation_with_compaction_reaches_its_answer(small_vllm: str, way: str) -> None:
    results = await play(small_vllm, compact_with=way)
    assert [(result.error, result.turns) for result in results] == [(None, TURNS)] * 2
    assert all(result.compactions >= 1 for result in results)


async def count(url: str, text: str) -> int:
    body = {"model": MODEL_NAME, "prompt": text}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/tokenize", json=body) as response:
        said: Mapping[str, Any] = await response.json()
        return int(said["count"])


@pytest.mark.parametrize(
    "piece", [*(pytest.param(each, marks=pytest.mark.nightly) for each in ("word ", "7 3 ")), "日本"]
)
async def test_accepted_inputs_fit_the_window_in_any_language(small_vllm: str, piece: str) -> None:
    """Near the window the server counts: it takes all that we send, and what we refuse is really too long."""
    per_piece = await count(small_vllm, piece * 100) / 100
    sizes = [SMALL_WINDOW - 400, SMALL_WINDOW + 200]
    inputs = [piece * int(size / per_piece) for size in sizes]
    fits, too_long = await BatchAgent.run(
        task="{text}", inputs=inputs, backend=small_vllm, max_tokens=4, max_retries=0, progress=False
    )
    assert fits.usage.input > 0, fits.error  # the server took it, even if so small a model has nothing to say to it
    assert fits.error is None or fits.error.kind is ErrorKind.INVALID_OUTPUT
    assert too_long.error is not None
    assert too_long.error.kind is ErrorKind.CONTEXT_OVERFLOW
    assert too_long.usage.input == 0, "it was never sent"


async def test_an_input_beyond_the_window_is_answered_in_chunks(small_vllm: str) -> None:
    text = "\n\n".join(f"Paragraph {number}. {WORDS.text(f'paragraph {number}', 90)}" for number in range(36))
    assert await count(small_vllm, text) > 1.5 * SMALL_WINDOW
    [result] = await BatchAgent.run(
        task="How many people are named here?\n\n{text}",
        inputs=[{"text": text}],
        output_schema=Answer,
        backend=small_vllm,
        oversized="chunk",
        max_tokens=32,
        progress=False,
    )
    assert result.ok, result.error
    assert isinstance(result.output, Answer)
    assert result.turns >= 3, "at least two parts, and the merge"
    assert result.usage.input > SMALL_WINDOW


async def test_a_plan_predicts_the_tokens_of_a_run(vllm_url: str) -> None:
    start = nonce()
    options: dict[str, Any] = {
        "task": f"{start} Answer in a word. {{text}}",
        "inputs": [WORDS.own(number, start, "plan", 40 + 10 * (number % 3)) for number in range(12)],
        "backend": vllm_url,
        "max_tokens": 4,
    }
    forecast = await BatchAgent.plan(canary=4, **options)
    results = await BatchAgent.run(progress=False, **options)
    compared = forecast.compare(results, 1.0)
    assert compared.row("prompt tokens").ratio == pytest.approx(1, abs=0.1)
    assert forecast.seconds is not None
