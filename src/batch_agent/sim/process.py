"""Simulated engine in a child process, for tests and benchmarks."""

import http.client
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from ..core.fast_dataclass import dataclass
from .sim_config import BatchConfig, FaultRates, RateLimits, Script, SimConfig

# The simulator needs nothing that `import batch_agent` loads, which would take longer than the rest of its start, so
# the new process sees the package as a bare namespace.
_BOOT = """
import runpy, sys, types
package = types.ModuleType("batch_agent")
package.__path__ = [sys.argv.pop(1)]
sys.modules["batch_agent"] = package
runpy.run_module("batch_agent.sim", run_name="__main__")
"""

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Launch:
    """Options of a simulator process, passed as JSON on its command line."""

    config: SimConfig = field(default_factory=SimConfig)
    script: Script = field(default_factory=Script)
    host: str = "127.0.0.1"
    port: int = 0
    until_stdin_ends: bool = False

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises ValueError or TypeError for invalid options."""
        fields: dict[str, Any] = json.loads(text)
        config: dict[str, Any] = fields.pop("config", {})
        faults = FaultRates(**config.pop("faults", {}))
        limits = RateLimits(**config.pop("rate_limits", {}))
        batches = BatchConfig(**config.pop("batches", {}))
        engine = SimConfig(**config, faults=faults, rate_limits=limits, batches=batches)
        return cls(engine, Script(**fields.pop("script", {})), **fields)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class SimServer:
    """Starts a simulator on entering and stops it on leaving. The simulator also ends if this process dies.

    `with SimServer(SimConfig(zero_latency=True)) as sim: ... sim.url ...`. Entering raises RuntimeError if the
    simulator does not start. Starting and stopping block for a moment. The server's standard error is passed on."""

    def __init__(self, config: SimConfig | None = None, script: Script | None = None, *, port: int = 0) -> None:
        self.config = config or SimConfig()
        self.script = script or Script()
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None

    @property
    def url(self) -> str:
        """URL without a path. OpenAI's routes are below `url + "/v1"`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        launch = Launch(self.config, self.script, port=self.port, until_stdin_ends=True)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = _spawn(launch, self._stderr)
        try:
            self.port = self._read_port()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Terminates the process, then kills it; returns when it has ended. Stopping twice does nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        sys.stderr.write(self._stderr_text())
        for stream in (process.stdin, process.stdout, self._stderr):
            if stream:
                stream.close()

    def metrics(self) -> dict[str, float]:
        """The values of the /metrics page by name, without labels; equal names are added up."""
        values: dict[str, float] = {}
        for line in self.get("/metrics").decode().splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0]
                values[name] = values.get(name, 0.0) + float(value)
        return values

    def cpu_seconds(self) -> float:
        """CPU time the server process has used so far."""
        return self.metrics()["process_cpu_seconds_total"]

    def billed(self, lane: str) -> dict[str, int]:
        """Billed amounts of a lane: `requests` (lines of batches that succeeded), `prompt_tokens`,
        `completion_tokens`."""
        found = {}
        for line in self.get("/metrics").decode().splitlines():
            name, _, rest = line.partition(f'_total{{lane="{lane}"}} ')
            if rest:
                found[name.removeprefix("sim:lane_")] = int(float(rest))
        return found

    def advance(self, seconds: float) -> None:
        """Moves the clock of the batches forward."""
        self._post("/sim/clock", {"advance_s": seconds})

    def arm(self, fault: str, *, times: int = 1, share: float = 0.5) -> None:
        """Makes the next batches or flex requests fail: see docs/simulator.md."""
        self._post("/sim/faults", {"fault": fault, "times": times, "share": share})

    def get(self, path: str) -> bytes:
        return self._request("GET", path)[1]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _post(self, path: str, body: dict[str, Any]) -> None:
        status, answer = self._request("POST", path, json.dumps(body).encode())
        if status != 200:
            raise ValueError(answer.decode(errors="replace"))

    def _request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _read_port(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        line = _read_line(self._process.stdout, START_TIMEOUT_S)
        try:
            return int(json.loads(line)["port"])
        except ValueError as error:
            raise RuntimeError("the simulator did not start; see its output on standard error") from error

    def _stderr_text(self) -> str:
        """The server's standard error, which has errors of the simulator, never of its client."""
        assert self._stderr is not None
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")[-4000:]


def _spawn(launch: Launch, stderr: IO[bytes]) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", _BOOT, str(Path(__file__).parents[1]), launch.to_json()]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)  # noqa: S603


def _read_line(stream: IO[bytes], timeout_s: float) -> bytes:
    """The first line, or its beginning if the time runs out or the stream ends."""
    deadline = time.monotonic() + timeout_s
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while not line.endswith(b"\n") and selector.select(max(0.0, deadline - time.monotonic())):
            piece = os.read(stream.fileno(), 4096)
            if not piece:
                break
            line += piece
    return line
