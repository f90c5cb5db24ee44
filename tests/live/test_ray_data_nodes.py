"""A map over a Ray Dataset on several nodes, of which one is lost."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.ray_cluster import Cluster, ray_cluster

from batch_agent import BatchAgent
from batch_agent.sim import SimConfig, SimServer

# Ray leaves the files of its logs open, and warns of its own defaults.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")

ROWS, INFLIGHT = 4_000, 16


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    import ray

    with ray_cluster(nodes=2) as started:
        ray.init(address=started.address, log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        try:
            yield started
        finally:
            ray.shutdown()


@pytest.mark.nightly
def test_a_lost_node_loses_no_row_and_a_shared_checkpoint_dir_pays_for_none_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    import ray

    with SimServer(SimConfig(step_base_ms=15.0)) as sim:
        rows = ray.data.range(ROWS, override_num_blocks=4)
        out = BatchAgent.map(
            rows,
            task='Say {id}. [[sim: {{"text": "{id}"}}]]',
            backend=sim.url,
            max_inflight=INFLIGHT,
            lease=3.0,
            workers=4,  # two nodes of two CPUs
            checkpoint_dir=tmp_path,
        )
        losing = threading.Thread(target=lose_at, args=[cluster, sim, ROWS // 3])
        losing.start()
        found: list[Any] = out.take_all()
        losing.join()
        requests = sim.metrics()["sim:http_requests_total"]
    assert Counter(row["id"] for row in found) == Counter(range(ROWS))
    assert all(row["output"] == str(row["id"]) for row in found)
    assert ROWS <= requests <= ROWS + 4 * INFLIGHT  # in flight, or answered and not yet written; a block has 1,000


def lose_at(cluster: Cluster, sim: SimServer, answers: int) -> None:
    while sim.metrics()["vllm:request_success_total"] < answers:
        time.sleep(0.05)
    cluster.lose_a_node()
