"""Rows of a Ray Dataset on preemptible workers: what is lost, doubled and asked again, how fast, in how much memory.

    python -m benchmarks.cluster.dataset --rows 100000 --workers 4 --kills 10
    python -m benchmarks.cluster.dataset --rows 10000000 --workers 8 --kills 200 --endpoints 8   # 16 cores
    python -m benchmarks.cluster.dataset --rows 20000 --workers 1,2,4 --kills 0                  # scaling

Needs the extras `ray` and `data`, and pyarrow. Each worker is an actor of `BatchAgent.map` on this machine, and is
killed with SIGKILL; Ray starts it anew. The engines answer at once. The map writes Parquet files, which DuckDB counts.
Time is from the first answer to the last file: the start of Ray and of its actors is not counted.
"""

import argparse
import logging
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batch_agent import BatchAgent
from batch_agent.sim import SimConfig, SimServer
from benchmarks import report

_TASK = 'Say {id}. [[sim: {{"text": "{id}"}}]]'
_INFLIGHT = 64
"""Requests in flight for each worker."""
_ROWS_PER_BLOCK = 10_000
_SAMPLE_S = 0.25
_NO_LATENCY = SimConfig(zero_latency=True)
Numbers = dict[str, Any]


def measure(rows: int, workers: int, kills: int, endpoints: int, folder: Path) -> Numbers:
    """One execution of the map. Ray runs already."""
    import ray

    with ExitStack() as stack:
        engines = [stack.enter_context(SimServer(_NO_LATENCY)) for _ in range(endpoints)]
        blocks = max(workers * 2, rows // _ROWS_PER_BLOCK)
        out = BatchAgent.map(
            ray.data.range(rows, override_num_blocks=blocks),
            task=_TASK,
            backend=[engine.url for engine in engines],
            model="sim",
            max_inflight=_INFLIGHT * workers,
            workers=workers,
            lease=5.0,
            checkpoint_dir=folder / "checkpoints",
            actor_options={"num_cpus": 0.5},
        )
        watch = stack.enter_context(Watch(engines, [rows * (at + 1) // (kills + 1) for at in range(kills)]))
        out.write_parquet(str(folder / "out"))
        ended = time.perf_counter()
        requests = sum(engine.metrics()["sim:http_requests_total"] for engine in engines)
    seconds = ended - watch.first_answer
    return {
        "rows": rows,
        "workers": workers,
        "endpoints": endpoints,
        "blocks": blocks,
        "kills": watch.killed,
        "seconds": round(seconds, 2),
        "rows_per_s": round(rows / seconds),
        **counted(folder / "out", rows),
        "requests_repeated": requests - rows,
        "requests_repeated_at_most": watch.killed * _INFLIGHT * workers,
        "worker_anon_mb": round(max(watch.anonymous.values(), default=0) / 1e3),
        "worker_peak_rss_mb": round(max(watch.peak_rss.values(), default=0) / 1e3),
        "checkpoint_bytes_per_row": round(size_of(folder / "checkpoints") / rows),
    }


def counted(out: Path, rows: int) -> Numbers:
    """What DuckDB finds in the files of the results."""
    import duckdb

    [(total, distinct, right, first, last)] = duckdb.sql(
        f"SELECT count(*), count(DISTINCT id), count(*) FILTER (ok AND output = id::VARCHAR), min(id), max(id) "
        f"FROM '{out}/*.parquet'"
    ).fetchall()
    assert (first, last) == (0, rows - 1), (first, last)
    return {"lost": rows - distinct, "doubled": total - distinct, "wrong": total - right}


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@dataclass
class Watch:
    """Kills workers when the engines have answered so many requests, and samples the memory of all."""

    engines: list[SimServer]
    kill_at: list[int]
    killed: int = 0
    first_answer: float = 0.0
    anonymous: dict[int, int] = field(default_factory=dict)
    """Largest anonymous memory by process, in kB: without the object store, which all processes share."""
    peak_rss: dict[int, int] = field(default_factory=dict)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> "Watch":
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        assert self._thread is not None
        self._thread.join()

    def _run(self) -> None:
        chance = random.Random(1)
        while not self._is_over.wait(_SAMPLE_S):
            workers = map_workers()
            for pid in workers:
                self._sample(pid)
            with suppress(OSError):
                answered = sum(engine.metrics()["vllm:request_success_total"] for engine in self.engines)
                if answered and not self.first_answer:
                    self.first_answer = time.perf_counter()
                if workers and self.killed < len(self.kill_at) and answered >= self.kill_at[self.killed]:
                    os.kill(chance.choice(workers), signal.SIGKILL)
                    self.killed += 1

    def _sample(self, pid: int) -> None:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            values = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("VmHWM", "RssAnon"))}
            self.anonymous[pid] = max(self.anonymous.get(pid, 0), int(values.get("RssAnon", 0)))
            self.peak_rss[pid] = max(self.peak_rss.get(pid, 0), int(values.get("VmHWM", 0)))


def map_workers() -> list[int]:
    """Processes of the actors of the map, of the Ray that this process has started."""
    parents: dict[int, int] = {}
    named: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if (folder / "cmdline").read_text().startswith("ray::MapWorker"):
                named.append(int(folder.name))

    def is_ours(pid: int) -> bool:
        while pid in parents:
            pid = parents[pid]
            if pid == os.getpid():
                return True
        return False

    return sorted(filter(is_ours, named))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=100_000)
    options.add_argument("--workers", default="4", help="a number, or several with commas")
    options.add_argument("--kills", type=int, default=10)
    options.add_argument("--endpoints", type=int, default=1)
    options.add_argument("--object-store-mb", type=int, default=300)
    options.add_argument("--write", type=Path, help="JSON file for the numbers")
    asked = options.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    taken = []
    for workers in map(int, asked.workers.split(",")):
        ray.init(
            address="local",
            num_cpus=max(os.cpu_count() or 1, workers),
            object_store_memory=asked.object_store_mb * 1_000_000,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        ray.data.DataContext.get_current().enable_progress_bars = False
        folder = Path(tempfile.mkdtemp(prefix="batch-agent-dataset-"))
        try:
            taken.append(measure(asked.rows, workers, asked.kills, asked.endpoints, folder))
            print(taken[-1], flush=True)
        finally:
            ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)
    if asked.write:
        report.write("dataset", {"inflight_per_worker": _INFLIGHT, "taken": taken}, asked.write)


if __name__ == "__main__":
    main()
