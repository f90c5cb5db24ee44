import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from batch_agent.core.spec import BatchSpec
from batch_agent.sim import Script, SimConfig, SimServer

CHAT: Final = "/v1/chat/completions"


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=4)) as server:
        yield server


def spec_of(*sims: SimServer, scheme: str = "vllm", **options: Any) -> BatchSpec:
    urls = [f"{scheme}://127.0.0.1:{sim.port}" for sim in sims]
    backend = urls[0] if len(urls) == 1 else tuple(urls)
    return BatchSpec.of(task="Lines of a batch.", inputs=(), backend=backend, **options)


def chat_line(custom_id: str, text: str = "hello", *, url: str = CHAT, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"messages": messages, **body}}


def jsonl(*lines: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def read_responses(path: Path) -> dict[str, Any]:
    """The responses by custom id; each id may occur once."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = {line["custom_id"]: line["response"] for line in lines}
    assert len(found) == len(lines)
    return found


def content_of(response: Any) -> Any:
    return response["body"]["choices"][0]["message"]["content"]
