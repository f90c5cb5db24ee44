"""The entrypoint of the RayJob that `batch-agent template kuberay` prints, on a real Ray cluster of several nodes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live.ray_cluster import Cluster, ray_cluster
from tests.support.cluster_templates import job_of, parsed

from batch_agent.sim import Script, SimConfig, SimServer

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray leaves the files of its logs open
AGENTS = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ray_cluster(nodes=3) as started:
        yield started


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """What is mounted at /data."""
    with SimServer(SimConfig(step_base_ms=50), Script(answer_tokens=10)) as sim:
        (tmp_path / "in.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(AGENTS)))
        where = f'inputs = "in.jsonl"\nout = "results.jsonl"\nbackend = "{sim.url}"\n'
        (tmp_path / "batch.toml").write_text(f'task = "Say {{n}}."\nmax_inflight = 4\n{where}')
        yield tmp_path


def start(volume: Path) -> subprocess.Popen[bytes]:
    entrypoint = parsed(job_of("kuberay", workers=2))["spec"]["entrypoint"].replace("/data", str(volume))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.Popen(["bash", "-c", entrypoint], env=os.environ | {"PATH": path}, start_new_session=True)


def finished(volume: Path) -> int:
    out = volume / "results.jsonl"
    return out.read_bytes().count(b"\n") if out.exists() else 0


def wait_for(volume: Path, results: int) -> None:
    for _ in range(9_000):
        if finished(volume) >= results:
            return
        time.sleep(0.01)
    raise AssertionError(f"{finished(volume)} of {results} results")


@pytest.mark.nightly
def test_a_lost_node_and_a_lost_head_lose_no_agent(cluster: Cluster, volume: Path) -> None:
    first = start(volume)
    try:
        wait_for(volume, 4)
        cluster.lose_a_node()
        wait_for(volume, 12)
    finally:
        os.killpg(first.pid, signal.SIGKILL)  # as with a head node that is preempted
        first.wait()
    assert finished(volume) < AGENTS
    cluster.add_a_node()
    assert start(volume).wait(timeout=240) == 0  # backoffLimit: KubeRay starts the entrypoint again
    rows = [json.loads(line) for line in (volume / "results.jsonl").read_text().splitlines()]
    assert sorted(row["index"] for row in rows) == list(range(AGENTS))
    assert all(row["ok"] for row in rows)
