"""The servers that pages name, on loopback."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.fake_services import Front
from tests.docs.markdown import ROOT
from tests.support.guarded_process import GuardedProcess
from tests.support.redis_server import RedisServer, redis_server
from tests.support.s3_server import S3Server, s3_server
from tests.unit.conftest import call, programs

from batch_agent.sim import Script, SimConfig, SimServer

__all__ = ["addresses", "batch_server", "call", "fronts", "programs", "redis_server", "s3"]


@pytest.fixture(scope="session")
def fronts() -> Iterator[tuple[Front, Front]]:
    """Simulated engines, each behind a front."""
    config = SimConfig(zero_latency=True)
    with (
        SimServer(config, Script()) as first,
        SimServer(config, Script()) as second,
        Front(first.url) as engine,
        Front(second.url) as other,
    ):
        yield engine, other


@pytest.fixture(scope="session")
def batch_server(fronts: tuple[Front, Front], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a batch server over the first engine."""
    folder = tmp_path_factory.mktemp("batch-server")
    options = ["--backend", f"vllm://{fronts[0].address}", "--folder", str(folder), "--port", "0"]
    command = [sys.executable, "-m", "batch_agent", "serve-batches", *options]
    process = GuardedProcess(*command, stderr=subprocess.PIPE)
    try:
        line = process.stderr.readline().decode()
        found = re.search(r"http://(\S+)/v1", line)
        assert found, line
        yield found[1]
    finally:
        process.kill()


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """S3-compatible server with the bucket that the docs name."""
    with s3_server() as server:
        server.make_bucket("my-bucket")
        yield server


@pytest.fixture
def addresses(
    fronts: tuple[Front, Front],
    redis_server: RedisServer,
    batch_server: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> dict[str, str]:
    """By what the docs call a server, who stands in for it; services are told by the environment."""
    engine, other = fronts
    if "s3://my-bucket" in (ROOT / request.node.callspec.params["name"]).read_text():
        server: S3Server = request.getfixturevalue("s3")
        for name, value in {**server.environment, "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():
            monkeypatch.setenv(name, value)
    service = f"http://{engine.address}/service"
    monkeypatch.setenv("OPENAI_BASE_URL", f"{service}/v1")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", f"{service}/v1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", service)
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "AWS_BEARER_TOKEN_BEDROCK"):
        monkeypatch.setenv(variable, "nobodys-key")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return {
        "localhost:8000": engine.address,
        "127.0.0.1:8000": engine.address,
        "localhost:30000": engine.address,
        "localhost:5000": engine.address,
        "localhost:6006": engine.address,
        "gpu:8000": engine.address,
        "gpu1:8000": engine.address,
        "gpu2:8000": other.address,
        "gateway.example.com": f"{engine.address}/service",
        "my-resource.openai.azure.com": f"{engine.address}/service",
        "127.0.0.1:8700": batch_server,
        "127.0.0.1:6379": redis_server.address,
        "10.0.0.5:6379": redis_server.address,
    }
