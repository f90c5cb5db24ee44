"""Every way out of a run, read while it runs and when it has ended: none has a key or a header of its backend."""

import asyncio
import contextlib
import io
import logging
import pickle
import sys
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from tests.support.redis_server import AOF, RedisServer, redis_of_its_own
from tests.support.service_server import KEY, Heard, Service, ServiceServer, service_server

from batch_agent import (
    Backend,
    BatchAgent,
    BatchSpec,
    Metrics,
    ProcessRuntime,
    Results,
    SpecError,
    Tool,
    Traces,
)
from batch_agent.cli.commands.serve import agent_trace
from batch_agent.core.events import Event
from batch_agent.observe.report.live_server import served
from batch_agent.observe.report.log_follower import LogFollower
from batch_agent.ray.serialization import serialize_spec, spec_for_workers
from batch_agent.run.control_socket import SOCKET

pytestmark = pytest.mark.slow  # three runs

TOKEN = "gateway-token-fedcba9876543210"
PASSWORD = "proxy-password-13579bdf02468ace"
SECRETS = (KEY, TOKEN, PASSWORD)
SPELLINGS = tuple(
    spelling.encode()
    for secret in SECRETS
    for spelling in (secret, *(b64encode(bytes(at) + secret.encode()).decode()[4:-4] for at in range(3)))
)
NOTED = "refused with the headers"
"""In what the server says of a refusal, so that a way out which has the refusal is known to have been read."""

Seen = dict[str, bytes]


def quoting(heard: Heard) -> web.Response | None:
    """A gateway that quotes all headers of the request that it refuses."""
    if not any("refuse" in str(message["content"]) for message in heard.body["messages"]):
        return None
    text = f"{NOTED} {heard.headers} and {b64encode(heard.headers['x-gateway'].encode()).decode()}"
    return web.json_response({"error": {"message": text}}, status=400)


SERVICE = Service("/openai", None, key_header="api-key", refuse=quoting)


def backend_at(server: ServiceServer) -> Backend:
    address = server.url.replace("//", f"//me:{PASSWORD}@")
    return Backend("azure://", base_url=address, api_key=KEY, headers={"X-Gateway": TOKEN}, model="m")


@dataclass
class Witness:
    """Reads the ways out of a run: some of them exist only while it runs."""

    folder: Path
    events: list[str] = field(default_factory=list)
    seen: Seen = field(default_factory=dict)

    def emit(self, event: Event) -> None:
        self.events.append(repr(event))

    async def look(self, when: str, keys: tuple[int, ...] = ()) -> None:
        self.seen[f"files {when}"] = b"".join(contents(self.folder))
        async with (
            served(LogFollower(self.folder / "run"), partial(agent_trace, self.folder / "run"), "127.0.0.1", 0) as port,
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
        ):
            pages = ["/", "/run.json", *(f"/agent/{key}" for key in keys)]
            self.seen[f"dashboard {when}"] = b"".join([await body_of(client, page) for page in pages])

    async def steer(self) -> None:
        """All answers of the control socket, those to requests that it refuses too."""
        answers = list[object]()
        for change in ({"max_inflight": 3}, {"add": [{"x": "added"}]}, {"add": [{"y": 1}]}, {"max_usd": 1.0}):
            try:
                answers.append(await BatchAgent.control(self.folder / "run", **change))
            except SpecError as error:
                answers.append(error)
        reader, writer = await asyncio.open_unix_connection(self.folder / "run" / SOCKET)
        writer.write((2).to_bytes(8, "big") + b"{}")
        async with asyncio.timeout(30):
            answers.append(await reader.read())
        writer.close()
        self.seen["control socket"] = repr(answers).encode()


async def body_of(client: aiohttp.ClientSession, page: str) -> bytes:
    async with client.get(page) as answer:
        body = await answer.read()
        assert answer.status == 200, body
        return body


def contents(folder: Path) -> Iterator[bytes]:
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a temporary one, of a run that goes on
            if path.is_file():
                yield str(path).encode() + path.read_bytes()


@contextlib.contextmanager
def logged() -> Iterator[io.StringIO]:
    """Everything that any logger of the process says, from DEBUG on."""
    text, root = io.StringIO(), logging.getLogger()
    handler, before = logging.StreamHandler(text), root.level
    handler.setFormatter(logging.Formatter("%(name)s %(message)s %(pathname)s"))
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield text
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


async def agents(folder: Path) -> Seen:
    """Two agents with a tool, of which one is refused. The tool lets the witness look."""
    witness, spans, provider, registry = Witness(folder), InMemorySpanExporter(), TracerProvider(), CollectorRegistry()
    provider.add_span_processor(SimpleSpanProcessor(spans))

    @Tool.define(effect="write")
    async def look() -> str:
        """Look."""
        if "control socket" not in witness.seen:
            await witness.steer()
            await witness.look("during the run")
        return "seen"

    async with service_server(SERVICE) as server:
        results = await BatchAgent.run(
            task="Say {x}",
            inputs=[{"x": "yes"}, {"x": "refuse"}],
            tools=[look],
            backend=backend_at(server),
            checkpoint_dir=folder / "run",
            log_requests=folder / "log.jsonl",
            events=[witness, Traces(content=True, tracer_provider=provider), Metrics(registry=registry)],
            progress=True,
        )
    check(server, results)
    await witness.look("after the run", keys=(0, 1))
    for name in ("csv", "jsonl", "parquet", "chat_jsonl"):
        getattr(results, f"to_{name}")(folder / f"out.{name}")
    witness.seen |= {
        "events": "".join(witness.events).encode(),
        "traces": "".join(span.to_json() for span in spans.get_finished_spans()).encode(),
        "results": pickle.dumps(results) + repr([*results]).encode() + str(results).encode(),
        "exports": b"".join(contents(folder)),
    }
    return witness.seen | {"metrics": generate_latest(registry)}


def check(server: ServiceServer, results: Results[str]) -> None:
    assert {each.headers["x-gateway"] for each in server.requests} == {TOKEN}
    assert NOTED in str([result.error for result in results])


async def shared(folder: Path, redis: RedisServer) -> Seen:
    """Agents of a run that keeps its state in Redis: its append-only file has all that was ever written to it."""
    async with service_server(SERVICE) as server:
        results = await BatchAgent.run(
            task="Say {x}",
            inputs=[{"x": "yes"}, {"x": "refuse"}],
            backend=backend_at(server),
            store=redis.url,
            run_id="secrets",
        )
    check(server, results)
    return {"redis": b"".join(contents(redis.folder))}


def sent_to_ray_workers() -> bytes:
    """What a cluster gets of a backend whose secrets are in variables; secrets that are values are refused before."""
    backend = Backend("groq://", api_key="${TEAM_KEY}", headers={"X-Gateway": "${GATEWAY_TOKEN}"})
    spec = BatchSpec.of(task="Say {x}", inputs=[], backend=backend, cluster="ray")
    return serialize_spec(spec_for_workers(spec), pickle.dumps)


PROGRAM = """
import json, os, urllib.request, urllib.error
print(dict(os.environ))
body = {"model": "m", "messages": [{"role": "user", "content": "please refuse"}]}
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
try:
    urllib.request.urlopen(urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(), headers))
except urllib.error.HTTPError as error:
    print(error.headers, error.read().decode())
"""


async def programs(folder: Path) -> Seen:
    """A program behind the gateway, which says all that it got: its environment, and the answer to its request."""
    workdir = folder / "project"
    workdir.mkdir()
    async with service_server(SERVICE) as server:
        results = await BatchAgent.run(
            task="{x}",
            inputs=[{"x": "go"}],
            backend=backend_at(server),
            runtime=ProcessRuntime([sys.executable, "-c", PROGRAM], workdir=workdir),
            checkpoint_dir=folder / "programs",
        )
    return {"program": repr([*results]).encode(), "files of programs": b"".join(contents(folder / "programs"))}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("secrets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEAM_KEY", KEY)
        patch.setenv("GATEWAY_TOKEN", TOKEN)
        found = {"ray": sent_to_ray_workers()}
    with logged() as log, contextlib.redirect_stderr(io.StringIO()) as shown:
        for run in (agents, programs):
            place = folder / run.__name__
            place.mkdir()
            found |= asyncio.run(run(place))
        with redis_of_its_own(*AOF) as redis:
            found |= asyncio.run(shared(folder, redis))
    return found | {"logs": log.getvalue().encode(), "stderr": shown.getvalue().encode()}


WAYS_OUT = {
    "files during the run": b"run.sqlite3",
    "files after the run": NOTED.encode(),
    "dashboard during the run": b"running",
    "dashboard after the run": NOTED.encode(),
    "control socket": b"max_inflight",
    "events": NOTED.encode(),
    "traces": b"gen_ai.input.messages",
    "metrics": b"batch_agent_",
    "results": NOTED.encode(),
    "exports": NOTED.encode(),
    "redis": NOTED.encode(),
    "ray": b"TEAM_KEY",
    "program": b"OPENAI_API_KEY",
    "files of programs": b"OPENAI_API_KEY",
    "logs": b"asyncio",
    "stderr": NOTED.encode(),
}


def test_every_way_out_was_read(seen: Seen) -> None:
    assert set(seen) == set(WAYS_OUT)


@pytest.mark.parametrize("way_out", WAYS_OUT)
def test_a_way_out_of_a_run_has_no_secret(seen: Seen, way_out: str) -> None:
    assert WAYS_OUT[way_out] in seen[way_out]
    assert [spelling for spelling in SPELLINGS if spelling in seen[way_out]] == []
