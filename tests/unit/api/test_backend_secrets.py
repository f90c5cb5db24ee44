"""Secrets of a backend: on the wire, and in nothing that a run writes, shows, raises or shares."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.support.redis_server import AOF, redis_of_its_own
from tests.support.service_server import KEY, Heard, Service, service_server

from batch_agent import Backend, BackendError, BatchAgent, BatchSpec, Flow, SpecError, VLLMPool, read_request_log
from batch_agent.core.events import Event
from batch_agent.ray.serialization import deserialize_spec, serialize_spec, spec_for_workers

TOKEN = "gateway-token-fedcba9876543210"
LISTED = {"data": [{"id": "m"}]}


class Recorded:
    """Sink that keeps what it is shown."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def emit(self, event: Event) -> None:
        self.events.append(repr(event))


def quoting(heard: Heard) -> web.Response | None:
    """A gateway that answers the first input, and quotes all headers in its refusal of the others."""
    if "1" in heard.body["messages"][-1]["content"]:
        return None
    return web.json_response({"error": {"message": f"refused: {heard.headers}"}}, status=400)


def contents(folder: Path) -> Iterator[bytes]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.read_bytes()


def assert_kept_secret(*shown: object) -> None:
    text = repr(shown)
    assert KEY not in text
    assert TOKEN not in text


@pytest.mark.parametrize("by_name", [False, True])
async def test_no_secret_is_written_shown_or_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_name: bool
) -> None:
    monkeypatch.setenv("TEAM_KEY", KEY)
    monkeypatch.setenv("GATEWAY_TOKEN", TOKEN)
    secrets: dict[str, Any] = {"api_key": "${TEAM_KEY}", "headers": {"X-Gateway": "${GATEWAY_TOKEN}"}}
    if not by_name:
        secrets = {"api_key": KEY, "headers": {"X-Gateway": TOKEN}}
    sink = Recorded()
    async with service_server(Service("/v1", LISTED, refuse=quoting)) as server:
        results = await BatchAgent.run(
            task="Say {x}",
            inputs=[{"x": 1}, {"x": 2}],
            backend=Backend("mistral://", base_url=f"{server.url}/v1", **secrets),
            checkpoint_dir=tmp_path / "run",
            log_requests=tmp_path / "log.jsonl",
            events=[sink],
        )
    assert {each.headers["x-gateway"] for each in server.heard} == {TOKEN}
    assert [result.ok for result in results] == [True, False]
    assert "refused" in str(results[1].error)
    assert sink.events
    logged = list(read_request_log(tmp_path / "log.jsonl"))
    assert len(logged) == 2
    assert_kept_secret(*results, *sink.events, *logged, *contents(tmp_path))
    assert (tmp_path / "run" / "report.html").exists()


async def test_a_refused_key_is_not_in_the_error_and_its_source_is() -> None:
    async with service_server(Service("/v1", LISTED)) as server:
        backend = Backend("mistral://", base_url=f"{server.url}/v1", api_key=KEY + "wrong")
        with pytest.raises(BackendError) as raised:
            await BatchAgent.run(task="Say {x}", inputs=[{"x": 1}], backend=backend)
    assert_kept_secret(str(raised.value), repr(raised.value.__cause__))
    assert "The key is the one in api_key= of the backend." in str(raised.value)


async def test_stages_of_a_flow_have_a_service_and_a_key_each() -> None:
    async with (
        service_server(Service("/v1", LISTED)) as one,
        service_server(Service("/openai", None, key_header="api-key")) as other,
    ):
        first = Backend("mistral://", base_url=f"{one.url}/v1", api_key=KEY)
        second = Backend("azure://", base_url=other.url, api_key=KEY, model="deployed")
        flow = Flow([{"x": 1}]).map("draft", "Say {x}", backend=first).map("check", "Check {draft}", backend=second)
        done = await flow.run()
    assert [item.error for item in done.items] == [None]
    assert one.requests
    assert [each.body["model"] for each in other.requests] == ["deployed"]
    assert {each.headers["api-key"] for each in other.requests} == {KEY}


async def test_a_preview_needs_no_key_and_masks_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Backend("groq://", api_key="${TEAM_KEY}", headers={"X-Gateway": "token ${GATEWAY_TOKEN}"}, model="m")
    for name in ("TEAM_KEY", "GATEWAY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    shown = await BatchAgent.preview(task="Say {x}", inputs=[{"x": 1}], backend=backend)
    assert "needs the environment variable TEAM_KEY" in str(shown.notes)
    monkeypatch.setenv("TEAM_KEY", KEY)
    monkeypatch.setenv("GATEWAY_TOKEN", TOKEN)
    shown = await BatchAgent.preview(task="Say {x}", inputs=[{"x": 1}], backend=backend)
    headers = shown.requests[0].headers
    assert (headers["Authorization"], headers["X-Gateway"]) == ("Bearer ***", "***")
    assert_kept_secret(str(shown), shown.to_dict())


async def test_redis_never_gets_a_secret() -> None:
    """All that was ever written to it is in its append-only file."""
    with redis_of_its_own(*AOF) as redis:
        async with service_server(Service("/v1", LISTED, refuse=quoting)) as server:
            results = await BatchAgent.run(
                task="Say {x}",
                inputs=[{"x": 1}, {"x": 2}],
                backend=Backend("mistral://", base_url=f"{server.url}/v1", api_key=KEY, headers={"X-Gateway": TOKEN}),
                store=redis.url,
                run_id="secrets",
            )
        written = b"".join(contents(redis.folder))
    assert [result.ok for result in results] == [True, False]
    assert b"refused" in written
    assert_kept_secret(written)


async def test_a_fallback_has_a_key_and_a_model_of_its_own(tmp_path: Path) -> None:
    def gone(heard: Heard) -> web.Response:
        return web.json_response({"error": {"message": "no such model"}}, status=404)

    async with (
        service_server(Service("/v1", {"data": [{"id": "m"}, {"id": "other"}]}, refuse=gone)) as one,
        service_server(Service("/openai", None, key_header="api-key")) as other,
    ):
        results = await BatchAgent.run(
            task="Say {x}",
            inputs=[{"x": 1}],
            backend=Backend("mistral://", base_url=f"{one.url}/v1", api_key=KEY, model="m"),
            fallback=["other", Backend("azure://", base_url=other.url, api_key=KEY, model="deployed")],
            checkpoint_dir=tmp_path,
        )
    assert [(result.ok, result.model) for result in results] == [(True, "deployed")]
    assert {each.headers["api-key"] for each in other.requests} == {KEY}
    assert_kept_secret(*contents(tmp_path))


async def test_redis_gets_no_secret_of_a_fallback(tmp_path: Path) -> None:
    """Why an agent leaves a backend is written too: that of an agent, and that of an outage."""

    def leaving(heard: Heard) -> web.Response | None:
        if "1" in heard.body["messages"][-1]["content"]:
            return None
        return web.json_response({"error": {"message": f"refused: {heard.headers}"}}, status=404)

    def denying(heard: Heard) -> web.Response:
        return web.json_response({"error": {"message": f"denied: {heard.headers}"}}, status=401)

    with redis_of_its_own(*AOF) as redis:
        async with (
            service_server(Service("/v1", LISTED, refuse=leaving)) as one,
            service_server(Service("/v1", LISTED, refuse=denying)) as two,
            service_server(Service("/openai", None, key_header="api-key")) as three,
        ):
            secrets: dict[str, Any] = {"api_key": KEY, "headers": {"X-Gateway": TOKEN}}
            results = await BatchAgent.run(
                task="Say {x}",
                inputs=[{"x": x} for x in range(1, 6)],
                backend=Backend("mistral://", base_url=f"{one.url}/v1", model="m", **secrets),
                fallback=[
                    Backend("mistral://", base_url=f"{two.url}/v1", model="m", **secrets),
                    Backend("azure://", base_url=three.url, model="deployed", **secrets),
                ],
                log_requests=tmp_path / "log.jsonl",
                max_retries=0,
                store=redis.url,
                run_id="secrets",
            )
        written = b"".join(contents(redis.folder))
    assert [(each.ok, each.model) for each in results] == [(True, "m"), *[(True, "deployed")] * 4]
    assert b"refused" in written
    assert b"denied" in written
    assert_kept_secret(written, *contents(tmp_path), *results)


def spec(**secrets: Any) -> BatchSpec:
    return BatchSpec.of(task="Say {x}", inputs=[], backend=Backend("groq://", **secrets), cluster="ray")


def test_a_key_that_is_a_value_is_refused_before_ray_starts() -> None:
    for secrets in ({"api_key": KEY}, {"headers": {"X-Gateway": TOKEN}}):
        with pytest.raises(SpecError, match=r'Write .*="\$\{NAME\}"') as refused:
            spec_for_workers(spec(**secrets))
        assert_kept_secret(str(refused.value))


def test_a_worker_reads_the_variable_from_its_own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_KEY", KEY)
    sent = serialize_spec(spec_for_workers(spec(api_key="${TEAM_KEY}")), pickle.dumps)
    assert_kept_secret(sent)
    assert deserialize_spec(sent).backend == Backend("groq://", api_key="${TEAM_KEY}")


async def test_a_worker_without_the_variable_says_which_one_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEAM_KEY", raising=False)
    with pytest.raises(SpecError, match="needs the environment variable TEAM_KEY, which is not set in this process"):
        await BatchAgent.run(task="Say {x}", inputs=[{"x": 1}], backend=Backend("groq://", api_key="${TEAM_KEY}"))


async def test_endpoints_of_a_pool_have_a_key_each() -> None:
    listed = Service("/v1", LISTED)
    async with service_server(listed) as one, service_server(listed) as other:
        endpoints = [Backend("together://", base_url=f"{each.url}/v1", api_key=KEY) for each in (one, other)]
        async with VLLMPool(endpoints, model="m", use_batch=False) as pool:
            responses = await pool.send_all(["Hi", "Ho"])
            assert_kept_secret(pool.endpoints, responses)
    assert [response.text for response in responses] == ["done", "done"]
    assert {each.headers["authorization"] for each in (*one.heard, *other.heard)} == {f"Bearer {KEY}"}
