"""Agents with tools on a real engine that keep their token ids, and what has to be true of them."""

import json
import urllib.request
from pathlib import Path
from typing import Any

from tests.live.engines import LOOPBACK
from tests.live.forced_calls import NAME, ForcedCalls, call_of

from batch_agent import BatchAgent, Results
from batch_agent.core.requests import unpacked_ids
from batch_agent.rollouts.rollout import Rollout, rollout_of
from batch_agent.store.reader import CheckpointReader


async def check_agents(url: str, kind: str, folder: Path, names: list[str]) -> None:
    """The ids of prompts and answers are what the tokenizer of the server makes of them, and every turn continues the
    ids of the turn before."""
    backend = await ForcedCalls.open(url, kind, call_of("berth_of", "ship", NAME))
    results: Results[str] = await BatchAgent.run(
        task="Where is {it}?", inputs=names, tools=[berth_of], backend=backend, max_tokens=64, temperature=1.0,
        tokens=True, checkpoint_dir=folder, progress=False, timeout_per_turn=300,
    )  # fmt: skip
    await backend.aclose()
    for result, rollout in zip(results.raise_for_failures(), rollouts(folder), strict=True):
        first, second = rollout.turns
        assert [record.sent_as_ids for record in rollout.records] == [False, True]
        assert rollout.breaks == ()
        rendered = text_of(url, first.prompt)
        asked = {"model": "smollm2", "prompt": rendered, "add_special_tokens": False}
        assert _post(f"{url}/tokenize", asked)["tokens"] == unpacked_ids(first.prompt)
        arguments = json.loads(result.tool_calls[0].arguments)
        assert arguments["ship"] in text_of(url, first.sampled)
        assert berth_of(**arguments) in text_of(url, second.prompt[len(first.sequence) :])
        assert result.text in text_of(url, second.sampled)
        assert len(second.logprobs) == len(second.sampled)


def rollouts(folder: Path) -> list[Rollout]:
    with CheckpointReader(folder) as reader:
        found = [rollout_of(stored.facts) for stored in reader.inputs()]
    return [each for each in found if each is not None]


def text_of(url: str, ids: bytes) -> str:
    found = _post(f"{url}/detokenize", {"model": "smollm2", "tokens": unpacked_ids(ids), "skip_special_tokens": False})
    return str(found.get("prompt") or found["text"])


def berth_of(ship: str) -> str:
    """Finds the berth of a ship."""
    return f"{ship} lies at berth {len(ship)}."


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with LOOPBACK.open(request, timeout=60) as response:
        found: dict[str, Any] = json.load(response)
    return found
