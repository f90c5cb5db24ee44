"""Rows of a Ray Dataset on preemptible workers: what is lost, doubled and asked again, how fast, in how much memory.

    python -m benchmarks.cluster.dataset 100000,4,10                                     # rows, workers, kills
    python -m benchmarks.cluster.dataset 200000,1,0 1600000,8,0 10000000,8,200           # 16 cores

Needs the extras `ray` and `data`, and pyarrow. Each worker is an actor of `BatchAgent.map` on this machine, and is
killed with SIGKILL; Ray starts it anew. There is an engine for each worker, or as many as a fourth
number says, which answers at once. The map writes Parquet files, which DuckDB counts. Time is from the first answer to
the last file: the start of Ray and of its actors is not counted.
"""

import argparse
import logging
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
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
_TOLD_EVERY_S = 20.0
_NO_LATENCY = SimConfig(zero_latency=True)
Numbers = dict[str, Any]


def measure(rows: int, workers: int, kills: int, engine_count: int, folder: Path) -> Numbers:
    """One execution of the map. Ray runs already."""
    import ray

    with ExitStack() as stack:
        engines = [stack.enter_context(SimServer(_NO_LATENCY)) for _ in range(engine_count)]
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
        "engines": engine_count,
        "blocks": blocks,
        "kills": watch.killed,
        "seconds": round(seconds, 2),
        "rows_per_s": round(rows / seconds),
        **counted(folder / "out", rows),
        "requests_repeated": requests - rows,
        "requests_repeated_at_most": watch.killed * _INFLIGHT * workers,
        "worker_anon_mb": round(max(watch.anonymous.values(), default=0) / 1e3),
        "worker_peak_rss_mb": round(max(watch.peak_rss.values(), default=0) / 1e3),
        "worker_cpu_us_per_row": round(sum(watch.cpu_s.values()) / rows * 1e6),
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
    cpu_s: dict[int, float] = field(default_factory=dict)
    """CPU seconds by process, its start included."""
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
        chance, told = random.Random(1), 0.0
        while not self._is_over.wait(_SAMPLE_S):
            workers = map_workers()
            for pid in workers:
                self._sample(pid)
            with suppress(OSError):
                answered = sum(engine.metrics()["vllm:request_success_total"] for engine in self.engines)
                if answered and not self.first_answer:
                    self.first_answer = told = time.perf_counter()
                if answered and time.perf_counter() - told > _TOLD_EVERY_S:
                    told = time.perf_counter()
                    print(f"{told - self.first_answer:.0f} s: {answered:.0f} answers, {self.killed} kills", flush=True)
                if workers and self.killed < len(self.kill_at) and answered >= self.kill_at[self.killed]:
                    os.kill(chance.choice(workers), signal.SIGKILL)
                    self.killed += 1

    def _sample(self, pid: int) -> None:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            values = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("VmHWM", "RssAnon"))}
            self.anonymous[pid] = max(self.anonymous.get(pid, 0), int(values.get("RssAnon", 0)))
            self.peak_rss[pid] = max(self.peak_rss.get(pid, 0), int(values.get("VmHWM", 0)))
            user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            self.cpu_s[pid] = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


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
    options.add_argument("runs", nargs="*", default=["100000,4,10"], help="ROWS,WORKERS,KILLS[,ENGINES]")
    options.add_argument("--object-store-mb", type=int, default=300)
    options.add_argument("--out", type=Path, help="JSON file for the numbers")
    options.add_argument("--commit", help="of a copy of the repository without its history")
    asked = options.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    taken: list[Numbers] = []
    for words in asked.runs:
        rows, workers, kills, *engines = map(int, words.split(","))
        with started_ray(workers, asked.object_store_mb), tempfile.TemporaryDirectory(prefix="batch-agent-") as folder:
            taken.append(measure(rows, workers, kills, engines[0] if engines else workers, Path(folder)))
        print(taken[-1], flush=True)
        if asked.out:
            numbers = {"inflight_per_worker": _INFLIGHT, "taken": taken}
            report.write("dataset", numbers, asked.out, commit=asked.commit)


@contextmanager
def started_ray(workers: int, object_store_mb: int) -> Iterator[None]:
    import ray

    ray.init(
        address="local",
        num_cpus=max(os.cpu_count() or 1, workers),
        object_store_memory=object_store_mb * 1_000_000,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        yield
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
