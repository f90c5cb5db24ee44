"""Samples of one input share its whole prompt on a real vLLM, also where the KV cache holds only a few prompts."""

from typing import Any
from uuid import uuid4

import pytest

from batch_agent import BatchAgent, Results
from batch_agent.core.requests import NO_USAGE

SAMPLES = 3
NOUNS = ["ferry", "crane", "buoy", "tug", "barge", "pilot", "canoe", "yacht", "raft", "sloop"]


def letter(noun: str) -> str:
    """A text of about 450 tokens that begins unlike all others, also of earlier runs."""
    words = [f"The {noun} of berth {n} was seen at {n % 24} o'clock with {n * 7 % 100} crates." for n in range(20)]
    return f"{uuid4()} {' '.join(words)}"


async def run(url: str, inputs: list[str], **options: Any) -> Results[str]:
    task = "{text}\n\nWhich ship is this about? Answer in one word."
    results: Results[str] = await BatchAgent.run(
        task=task, inputs=[{"text": text} for text in inputs], backend=f"vllm://{url.removeprefix('http://')}",
        model="smollm2", max_tokens=4, temperature=0.8, seed=1, max_inflight=2, progress=False, **options,
    )  # fmt: skip
    return results


def cached_share(results: list[Any]) -> float:
    used = sum((each.usage for each in results), NO_USAGE)
    return used.cached / used.input


async def test_later_samples_find_at_least_90_percent_of_their_prompt_in_the_cache(small_vllm: str) -> None:
    results = await run(small_vllm, list(map(letter, NOUNS)), samples=SAMPLES)
    assert [str(each.error) for each in results if not each.ok] == []
    assert [(each.index, each.sample) for each in results] == [
        (n, s) for n in range(len(NOUNS)) for s in range(SAMPLES)
    ]
    later = [each for each in results if each.sample]
    print(f"{results[0].usage.input} tokens, cached of later samples: {cached_share(later):.3f}")
    assert min(cached_share([each]) for each in later) >= 0.9
    assert len({each.output for each in results}) > len(NOUNS)  # samples differ


@pytest.mark.nightly
async def test_repetitions_that_are_far_apart_lose_their_prompt(small_vllm: str) -> None:
    texts = list(map(letter, NOUNS))
    results = await run(small_vllm, texts * 2, reorder=False)
    share = cached_share([each for each in results if each.index >= len(texts)])
    print(f"cached of later repetitions: {share:.3f}")
    assert share < 0.5
