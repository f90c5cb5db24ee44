"""From a URL to a backend: what is asked of the server, what is refused, and what is said about it."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from tests.support.loopback_servers import Line, RawRequest, RawServer, raw_server

from batch_agent import BackendError, BatchAgentError, ErrorKind, SpecError
from batch_agent.backends import startup_wait
from batch_agent.backends.connect import connect
from batch_agent.core.messages import Prompt, User
from batch_agent.core.protocols.backend import Backend
from batch_agent.core.requests import Request, Sampling
from batch_agent.schedule.retry import Backoff
from batch_agent.sim import SimServer


@asynccontextmanager
async def connected(url: str, model: str | None = None, *, uses_tools: bool = False) -> AsyncIterator[Backend]:
    backend = await connect(url, model, uses_tools=uses_tools, notify=lambda text: None)
    try:
        yield backend
    finally:
        await backend.aclose()


async def refused(url: str, model: str | None = None, *, uses_tools: bool = False) -> BatchAgentError:
    with pytest.raises((SpecError, BackendError)) as raised:
        async with connected(url, model, uses_tools=uses_tools):
            pass
    return raised.value


def model(name: str, owner: str = "vllm", **more: Any) -> dict[str, Any]:
    return {"id": name, "object": "model", "owned_by": owner, **more}


@asynccontextmanager
async def serving(*models: dict[str, Any], tools: int = 200, path: str = "/v1") -> AsyncIterator[RawServer]:
    """A server with these models; `tools` is its status for a request that offers tools."""

    async def answer(request: RawRequest, line: Line) -> None:
        if request.path == f"{path}/models":
            await line.reply(200, orjson.dumps({"object": "list", "data": models}))
        elif request.path != f"{path}/chat/completions":
            await line.reply(404, b'{"detail": "Not Found"}')
        elif "tools" in orjson.loads(request.body) and tools != 200:
            await line.reply(tools, b'{"error": {"message": "no tool parser"}}')
        else:
            await line.say("Hello")

    async with raw_server(answer) as server:
        yield server


async def say_hi(backend: Backend) -> None:
    request = Request(Prompt(""), (User("Hi"),), backend.traits.model, Sampling())
    async with backend.stream(request) as deltas:
        async for _ in deltas:
            pass


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/", "/v1/chat/completions"])
async def test_a_server_may_be_named_with_or_without_the_version_of_its_api(suffix: str) -> None:
    async with serving(model("m")) as server, connected(server.url + suffix) as backend:
        await say_hi(backend)
        paths = [request.path for request in server.requests if request.path.startswith("/v1/")]
        assert paths == ["/v1/models", "/v1/chat/completions"]


async def test_another_path_is_kept() -> None:
    async with (
        serving(model("m"), path="/proxy/openai") as server,
        connected(f"{server.url}/proxy/openai/") as backend,
    ):
        await say_hi(backend)


async def test_a_query_goes_with_every_request() -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        if request.path == "/v1/models?api-version=3":
            await line.reply(200, orjson.dumps({"data": [model("m")]}))
        else:
            await line.say("Hello")

    async with raw_server(answer) as server, connected(f"{server.url}/v1?api-version=3") as backend:
        await say_hi(backend)
        assert server.requests[-1].path == "/v1/chat/completions?api-version=3"
        assert all(request.path.endswith("?api-version=3") for request in server.requests)


@pytest.mark.parametrize("scheme", ["vllm", "sglang", "dynamo", "openai"])
async def test_a_url_scheme_names_the_flavor(scheme: str) -> None:
    async with (
        serving(model("m", "somebody else")) as server,
        connected(server.url.replace("http", scheme)) as backend,
    ):
        assert backend.traits.name == scheme
        await say_hi(backend)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("vllm", "vllm"),
        ("sglang", "sglang"),
        ("nvidia", "dynamo"),
        ("llamacpp", "llama.cpp"),
        ("x", "openai-compatible"),
    ],
)
async def test_the_flavor_of_a_plain_url_is_detected_from_the_server(owner: str, name: str) -> None:
    async with serving(model("m", owner)) as server, connected(server.url) as backend:
        assert backend.traits.name == name


async def test_the_context_window_reported_by_the_server_is_used() -> None:
    async with serving(model("m", max_model_len=4096)) as server, connected(server.url) as backend:
        assert backend.traits.context_tokens == 4096
    async with serving(model("m", "llamacpp", meta={"n_ctx": 512})) as server, connected(server.url) as backend:
        assert backend.traits.context_tokens == 512
    async with serving(model("m", meta="odd")) as server, connected(server.url) as backend:
        assert backend.traits.context_tokens is None


async def test_a_server_that_closes_idle_connections_is_given_a_new_one_each_time() -> None:
    async with serving(model("m", "llamacpp")) as server, connected(server.url) as backend:
        await say_hi(backend)
        await say_hi(backend)
        assert server.connections == 3


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("grpc://host", "is not a known backend"),
        ("", "is not a known backend"),
        ("just words", "is not a known backend"),
        ("localhost:8000", "Did you mean 'http://localhost:8000'?"),
        ("http://host:99999", "not a URL"),
        ("http://", "has no host"),
        ("http:/host", "two slashes"),
        (f"http://{'a' * 64}.org", "have 1 to 63 characters"),
        (f"vllm://{'a' * 64}:8000", "have 1 to 63 characters"),
        ("http://a..b/v1", "have 1 to 63 characters"),
        ("local://?slots=0", "slots must be"),
        ("local://?slots=many", "slots must be"),
        ("local://?slots=²", "slots must be"),
        ("local://?slot=2", "unknown option 'slot'"),
        ("local://models/tiny.gguf", "three slashes"),
    ],
)
async def test_an_unknown_backend_url_is_rejected_with_the_reason(url: str, words: str) -> None:
    error = await refused(url)
    assert isinstance(error, SpecError)
    assert words in str(error)


async def test_an_unknown_model_is_rejected_with_the_closest_name() -> None:
    async with serving(model("Qwen/Qwen3-8B"), model("llama")) as server:
        error = await refused(server.url, "Qwen/Qwen3-8b")
    assert isinstance(error, SpecError)
    assert "Did you mean 'Qwen/Qwen3-8B'?" in str(error)


async def test_an_unknown_model_without_a_close_name_is_rejected_with_the_list() -> None:
    async with serving(model("a"), model("b")) as server:
        assert "'a' or 'b'" in str(await refused(server.url, "something-else"))


async def test_without_a_name_only_one_model_may_be_served() -> None:
    async with serving(model("a"), model("b")) as server:
        error = await refused(server.url)
        assert isinstance(error, SpecError)
        assert "it serves a, b" in str(error)
        async with connected(server.url, "b") as backend:
            assert backend.traits.model == "b"


async def test_a_server_that_lists_nothing_must_be_given_a_model() -> None:
    async with serving() as server:
        assert "it lists no models" in str(await refused(server.url))
        async with connected(server.url, "m") as backend:
            assert backend.traits.model == "m"


async def test_an_unreachable_server_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    error = await refused(url)
    assert isinstance(error, BackendError)
    assert error.kind is ErrorKind.UNAVAILABLE
    assert f"Cannot connect to {url}" in str(error)


async def test_a_web_site_is_not_an_inference_server() -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        await line.reply(200, b"<html>Welcome</html>")

    async with raw_server(answer) as server:
        assert "Is it an inference server?" in str(await refused(server.url))


async def test_a_proxy_that_no_host_can_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://{'a' * 64}:3128")
    error = await refused("https://server.test/v1")
    assert isinstance(error, BackendError)
    assert "the name of the proxy cannot be a host name" in str(error)


@pytest.mark.parametrize("body", [b"[]", b"7", b'{"data": {"a": 1}}', b'{"data": [7, null]}', b'{"data": [{}]}'])
async def test_a_malformed_list_of_models_does_not_crash(body: bytes) -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        await line.reply(200, body)

    async with raw_server(answer) as server:
        try:
            async with connected(server.url, "None"):
                pass
        except SpecError:
            pass


@pytest.mark.parametrize("status", [400, 422])
async def test_a_server_that_refuses_tools_is_used_without_its_own_tool_calls(status: int) -> None:
    async with serving(model("m"), tools=status) as server, connected(server.url, uses_tools=True) as backend:
        assert not backend.traits.native_tools


async def test_a_server_that_accepts_the_tool_trial_is_used_with_native_tools() -> None:
    async with serving(model("m")) as server, connected(server.url, uses_tools=True) as backend:
        assert backend.traits.native_tools
        probe = orjson.loads(server.requests[-1].body)
        assert probe["max_tokens"] == 1


async def test_the_tool_trial_does_not_wait_for_the_token_of_a_server_that_rejects_early() -> None:
    left = asyncio.Event()

    async def answer(request: RawRequest, line: Line) -> None:
        if request.path == "/v1/models":
            await line.reply(200, orjson.dumps({"object": "list", "data": [model("m")]}))
        elif request.path != "/v1/chat/completions":
            await line.reply(404, b'{"detail": "Not Found"}')
        else:
            await line.open_stream()
            await line.gone()
            left.set()

    async with raw_server(answer) as server, connected(server.url, uses_tools=True) as backend:
        assert backend.traits.native_tools
        async with asyncio.timeout(5):
            await left.wait()  # it does not go on computing


async def test_the_tool_trial_waits_for_a_server_that_may_reject_late() -> None:
    async with serving(model("m", "somebody")) as server, connected(server.url, uses_tools=True) as backend:
        assert backend.traits.native_tools
        assert not orjson.loads(server.requests[-1].body).get("stream")


async def test_the_tool_trial_is_made_only_for_runs_with_tools() -> None:
    async with serving(model("m")) as server, connected(server.url):
        assert not [request for request in server.requests if request.method != "GET"]


async def test_a_balancer_that_drops_connections_does_not_end_the_run_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(startup_wait, "_BACKOFF", Backoff(0.01, 10.0))
    asked: Counter[str] = Counter()

    async def answer(request: RawRequest, line: Line) -> None:
        asked[request.path] += 1
        if asked[request.path] <= {"/v1/models": 1, "/v1/chat/completions": 3}.get(request.path, 0):
            line.hang_up()
        elif request.path == "/v1/models":
            await line.reply(200, orjson.dumps({"object": "list", "data": [model("m", "somebody")]}))
        else:
            await line.say("Hello")

    async with raw_server(answer) as server, connected(server.url, uses_tools=True) as backend:
        assert backend.traits.native_tools
    assert (asked["/v1/models"], asked["/v1/chat/completions"]) == (2, 4)


async def test_a_server_that_fails_during_the_tool_trial_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_wait, "_BACKOFF", Backoff(0.01, 10.0))
    async with serving(model("m"), tools=500) as server:
        error = await refused(server.url, uses_tools=True)
        assert isinstance(error, BackendError)
        assert error.kind is ErrorKind.SERVER


async def test_an_api_key_is_read_from_the_environment_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "  sk-secret\n")

    async def answer(request: RawRequest, line: Line) -> None:
        await line.reply(401, b'{"error": "%b is wrong"}' % request.headers["authorization"].encode())

    async with raw_server(answer) as server:
        error = await refused(server.url.replace("http", "vllm"))
        assert server.requests[0].headers["authorization"] == "Bearer sk-secret"
    assert isinstance(error, BackendError)
    assert error.kind is ErrorKind.AUTH
    assert "sk-secret" not in str(error)
    assert str(error).count("The key is that of the environment variable VLLM_API_KEY.") == 1


async def test_a_401_without_a_key_names_the_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)

    async def answer(request: RawRequest, line: Line) -> None:
        await line.reply(401, b'{"error": "Unauthorized"}')

    async with raw_server(answer) as server:
        error = await refused(server.url.replace("http", "vllm"))
    assert "Unauthorized No key was sent: set the environment variable VLLM_API_KEY." in str(error)


@pytest.mark.parametrize("key", ["sk-ключ", "sk–dash", "sk-é", "sk-\u200bsecret"])
async def test_an_api_key_with_invalid_characters_is_rejected_and_not_sent(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, url in (
        ("VLLM_API_KEY", "vllm://127.0.0.1:1"),
        ("AWS_BEARER_TOKEN_BEDROCK", "bedrock://us-east-1/m"),
    ):
        monkeypatch.setenv(variable, key)
        error = await refused(url)
        assert isinstance(error, SpecError)
        assert variable in str(error)
        assert key not in str(error)


async def test_credentials_in_the_url_are_used_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    async with serving(model("m")) as server:
        url = server.url.replace("//", "//me:secret@")
        async with connected(url) as backend:
            await say_hi(backend)
        assert all(request.headers["authorization"].startswith("Basic ") for request in server.requests)
        assert "secret" not in str(await refused(url, "another"))


async def test_a_hosted_service_without_a_key_gets_no_request() -> None:
    error = await refused("openai://")
    assert isinstance(error, SpecError)
    assert "OPENAI_API_KEY" in str(error)


async def test_a_cancelled_connect_leaves_no_connection_open() -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def answer(request: RawRequest, line: Line) -> None:
        asked.set()
        await line.gone()
        gone.set()

    async with raw_server(answer) as server:
        connecting = asyncio.create_task(connect(server.url, None, uses_tools=False, notify=lambda text: None))
        await asked.wait()
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        async with asyncio.timeout(5):
            await gone.wait()


async def test_the_simulator_is_known_by_name(sim: SimServer) -> None:
    async with connected(sim.url, uses_tools=True) as backend:
        assert (backend.traits.name, backend.traits.model) == ("sim", "sim")
        assert backend.traits.native_tools
