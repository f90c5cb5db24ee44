"""One peer's run as its parent sees it: a process that says when it is ready, is told to go, and says what it cost."""

import json
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from batch_agent.sim import SimServer
from benchmarks.peers.environments import ROOT, python_of, words_of
from benchmarks.peers.participants import CHECKPOINTS, STREAMS
from benchmarks.peers.work import Work
from benchmarks.peers.workloads import Workload

Numbers = dict[str, Any]
PATIENCE_S, _GOODBYE_S = 900, 60


class Broken(Exception):
    """A peer's process that ended without a result; the words are its last."""


@contextmanager
def servers(workload: Workload) -> Iterator[list[SimServer]]:
    """Those that all peers of a workload are given."""
    with ExitStack() as stack:
        yield [stack.enter_context(SimServer(workload.server, workload.script)) for _ in range(workload.endpoints)]


def work_of(workload: Workload, sims: Sequence[SimServer], folder: str, *, holds: bool = False) -> Work:
    """What is asked of a peer; `folder`, which is not there yet, is for the checkpoint."""
    return Work(
        urls=tuple(sim.url for sim in sims),
        agents=workload.agents,
        inflight=workload.inflight,
        tool_s=workload.tool_s,
        is_streamed=workload.kind == STREAMS,
        checkpoint=folder if workload.kind == CHECKPOINTS else None,
        holds=holds,
    )


def measure(peer: str, workload: Workload, sims: Sequence[SimServer], *options: str, holds: bool = False) -> Numbers:
    """What one run of a peer costs and brings. Raises Broken, or NotThere for a peer that cannot run here."""
    with tempfile.TemporaryDirectory() as scratch:
        work = work_of(workload, sims, str(Path(scratch) / "run"), holds=holds)
        with _started(peer, work, options) as (process, errors):
            _heard(process, errors)
            requests, busy = _requests(sims), sum(sim.cpu_seconds() for sim in sims)
            told = _heard(process, errors, "go\n")
            return {
                **told,
                "requests": _requests(sims) - requests,
                "server_cpu_s": sum(sim.cpu_seconds() for sim in sims) - busy,
            }


@contextmanager
def _started(peer: str, work: Work, options: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    command = [str(python_of(peer)), "-m", "benchmarks.peers.peer_process", peer, work.to_json(), *options]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=words_of(peer),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        patience = threading.Timer(PATIENCE_S, process.kill)
        patience.start()
        with process:
            try:
                yield process, errors
                with suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=_GOODBYE_S)
            finally:
                patience.cancel()
                process.kill()


def _heard(process: subprocess.Popen[str], errors: Any, word: str | None = None) -> Numbers:
    """The next line that is JSON: libraries print on their own, too."""
    assert process.stdin is not None
    assert process.stdout is not None
    if word is not None:
        process.stdin.write(word)
        process.stdin.flush()
    for line in process.stdout:
        if line.startswith("{"):
            numbers: Numbers = json.loads(line)
            return numbers
    process.wait()
    errors.seek(0)
    raise Broken("\n".join(errors.read().strip().splitlines()[-12:]) or f"ended with {process.returncode}")


def _requests(sims: Sequence[SimServer]) -> int:
    return int(sum(sim.metrics()["sim:http_requests_total"] for sim in sims))
