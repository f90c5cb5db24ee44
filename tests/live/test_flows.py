"""Flows on real engines: what is merged fits the window as the server counts it, and nothing is asked twice."""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, Literal

import aiohttp
import pytest
from pydantic import BaseModel
from scripts.engines.layout import MODEL_NAME
from tests.live.conftest import SMALL_WINDOW

from batch_agent import BatchAgent, Cascade, Flow
from batch_agent.core.results import AgentResult

ANSWER = 32
PART = 300
"""Tokens: four of them fill more than half of the small window, and eight do not fit it."""


class Mood(BaseModel):
    mood: Literal["good", "bad"]


class Verdict(BaseModel):
    mostly: Literal["good", "bad"]


async def answered(url: str) -> int:
    """Requests that a vLLM has answered since its start."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return int(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:request_success_total")))


async def count(url: str, text: str) -> int:
    body = {"model": MODEL_NAME, "prompt": text}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/tokenize", json=body) as response:
        said: Mapping[str, Any] = await response.json()
        return int(said["count"])


def digits(seed: int, length: int) -> str:
    """Text of which whoever guesses by its bytes takes too much for a prompt."""
    return " ".join(str(Random(f"{seed} {place}").randrange(10)) for place in range(length))


def prompt(result: AgentResult) -> str:
    return str(result.transcript[0].text)  # type: ignore[union-attr]


async def test_results_of_vllm_are_reduced_and_a_second_run_sends_no_request(vllm_url: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "task": "Judge: {text}",
        "inputs": ["What a lovely day!", "It broke at once.", "I would buy it again.", "Never again."],
        "output_schema": Mood,
        "reduce": "Are these {n} results good or bad?",
        "reduce_schema": Verdict,
        "backend": vllm_url,
        "checkpoint_dir": tmp_path,
        "max_tokens": ANSWER,
        "temperature": 0.0,
        "progress": False,
    }
    before = await answered(vllm_url)
    results, verdict = await BatchAgent.run_with_reduce(**options)
    assert isinstance(verdict, Verdict)
    assert [result.error for result in results] == [None] * 4
    assert all(isinstance(result.output, Mood) for result in results)
    [merge] = results.stages["reduce"].results
    assert all(f'"index":{index}' in prompt(merge) for index in range(4))
    asked = await answered(vllm_url) - before
    assert asked == 4 + 1

    again, same_verdict = await BatchAgent.run_with_reduce(**options)
    assert ([result.output for result in again], same_verdict) == ([result.output for result in results], verdict)
    assert await answered(vllm_url) - before == asked


@pytest.mark.nightly
async def test_results_beyond_a_small_window_are_reduced_in_parts(small_vllm: str, tmp_path: Path) -> None:
    """Two of three inputs stay, with four parts each: too much for one prompt."""
    length = PART * 100 // await count(small_vllm, digits(0, 100))
    inputs = [{"name": name, "place": place} for place, name in enumerate(("sun", "rain", "noise"))]
    flow = (
        Flow(inputs, backend=small_vllm, checkpoint_dir=tmp_path, max_tokens=ANSWER, temperature=0.0)
        .map("mood", "Is this good or bad: {name}", output_schema=Mood)
        .filter(lambda item: item["name"] != "noise")
        .expand("part", lambda item: [digits(10 * item["place"] + number, length) for number in range(4)])
        .reduce("verdict", "Are these {n} results good or bad?", shown=lambda item: item["part"], output_schema=Verdict)
    )
    before = await answered(small_vllm)
    outcome = await flow.run(progress=False)
    [item] = outcome.items
    assert isinstance(item["verdict"], Verdict)
    assert item["n"] == 8

    moods, merges = outcome.stages["mood"].results, outcome.stages["verdict"].results
    assert [result.error for result in (*moods, *merges)] == [None] * (len(moods) + len(merges))
    assert len(merges) >= 3
    assert [result.turns for result in merges] == [1] * len(merges)
    assert all(result.usage.input + ANSWER <= SMALL_WINDOW for result in merges), [each.usage for each in merges]
    seen = [
        [digits(seed, length) in prompt(merge) for merge in merges].count(True) for seed in (*range(4), *range(10, 14))
    ]
    assert seen == [1] * 8, "each result is merged once"
    asked = await answered(small_vllm) - before
    assert asked == len(moods) + len(merges), "nothing was sent that did not fit"

    resumed = await flow.run(progress=False)
    assert resumed.items == outcome.items
    assert await answered(small_vllm) - before == asked


async def test_stages_on_dynamo_pass_on_any_answer(dynamo_url: str) -> None:
    inputs = [{"word": word, "kind": kind} for word, kind in (("quay", "stone"), ("buoy", "float"), ("pier", "stone"))]
    outcome = await (
        Flow(inputs, backend=dynamo_url.replace("http", "dynamo", 1), max_tokens=8)
        .map("meaning", "What is a {word}?")
        .map("shorter", "Shorten this: {meaning}")
        .reduce("report", "Sum up what is {kind}.", group_by="kind")
    ).run(progress=False)
    assert {name: stage.failed for name, stage in outcome.stages.items()} == {"meaning": 0, "shorter": 0, "report": 0}
    assert [(item["kind"], item["n"]) for item in outcome.items] == [("stone", 2), ("float", 1)]
    stone, floating = outcome.stages["report"].results
    assert [word in prompt(stone) for word in ("quay", "buoy", "pier")] == [True, False, True]
    assert [word in prompt(floating) for word in ("quay", "buoy", "pier")] == [False, True, False]


@pytest.mark.nightly
async def test_a_cascade_with_a_model_as_its_proxy_decides_each_item_once(vllm_url: str, tmp_path: Path) -> None:
    items = [{"text": text} for text in ("good", "bad", "fine", "poor", "great", "awful", "nice", "sad") for _ in "12"]
    options: dict[str, Any] = {"backend": vllm_url, "max_tokens": 32, "checkpoint_dir": tmp_path}

    def flow() -> Flow:
        cascade = Cascade(proxy=MODEL_NAME, target=0.5, delta=0.5, labels=10)
        return Flow(items, **options).filter("happy", "Is {text} a happy word?", cascade=cascade)

    before = await answered(vllm_url)
    done = await flow().run()
    report = done.stages["happy"].cascade
    assert report is not None
    assert [item.error for item in done.items] == [None] * len(done.items)
    assert report.rows == len(items) == report.asked + report.rejected + report.kept
    assert 0 < report.asked == len(done.stages["happy"].results)
    sent = await answered(vllm_url) - before
    assert sent >= len(items) + report.asked  # the proxy is asked about every item
    again = await flow().run()
    assert [item["text"] for item in again.items] == [item["text"] for item in done.items]
    assert await answered(vllm_url) == before + sent
