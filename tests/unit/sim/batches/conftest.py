import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from openai import OpenAI
from openai.types import Batch, FileObject

from batch_agent.sim import BatchConfig, SimConfig, SimServer

SECONDS = 1000.0
CHAT: Final = "/v1/chat/completions"


@pytest.fixture
def sim() -> Iterator[SimServer]:
    """A service whose batches take 1000 seconds of its clock, which only the tests move by so much."""
    with SimServer(SimConfig(zero_latency=True, batches=BatchConfig(seconds=SECONDS))) as server:
        yield server


@pytest.fixture
def client(sim: SimServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{sim.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat_line(custom_id: str, text: str = "hello", **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": CHAT,
        "body": {"model": "sim", "messages": messages, "max_tokens": 8, **body},
    }


def upload(client: OpenAI, *lines: dict[str, Any]) -> FileObject:
    content = "".join(json.dumps(line) + "\n" for line in lines)
    return client.files.create(file=("requests.jsonl", content.encode()), purpose="batch")


def submit(client: OpenAI, *lines: dict[str, Any]) -> Batch:
    file = upload(client, *lines)
    return client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")


def read_lines(client: OpenAI, file_id: str | None) -> dict[str, Any]:
    """The lines of a file by custom id."""
    assert file_id is not None
    lines = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    return {line["custom_id"]: line for line in lines}
