"""Ray Data LLM: its processor for HTTP, on a cluster of this machine."""

# mypy: ignore-errors
# What it imports is in an environment of its own.

import os
from typing import Any

# Within a batch it asks one after the other: requests at once are batches at once, which only this sets.
os.environ["RAY_DATA_DEFAULT_ASYNC_BATCH_UDF_MAX_CONCURRENCY"] = "64"
os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_raylet_start_wait_time_s": "180"}

import ray
from ray.data.llm import HttpRequestProcessorConfig, build_processor

from benchmarks.peers.work import MODEL, Tally, Work

STARTS_PROCESSES = True
_BATCH = 16


async def run(work: Work, tally: Tally) -> None:
    for row in _rows(work):  # it blocks: Ray ends with the thread that has started it
        choices = row["http_response"].get("choices")
        tally.tell(row["agent"], choices[0]["message"]["content"] if choices else None)


def _rows(work: Work) -> list[dict[str, Any]]:
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False)
    config = HttpRequestProcessorConfig(
        url=f"{work.url}/v1/chat/completions", batch_size=_BATCH, max_retries=work.retries, concurrency=1
    )
    processor = build_processor(
        config,
        preprocess=lambda row: {**row, "payload": {"model": MODEL, "messages": row["messages"]}},
        postprocess=lambda row: {"agent": row["agent"], "http_response": row["http_response"]},
    )
    rows = [{"agent": agent, "messages": work.messages(agent)} for agent in range(work.agents)]
    found: list[dict[str, Any]] = processor(ray.data.from_items(rows, override_num_blocks=1)).take_all()
    return found
