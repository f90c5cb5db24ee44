"""No secret of a process is ever written to the server of its run: not in a key, not for a moment."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.forked_programs import Call
from tests.support.redis_server import RedisServer, redis_of_its_own

from batch_agent import Backend, BatchAgent, Tool
from batch_agent.sim import Script, SimConfig, SimServer

KEY, HEADER, VARIABLE, PASSWORD = "sk-literal-1a2b3c4d", "token-5e6f7a8b", "sk-variable-9c0d1e2f", "store-3a4b5c6d"
SECRETS = (KEY, HEADER, VARIABLE, PASSWORD)


@pytest.fixture(scope="module")
def sim_url() -> Iterator[str]:
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=4)) as sim:
        yield sim.url


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_of_its_own("--appendonly", "yes", "--requirepass", PASSWORD) as started:
        yield started


def url_of(server: RedisServer) -> str:
    return server.url.replace("redis://", f"redis://:{PASSWORD}@") + "/0"


def written(server: RedisServer) -> bytes:
    """Every command that ever changed something."""
    found = b"".join(file.read_bytes() for file in server.folder.rglob("*.aof"))
    assert b"batch-agent:" in found
    return found


def secrets_in(data: bytes) -> list[str]:
    return [secret for secret in SECRETS if secret.encode() in data]


async def test_keys_and_headers_of_a_backend_are_not_written(
    server: RedisServer, sim_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @Tool.define(effect="read")
    def look(name: str) -> str:
        """Look it up."""
        return "found"

    monkeypatch.setenv("TEAM_KEY", VARIABLE)
    for at, backend in enumerate(
        (Backend(sim_url, api_key=KEY, headers={"X-Token": HEADER}), Backend(sim_url, api_key="${TEAM_KEY}"))
    ):
        results = await BatchAgent.run(
            task="Say {it}", inputs=["a", "b"], backend=backend, tools=[look], store=url_of(server), run_id=f"r{at}"
        )
        assert all(result.ok for result in results)
    assert secrets_in(written(server)) == []


def test_a_command_publishes_no_secret_to_its_workers_and_saves_none(
    server: RedisServer, sim_url: str, tmp_path: Path, call: Call
) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    (tmp_path / "batch.toml").write_text(
        'task = "Say {text}"\ninputs = "in.jsonl"\nbackend = "mine"\n'
        f'[backends.mine]\nurl = "{sim_url}"\napi_key = "${{TEAM_KEY}}"\n'
    )
    environment = {"TEAM_KEY": VARIABLE, "BATCH_AGENT_STORE": url_of(server)}
    done = call("run", "--run-id", "notes", cwd=tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert b"${TEAM_KEY}" in written(server)
    assert secrets_in(written(server)) == []
    saved = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert secrets_in(saved + done.stdout.encode() + done.stderr.encode()) == []
