"""Starts the real engines of scripts/engines on a free loopback port, waits for them, and stops them."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from urllib.error import URLError

from scripts.engines.guard import GRACE
from scripts.engines.layout import (
    DYNAMO,
    LMCACHE,
    MLFLOW,
    MODEL,
    MODEL_NAME,
    OBJECT_STORES,
    PHOENIX,
    RAY_SERVE,
    RECIPES,
    REPLAY,
    SGLANG,
    SGLANG_VISION,
    VISION,
    VISION_PACKAGES,
    VLLM,
    VLLM_ROUTER,
    Part,
    engines_root,
)
from scripts.engines.object_stores_env import AZURITE, GCS_EMULATOR
from scripts.engines.replay import FILE_NAME as REPLAY_FILE

VLLM_START_LIMIT = 300.0
RUN_BATCH_LIMIT = 480.0
SGLANG_START_LIMIT = 300.0
LMCACHE_START_LIMIT = 120.0
DYNAMO_START_LIMIT = 60.0
TRACE_SERVER_START_LIMIT = 300.0
RAY_SERVE_START_LIMIT = 120.0
_VLLM_OPTIONS = (
    *("--served-model-name", MODEL_NAME, "--max-model-len", "4096", "--max-num-seqs", "64"),
    *("--dtype", "float32", "--enforce-eager", "--enable-prompt-tokens-details"),
    # Only whole blocks are shared between prompts: 128 tokens by default on CPU, at least 32.
    *("--enable-prefix-caching", "--block-size", "32"),
)
_VLLM_VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
LOOPBACK = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy of the machine is not for 127.0.0.1


class EngineFailedError(Exception):
    """The engine is not installed, died while starting, or was not ready in time; the message says what to do."""


@contextmanager
def vllm_server(
    scratch: Path,
    *arguments: str,
    tools: bool = True,
    environment: Mapping[str, str] | None = None,
    interpreter: Path | None = None,
    model: Part = MODEL,
) -> Iterator[str]:
    """A real vLLM on CPU with a 23,000-token KV cache; yields its root address, without /v1.

    Blocks 40 s to 3 minutes. Raises EngineFailedError.
    """
    _require(VLLM, model)
    port = free_port()
    command = [str(interpreter or VLLM.python), str(VLLM.folder / "bin" / "vllm"), "serve", str(model.folder)]
    command += ["--host", "127.0.0.1", "--port", str(port), *_VLLM_OPTIONS]
    command += ["--served-model-name", model.name]  # the last one counts
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"] if tools else []
    log = scratch / "vllm.log"
    variables = _environment() | _VLLM_VARIABLES | dict(environment or {})
    with _process_group([*command, *arguments], variables, log) as process:
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(f"{url}/health", "", process, (log,), VLLM_START_LIMIT)
        yield url


def vision_server(scratch: Path) -> AbstractContextManager[str]:
    """Like `vllm_server`, with a model of random weights that takes images: each is 16 tokens."""
    packages = str(VISION.folder / VISION_PACKAGES)
    # Profiling the largest images takes half a minute, and is of no use for a model of this size.
    return vllm_server(scratch, "--skip-mm-profiling", tools=False, environment={"PYTHONPATH": packages}, model=VISION)


def vllm_run_batch(scratch: Path, source: Path, out: Path) -> None:
    """Real `vllm run-batch` on CPU, with the options of `vllm_server`. Blocks 1 to 6 minutes. Raises
    EngineFailedError."""
    _require(VLLM, MODEL)
    command = [str(VLLM.python), str(VLLM.folder / "bin" / "vllm"), "run-batch", "-i", str(source), "-o", str(out)]
    command += ["--model", str(MODEL.folder), *_VLLM_OPTIONS]
    log = scratch / "vllm-run-batch.log"
    with _process_group(command, _environment() | _VLLM_VARIABLES, log) as process:
        try:
            process.wait(RUN_BATCH_LIMIT)
        except subprocess.TimeoutExpired:
            raise EngineFailedError(f"vllm run-batch did not end. {_last_lines((log,))}") from None
    if not out.exists():
        raise EngineFailedError(f"vllm run-batch wrote nothing. {_last_lines((log,))}")


@contextmanager
def sglang_server(
    scratch: Path,
    *arguments: str,
    sessions: bool = True,
    environment: Mapping[str, str] | None = None,
    model: Part = MODEL,
) -> Iterator[str]:
    """A real SGLang on CPU with an 8,192-token KV cache and all that our dialect can use switched on.

    Yields its root address, without /v1. Blocks 40 s to 3 minutes. Raises EngineFailedError.
    """
    _require(SGLANG, VLLM, model, install="sglang")
    port = free_port()
    command = [str(SGLANG.folder / "bin" / "sglang"), "serve", "--model-path", str(model.folder)]
    command += ["--served-model-name", model.name, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native"]
    command += ["--sampling-backend", "pytorch", "--mem-fraction-static", "0.2"]
    command += ["--context-length", "4096", "--max-total-tokens", "8192", "--max-running-requests", "16"]
    command += ["--tool-call-parser", "hermes", "--enable-cache-report", "--enable-metrics"]
    command += ["--enable-priority-scheduling", *(["--enable-session-radix-cache"] if sessions else [])]
    log = scratch / "sglang.log"
    variables = _environment() | {"SGLANG_USE_CPU_ENGINE": "1"} | dict(environment or {})
    with _process_group([*command, *arguments], variables, log) as process:
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(f"{url}/health", "", process, (log,), SGLANG_START_LIMIT)
        yield url


def sglang_vision_server(scratch: Path) -> AbstractContextManager[str]:
    """Like `sglang_server`, with a model of random weights that takes images: a token for each 28 pixels squared."""
    packages = f"{RECIPES / 'sglang_vision'}{os.pathsep}{VISION.folder / VISION_PACKAGES}"
    return sglang_server(scratch, sessions=False, environment={"PYTHONPATH": packages}, model=SGLANG_VISION)


@contextmanager
def vllm_with_lmcache(scratch: Path, *arguments: str) -> Iterator[str]:
    """A real vLLM on CPU beside a real LMCache server with 1 GB of host memory; yields vLLM's root address.

    Blocks 1 to 4 minutes. Raises EngineFailedError.
    """
    _require(LMCACHE, VLLM, MODEL, install="lmcache")
    port, http_port = free_port(), free_port()
    command = [str(LMCACHE.folder / "bin" / "lmcache"), "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--http-host", "127.0.0.1", "--http-port", str(http_port), "--disable-observability"]
    # Without "auto" vLLM on a CPU waits for ever when it registers its KV cache.
    command += ["--supported-transfer-mode", "auto", "--eviction-policy", "LRU", "--l1-size-gb", "1"]
    command += ["--chunk-size", "32"]
    extra = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port}
    config = {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    log = scratch / "lmcache.log"
    with _process_group(command, _environment() | {"LMCACHE_TRACK_USAGE": "false"}, log) as process:
        _wait_until_ready(f"http://127.0.0.1:{http_port}/healthcheck", "", process, (log,), LMCACHE_START_LIMIT)
        arguments = ("--kv-transfer-config", json.dumps(config), *arguments)
        with vllm_server(scratch, *arguments, interpreter=LMCACHE.python) as url:
            yield url


@contextmanager
def dynamo_server(scratch: Path, *arguments: str, workers: int = 2, router: str = "kv") -> Iterator[str]:
    """The real Dynamo frontend and router in front of mocker workers; yields its root address, without /v1.

    Mocker tokens are random, unless a request is annotated with an output_replay_id of scripts/engines/write_replay.py.
    Blocks a few seconds. Raises EngineFailedError.
    """
    with _dynamo(scratch, [workers], ["--router-mode", router, *arguments]) as (url, _):
        yield url


@contextmanager
def dynamo_fleet(scratch: Path, workers: int, *mocker: str) -> Iterator[tuple[str, list[Callable[[], None]]]]:
    """Like `dynamo_server`, with a process for each worker; yields also a function for each that kills it. `mocker`:
    further options of the workers."""
    with _dynamo(scratch, [1] * workers, ["--router-mode", "kv"], mocker) as (url, processes):
        yield url, [partial(os.killpg, process.pid, signal.SIGKILL) for process in processes]


@contextmanager
def _dynamo(
    scratch: Path, workers: Sequence[int], options: Sequence[str], more: Sequence[str] = ()
) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """`workers`: of each process of mockers."""
    _require(DYNAMO, MODEL, REPLAY)
    port = free_port()
    mocker = [str(DYNAMO.python), str(RECIPES / "mocker_with_tools.py"), "--model-path", str(MODEL.folder)]
    mocker += ["--model-name", MODEL_NAME, "--block-size", "16", "--max-num-seqs", "64"]
    mocker += ["--max-model-len", "4096", "--num-gpu-blocks-override", "4096"]
    mocker += ["--response-replay-trace-path", str(REPLAY.folder / REPLAY_FILE), *more]
    frontend = [str(DYNAMO.python), "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port)]
    frontend += ["--enable-streaming-tool-dispatch", *options]
    environment = _environment() | _dynamo_without_services(scratch / "discovery")
    logs = [scratch / f"mocker-{number}.log" for number in range(len(workers))]
    with ExitStack() as stack:
        mockers = [
            stack.enter_context(_process_group([*mocker, "--num-workers", str(count)], environment, log))
            for count, log in zip(workers, logs, strict=True)
        ]
        logs.append(scratch / "frontend.log")
        process = stack.enter_context(_process_group(frontend, environment, logs[-1]))
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(f"{url}/v1/models", MODEL_NAME, process, logs, DYNAMO_START_LIMIT)
        yield url, mockers


@contextmanager
def vllm_router(scratch: Path, engines: Sequence[str], policy: str) -> Iterator[str]:
    """A real vLLM Router in front of engines; yields its root address. Blocks for seconds. Raises EngineFailedError."""
    _require(VLLM_ROUTER, install="vllm-router")
    port, log = free_port(), scratch / "vllm-router.log"
    command = [str(VLLM_ROUTER.folder / "bin" / "vllm-router"), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--worker-urls", *engines, "--policy", policy]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    with _process_group(command, _environment(), log) as process:
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(f"{url}/v1/models", "data", process, (log,), TRACE_SERVER_START_LIMIT)
        yield url


@contextmanager
def ray_serve(scratch: Path, engine: str) -> Iterator[tuple[str, Path]]:
    """A real Ray Serve with two replicas that pass requests on to an engine; yields its root address, and a folder with
    a file for each replica that was started, named by its process id. Blocks for seconds. Raises EngineFailedError."""
    _require(RAY_SERVE, install="ray-serve")
    port, log, replicas = free_port(), scratch / "ray-serve.log", scratch / "replicas"
    replicas.mkdir()
    command = [str(RAY_SERVE.python), str(RECIPES / "ray_serve_app.py"), str(port), engine, str(replicas)]
    variables = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with _process_group(command, _environment() | variables, log) as process:
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(f"{url}/v1/models", "data", process, (log,), RAY_SERVE_START_LIMIT)
        yield url, replicas


@contextmanager
def azure_emulator(scratch: Path) -> Iterator[int]:
    """Azurite, Microsoft's emulator of Azure's blobs; yields its port. Blocks for seconds. Raises EngineFailedError."""
    _require(OBJECT_STORES, install="object-stores")
    port, log = free_port(), scratch / "azurite.log"
    command = [str(OBJECT_STORES.folder / AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    command += ["--location", str(scratch), "--skipApiVersionCheck", "--disableTelemetry"]
    with _process_group(command, _environment(), log) as process:
        _wait_until_open(port, process, log)
        yield port


@contextmanager
def gcs_emulator(scratch: Path) -> Iterator[int]:
    """Emulator of Google Cloud Storage; yields its port. Blocks for seconds. Raises EngineFailedError."""
    _require(OBJECT_STORES, install="object-stores")
    port, log = free_port(), scratch / "gcs.log"
    command = [str(OBJECT_STORES.python), str(OBJECT_STORES.folder / GCS_EMULATOR), "start", "--host=127.0.0.1"]
    with _process_group([*command, f"--port={port}", "--in-memory"], _environment(), log) as process:
        _wait_until_open(port, process, log)
        yield port


@contextmanager
def mlflow_server(scratch: Path) -> Iterator[str]:
    """A real MLflow with an SQLite database; yields its root address. Blocks for seconds. Raises EngineFailedError."""
    _require(MLFLOW, install="mlflow")
    port, log = free_port(), scratch / "mlflow.log"
    command = [str(MLFLOW.python), "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{scratch / 'mlflow.db'}", "--workers", "1"]
    command += ["--artifacts-destination", str(scratch / "artifacts")]
    with _process_group(command, _environment() | {"MLFLOW_DISABLE_TELEMETRY": "true"}, log) as process:
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(f"{url}/health", "OK", process, (log,), TRACE_SERVER_START_LIMIT)
        yield url


@contextmanager
def phoenix_server(scratch: Path) -> Iterator[str]:
    """A real Phoenix with an SQLite database; yields its root address. Blocks for seconds. Raises EngineFailedError."""
    _require(PHOENIX, install="phoenix")
    port, grpc_port, log = free_port(), free_port(), scratch / "phoenix.log"
    command = [str(PHOENIX.python), "-m", "phoenix.server.main", "serve"]
    variables = {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc_port),
        "PHOENIX_WORKING_DIR": str(scratch),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    with _process_group(command, _environment() | variables, log) as process:
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(f"{url}/healthz", "", process, (log,), TRACE_SERVER_START_LIMIT)
        yield url


def _environment() -> dict[str, str]:
    home = engines_root() / "home"  # the engines keep caches there, whatever they are told
    return {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}


def _dynamo_without_services(discovery: Path) -> dict[str, str]:
    discovery.mkdir()
    return {
        "DYN_FILE_KV": str(discovery),
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "DYN_TCP_RPC_HOST": "127.0.0.1",
        "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
        "DYN_EVENT_PLANE_HOST": "127.0.0.1",
        "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
    }


def _require(*parts: Part, install: str = "") -> None:
    missing = [part.name for part in parts if not part.is_ready()]
    if missing:
        raise EngineFailedError(
            f"{', '.join(missing)} not installed in {engines_root()}, or installed by an older recipe. "
            f"Run `{f'{sys.executable} -m scripts.engines.install {install}'.strip()}` in the repository root."
        )


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def _process_group(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """The command as a process group of its own; the group ends with this block, or with this process."""
    guarded = [sys.executable, str(RECIPES / "guard.py"), *command]
    with log.open("wb") as output:
        process = subprocess.Popen(
            guarded,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(GRACE + 10)


def _wait_until_ready(
    url: str, expected: str, process: subprocess.Popen[bytes], logs: Sequence[Path], limit: float
) -> None:
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        if _answers(url, expected):
            return
        if process.poll() is not None:
            raise EngineFailedError(f"The engine ended before {url} answered. {_last_lines(logs)}")
        time.sleep(0.25)
    raise EngineFailedError(f"{url} did not answer in {limit:.0f} s. {_last_lines(logs)}")


def _wait_until_open(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + TRACE_SERVER_START_LIMIT
    while time.monotonic() < deadline:
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None:
            raise EngineFailedError(f"The server ended before it listened. {_last_lines((log,))}")
        time.sleep(0.25)
    raise EngineFailedError(f"The server does not listen at port {port}. {_last_lines((log,))}")


def _answers(url: str, expected: str) -> bool:
    try:
        with LOOPBACK.open(url, timeout=5) as response:
            return expected in response.read().decode()
    except (URLError, OSError):
        return False


def _last_lines(logs: Sequence[Path], count: int = 120) -> str:
    tails = ["\n".join([f"{log}:", *log.read_text(errors="replace").splitlines()[-count:]]) for log in logs]
    return "Last lines of its logs:\n" + "\n".join(tails)
