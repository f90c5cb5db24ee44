"""Datasets on Hugging Face: its real client, and a stand-in for the Hub, with faults."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.support.hub_server import DATASET, HubFault, HubServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROWS = 100
PROGRAM = """
import asyncio, sys
from batch_agent import BatchAgent, SpecError
from batch_agent.objects import remote_results
from batch_agent.testing import ScriptedBackend, say

remote_results._PART_BYTES = 2000


async def main():
    backend = ScriptedBackend(lambda request: say("ok"))
    try:
        await BatchAgent.run(task="{id}", inputs=sys.argv[1], out=sys.argv[2], backend=backend, progress=False)
    except SpecError as error:
        sys.exit(f"{error} ({len(backend.requests)} requests)")


asyncio.run(main())
"""


def run(hub: HubServer, tmp_path: Path, inputs: str, out: str) -> "subprocess.CompletedProcess[str]":
    """In a process of its own: the client reads the address of the Hub when it is imported."""
    own = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_token", "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-c", PROGRAM, inputs, out]
    return subprocess.run(command, env=os.environ | own, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize("fault", [None, "busy", "lost"])
def test_a_run_reads_and_writes_a_dataset_and_faults_lose_and_double_nothing(tmp_path: Path, fault: HubFault) -> None:
    url = f"hf://datasets/{DATASET}"
    with HubServer().open() as hub:
        hub.files["in/rows.jsonl"] = b"".join(b'{"id": %d}\n' % number for number in range(ROWS))
        hub.rule = lambda number: fault if number % 5 == 0 else None
        for _ in range(2):  # the second replaces the parts of the first
            ended = run(hub, tmp_path, f"{url}/in/*.jsonl", f"{url}/out/")
            assert ended.returncode == 0, ended.stderr
        assert (hub.faults > 0) == (fault is not None)
        manifest = json.loads(hub.files["out/_manifest.json"])
        parts = {Path(path).name: data for path, data in hub.files.items() if path.startswith("out/part-")}
    assert (manifest["complete"], manifest["rows"]) == (True, ROWS)
    assert {part["name"] for part in manifest["parts"]} == set(parts)
    rows = [json.loads(line) for data in parts.values() for line in data.splitlines()]
    assert Counter(row["input"]["id"] for row in rows) == Counter(range(ROWS))


def test_a_missing_dataset_is_named_before_anything_is_sent(tmp_path: Path) -> None:
    with HubServer().open() as hub:
        hub.files["in/rows.jsonl"] = b'{"id": 1}\n'
        ended = run(hub, tmp_path, f"hf://datasets/{DATASET}/in/*.jsonl", "hf://datasets/no/such/out/")
    assert ended.returncode == 1
    assert "Create the dataset 'no/such' first, or check its name. (0 requests)" in ended.stderr
