"""Hosted services and local servers by their flavor, on servers that respond and refuse as they do."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from openai import AsyncAzureOpenAI, AsyncOpenAI
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)
from pydantic import TypeAdapter
from tests.support import service_server as services
from tests.support.service_server import KEY, Heard, Service, ServiceServer, service_server

from batch_agent import Backend, BackendError, BatchAgent, ErrorKind, SpecError, Tool
from batch_agent.backends.address import address_of_backend
from batch_agent.backends.connect import connect
from batch_agent.backends.flavors import BY_SCHEME, GROQ
from batch_agent.backends.http_backend import HttpBackend
from batch_agent.core.messages import Prompt, ToolSpec, User
from batch_agent.core.protocols.backend import PaceKind, ServiceLimit
from batch_agent.core.requests import Finished, Request, Sampling, TextDelta, Usage

LISTED = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "x"}]}
SERVICES = {
    "azure": Service("/openai", None, key_header="api-key", refuse=services.azure),
    "gemini": Service(
        "/v1beta/openai",
        {"object": "list", "data": [{"id": "models/m", "object": "model", "owned_by": "google"}]},
        refuse=services.gemini,
        signature="c2lnbmVk",
    ),
    "mistral": Service("/v1", LISTED, refuse=services.mistral),
    "groq": Service("/openai/v1", LISTED, refuse=services.groq),
    "together": Service("/v1", [{"id": "m", "type": "chat", "context_length": 8192}]),
    "openrouter": Service(
        "/api/v1", {"data": [{"id": "m", "context_length": 4096}]}, comment=b": OPENROUTER PROCESSING\n\n"
    ),
    "ollama": Service("/v1", LISTED),
    "lmstudio": Service("/v1", LISTED, refuse=services.lmstudio),
    "llamacpp": Service("/v1", LISTED),
}
TOOLS = (ToolSpec("look", "Looks.", {"type": "object", "properties": {}}),)
ASKED = Request(Prompt("Be brief."), (User("Hi"),), "m", Sampling(max_tokens=9, temperature=0.5, seed=3))


def at(scheme: str, server: ServiceServer, **settings: Any) -> Backend:
    """The backend of a service whose address is that of the server."""
    root = "" if scheme == "azure" else SERVICES[scheme].root
    return Backend(f"{scheme}://", base_url=server.url + root, **{"api_key": KEY, "model": "m", **settings})


async def opened(backend: Backend, *, uses_tools: bool = False) -> HttpBackend:
    found = await connect(backend, backend.model, uses_tools=uses_tools, notify=lambda text: None)
    assert isinstance(found, HttpBackend)
    return found


async def said(backend: HttpBackend, request: Request) -> tuple[str, Finished]:
    text, finished = "", Finished("stop", Usage())
    async with backend.stream(request) as deltas:
        async for delta in deltas:
            if isinstance(delta, TextDelta):
                text += delta.text
            elif isinstance(delta, Finished):
                finished = delta
    return text, finished


def requests_of_each_kind(backend: HttpBackend) -> list[Request]:
    with_tools = replace(ASKED, prompt=Prompt("Be brief.", TOOLS))
    return [
        ASKED,
        replace(ASKED, stream=True),
        with_tools,
        replace(with_tools, must_call=""),
        replace(with_tools, must_call="look"),
        replace(with_tools, may_call_tools=False),
        replace(ASKED, answer_schema={"type": "object"}) if backend.traits.json_schema else ASKED,
    ]


@pytest.mark.parametrize("scheme", SERVICES)
async def test_each_service_accepts_every_kind_of_request(scheme: str) -> None:
    async with service_server(SERVICES[scheme]) as server:
        backend = await opened(at(scheme, server), uses_tools=True)
        try:
            for request in requests_of_each_kind(backend):
                text, finished = await said(backend, request)
                assert text or finished.reason == "calls"
                assert finished.usage.input == 7
        finally:
            await backend.aclose()
    assert {each.headers[SERVICES[scheme].key_header] for each in server.requests} <= {KEY, f"Bearer {KEY}"}


@pytest.mark.parametrize("scheme", SERVICES)
async def test_an_agent_with_a_tool_and_a_schema_finishes_on_each_service(scheme: str) -> None:
    @Tool.define(effect="read")
    def look() -> str:
        """Looks."""
        return "seen"

    async with service_server(SERVICES[scheme]) as server:
        results = await BatchAgent.run(
            task="Look for {x}", inputs=[{"x": 1}], tools=[look], backend=at(scheme, server), seed=1, progress=False
        )
    assert [result.error for result in results] == [None]


@pytest.mark.parametrize(("version", "path"), [(None, "/openai/v1"), ("2024-10-21", "/openai/deployments/m")])
async def test_azure_gets_what_its_own_client_sends(version: str | None, path: str) -> None:
    """The SDK's client of the same API is the reference: path, query, key and body."""
    message = {"role": "user", "content": "Hi"}
    async with service_server(SERVICES["azure"]) as server:
        if version is None:
            sdk: AsyncOpenAI = AsyncOpenAI(
                base_url=f"{server.url}/openai/v1", api_key=KEY, default_headers={"api-key": KEY}
            )
        else:
            sdk = AsyncAzureOpenAI(azure_endpoint=server.url, api_key=KEY, api_version=version)
        async with sdk:
            await sdk.chat.completions.create(model="m", messages=[message], temperature=0.5)  # type: ignore[list-item]
        backend = await opened(at("azure", server, api_version=version))
        try:
            await said(backend, Request(Prompt(""), (User("Hi"),), "m", Sampling(temperature=0.5)))
        finally:
            await backend.aclose()
    reference, ours = server.heard  # the models are not listed: Azure's list is not that of the deployments
    assert ours.path == reference.path == f"{path}/chat/completions"
    assert ours.query == reference.query == ({} if version is None else {"api-version": version})
    assert ours.headers["api-key"] == reference.headers["api-key"] == KEY
    assert ours.body == reference.body
    assert "authorization" not in ours.headers


def official_client(scheme: str, server: ServiceServer, version: str | None) -> AsyncOpenAI:
    """Microsoft and Google document the client of OpenAI for these services."""
    if version is not None:
        return AsyncAzureOpenAI(azure_endpoint=server.url, api_key=KEY, api_version=version)
    root = "/openai/v1" if scheme == "azure" else SERVICES[scheme].root
    return AsyncOpenAI(base_url=server.url + root, api_key=KEY, default_headers={"api-key": KEY})


@pytest.mark.parametrize(
    ("scheme", "version"),
    [("azure", None), ("azure", "2024-10-21"), ("azure", "2025-04-01-preview"), ("gemini", None)],
)
async def test_every_request_is_one_that_the_official_client_sends(scheme: str, version: str | None) -> None:
    """What we send is passed to the client as arguments, and checked by its types: both send the same."""

    @Tool.define(effect="read")
    def look() -> str:
        """Looks."""
        return "seen"

    types = TypeAdapter[Any](CompletionCreateParamsNonStreaming | CompletionCreateParamsStreaming)
    async with service_server(SERVICES[scheme]) as server:
        settings = at(scheme, server, api_version=version)
        backend = await opened(settings, uses_tools=True)
        try:
            for request in requests_of_each_kind(backend):
                await said(backend, replace(request, lane="flex"))
        finally:
            await backend.aclose()
        await BatchAgent.run(
            task="Look for {it}", inputs=["it"], tools=[look], backend=settings, seed=1, progress=False
        )
        ours = list(server.requests)
        async with official_client(scheme, server, version) as sdk:
            for each in ours:
                checked = types.validate_python(each.body)
                assert len(list(checked["messages"])) == len(each.body["messages"])  # they are checked as they are read
                assert len(list(checked.get("tools", ()))) == len(each.body.get("tools", ()))
                reply = await sdk.chat.completions.create(**each.body)
                if each.body.get("stream"):
                    async for _ in reply:
                        pass
    theirs = server.requests[len(ours) :]
    assert any(message["role"] == "tool" for each in ours for message in each.body["messages"])
    assert [(each.path, each.query, each.body) for each in ours] == [
        (each.path, each.query, each.body) for each in theirs
    ]
    key = SERVICES[scheme].key_header
    assert {each.headers[key] for each in ours} == {each.headers[key] for each in theirs}


@pytest.mark.parametrize("scheme", [name for name in SERVICES if name != "azure"])
async def test_a_service_gets_what_the_client_of_openai_sends_to_it(scheme: str) -> None:
    async with service_server(SERVICES[scheme]) as server:
        async with AsyncOpenAI(base_url=server.url + SERVICES[scheme].root, api_key=KEY) as sdk:
            await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}], temperature=0.5)
        backend = await opened(at(scheme, server))
        try:
            await said(backend, Request(Prompt(""), (User("Hi"),), "m", Sampling(temperature=0.5)))
        finally:
            await backend.aclose()
    reference, ours = server.requests
    assert (ours.path, ours.query, ours.body) == (reference.path, reference.query, reference.body)
    assert ours.headers["authorization"] == reference.headers["authorization"]


@pytest.mark.parametrize(
    ("backend", "root"),
    [
        (Backend("azure://my-res"), "https://my-res.openai.azure.com/openai/v1"),
        (Backend("azure://my-res.services.ai.azure.com"), "https://my-res.services.ai.azure.com/openai/v1"),
        (Backend("azure://my-res/openai/v1"), "https://my-res.openai.azure.com/openai/v1"),
        (
            Backend("azure://my-res", api_version="2024-10-21"),
            "https://my-res.openai.azure.com/openai?api-version=2024-10-21",
        ),
        (
            Backend("azure://my-res?api-version=2024-10-21"),
            "https://my-res.openai.azure.com/openai?api-version=2024-10-21",
        ),
        (Backend("gemini://"), "https://generativelanguage.googleapis.com/v1beta/openai"),
        (Backend("mistral://"), "https://api.mistral.ai/v1"),
        (Backend("groq://"), "https://api.groq.com/openai/v1"),
        (Backend("together://"), "https://api.together.ai/v1"),
        (Backend("openrouter://"), "https://openrouter.ai/api/v1"),
        (Backend("ollama://"), "http://127.0.0.1:11434/v1"),
        (Backend("ollama://gpu1"), "http://gpu1:11434/v1"),
        (Backend("lmstudio://"), "http://127.0.0.1:1234/v1"),
        (Backend("llamacpp://gpu1:9000"), "http://gpu1:9000/v1"),
        (Backend("groq://", base_url="https://gateway.example.com/groq"), "https://gateway.example.com/groq"),
    ],
)
def test_a_url_names_the_address_of_the_service(backend: Backend, root: str) -> None:
    assert str(address_of_backend(backend, needs_key=False).root) == root


@pytest.mark.parametrize("scheme", [name for name, flavor in BY_SCHEME.items() if flavor.needs_key and name != "azure"])
def test_a_missing_key_is_named_before_anything_is_sent(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = BY_SCHEME[scheme].key_variable or ""
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(SpecError, match=variable):
        address_of_backend(f"{scheme}://")
    assert address_of_backend(Backend(f"{scheme}://", api_key=KEY)).key == KEY


def test_azure_without_a_resource_or_a_key_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SpecError, match="AZURE_OPENAI_ENDPOINT"):
        address_of_backend("azure://")
    with pytest.raises(SpecError, match="AZURE_OPENAI_API_KEY"):
        address_of_backend("azure://my-res")
    token = Backend("azure://my-res", headers={"Authorization": "Bearer ${AZURE_TOKEN}"})
    monkeypatch.setenv("AZURE_TOKEN", "entra")
    assert address_of_backend(token).headers() == {"Authorization": "Bearer entra"}
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://other.openai.azure.com/")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
    assert str(address_of_backend("azure://").root) == "https://other.openai.azure.com/openai/v1"


def test_an_older_version_of_azure_gets_the_older_name_of_max_tokens() -> None:
    def field_of(version: str) -> str:
        flavor = address_of_backend(Backend("azure://r", api_version=version), needs_key=False).flavor
        assert flavor is not None
        return flavor.extensions.max_tokens_field

    assert field_of("2024-08-01-preview") == field_of("2024-10-21") == "max_tokens"
    assert field_of("2024-12-01-preview") == field_of("2025-04-01-preview") == "max_completion_tokens"


async def test_azure_needs_the_name_of_a_deployment() -> None:
    async with service_server(SERVICES["azure"]) as server:
        with pytest.raises(SpecError, match="name of the deployment"):
            await opened(at("azure", server, model=None))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Backend("groq://", organization="org-1"), "organization is a setting of openai://"),
        (Backend("http://127.0.0.1:1/v1", project="p"), "project is a setting of openai://"),
        (Backend("openai://", api_version="2024"), "api_version is a setting of azure:// and anthropic://"),
        (Backend("grok://"), "Did you mean 'groq://'"),
    ],
)
def test_a_setting_or_a_service_that_does_not_exist_is_refused(settings: Backend, words: str) -> None:
    with pytest.raises(SpecError) as refused:
        address_of_backend(settings, needs_key=False)
    assert words in str(refused.value)


def test_settings_become_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_KEY", KEY)
    openai = Backend(
        "openai://", api_key="${TEAM_KEY}", organization="org-1", project="proj-1", headers={"authorization": "Own"}
    )
    assert address_of_backend(openai).headers() == {
        "OpenAI-Organization": "org-1",
        "OpenAI-Project": "proj-1",
        "authorization": "Own",
    }
    anthropic = Backend("anthropic://", api_key="${TEAM_KEY}", api_version="2024-01-01")
    assert address_of_backend(anthropic).headers() == {"anthropic-version": "2024-01-01", "x-api-key": KEY}
    monkeypatch.delenv("TEAM_KEY")
    with pytest.raises(SpecError, match="needs the environment variable TEAM_KEY, which is not set in this process"):
        address_of_backend(openai).headers()


def test_the_key_of_a_service_is_not_sent_in_plain_text_to_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROQ_API_KEY", KEY)
    plain = address_of_backend(Backend("groq://", base_url="http://proxy:8080/v1"))
    assert plain.headers() == {}
    assert "not sent over plain http" in plain.key_advice
    asked = address_of_backend(Backend("groq://", base_url="http://proxy:8080/v1", api_key="${GROQ_API_KEY}"))
    assert asked.headers() == {"Authorization": f"Bearer {KEY}"}


LIMITS = {
    "x-ratelimit-limit-requests": "14400",
    "x-ratelimit-remaining-requests": "14370",
    "x-ratelimit-reset-requests": "2m59.56s",
    "x-ratelimit-limit-tokens": "18000",
    "x-ratelimit-remaining-tokens": "17997",
    "x-ratelimit-reset-tokens": "7.66s",
}


@pytest.mark.parametrize(("scheme", "kinds"), [("groq", {"tokens"}), ("azure", {"requests", "tokens"})])
async def test_groqs_requests_are_per_day_and_no_pace(scheme: str, kinds: set[PaceKind]) -> None:
    found: list[Mapping[PaceKind, ServiceLimit]] = []
    async with service_server(replace(SERVICES[scheme], headers=LIMITS)) as server:
        backend = await opened(at(scheme, server))
        try:
            backend.observe_rate_limits(found.append)
            await said(backend, ASKED)
        finally:
            await backend.aclose()
    assert [set(each) for each in found] == [kinds]


def refused_with(status: int, body: Any, headers: Mapping[str, str] | None = None) -> Any:
    def refuse(heard: Heard) -> web.Response:
        return web.json_response(body, status=status, headers=headers)

    return refuse


@pytest.mark.parametrize(
    ("scheme", "status", "body", "kind", "words"),
    [
        (
            "mistral",
            422,
            {"message": {"detail": [{"loc": ["body", "store"], "msg": "Extra inputs are not permitted"}]}},
            ErrorKind.BAD_REQUEST,
            "store: Extra inputs are not permitted",
        ),
        (
            "mistral",
            422,
            {"detail": [{"loc": ["body", "store"], "msg": "Extra inputs are not permitted"}]},
            ErrorKind.BAD_REQUEST,
            "store: Extra inputs are not permitted",
        ),
        (
            "gemini",
            400,
            [
                {
                    "error": {
                        "code": 400,
                        "message": "The input token count (9) exceeds the maximum number of tokens allowed.",
                    }
                }
            ],
            ErrorKind.CONTEXT_OVERFLOW,
            "The input token count",
        ),
        (
            "together",
            422,
            {"error": {"message": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097."}},
            ErrorKind.CONTEXT_OVERFLOW,
            "must be <= 4097",
        ),
        (
            "openrouter",
            402,
            {"error": {"code": 402, "message": "Insufficient credits"}},
            ErrorKind.AUTH,
            "Insufficient",
        ),
        ("openrouter", 200, {"error": {"code": 502, "message": "Provider is down"}}, ErrorKind.UNAVAILABLE, "is down"),
        ("lmstudio", 400, {"error": "The context length is too small."}, ErrorKind.CONTEXT_OVERFLOW, "too small"),
        ("ollama", 503, {"error": {"message": "server busy"}}, ErrorKind.UNAVAILABLE, "server busy"),
    ],
)
async def test_errors_of_a_service_are_understood(
    scheme: str, status: int, body: Any, kind: ErrorKind, words: str
) -> None:
    async with service_server(replace(SERVICES[scheme], refuse=refused_with(status, body))) as server:
        backend = await opened(at(scheme, server))
        try:
            with pytest.raises(BackendError) as raised:
                await said(backend, ASKED)
        finally:
            await backend.aclose()
    assert raised.value.kind is kind
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("scheme", "headers", "body", "seconds"),
    [
        ("azure", {"retry-after-ms": "1500", "retry-after": "2"}, {"error": {"message": "429"}}, 1.5),
        ("groq", {"retry-after": "2"}, {"error": {"message": "429", "code": "rate_limit_exceeded"}}, 2.0),
        (
            "gemini",
            {},
            [{"error": {"code": 429, "message": "Quota", "details": [{"@type": "RetryInfo", "retryDelay": "31.5s"}]}}],
            31.5,
        ),
    ],
)
async def test_a_refusal_says_when_to_try_again(
    scheme: str, headers: Mapping[str, str], body: Any, seconds: float
) -> None:
    async with service_server(replace(SERVICES[scheme], refuse=refused_with(429, body, headers))) as server:
        backend = await opened(at(scheme, server))
        try:
            with pytest.raises(BackendError) as raised:
                await said(backend, ASKED)
        finally:
            await backend.aclose()
    assert raised.value.kind is ErrorKind.RATE_LIMITED
    assert raised.value.retry_after == seconds


async def test_a_schema_goes_into_the_prompt_of_models_of_groq_that_refuse_it() -> None:
    listed = {"data": [{"id": "llama"}, {"id": "openai/gpt-oss-20b"}]}
    async with service_server(replace(SERVICES["groq"], models=listed)) as server:
        enforced = {}
        for model in ("llama", "openai/gpt-oss-20b"):
            backend = await opened(at("groq", server, model=model))
            enforced[model] = backend.traits.json_schema
            await backend.aclose()
    assert enforced == {"llama": False, "openai/gpt-oss-20b": True}
    assert GROQ.extensions.strict_schema


async def test_models_are_found_in_each_kind_of_list() -> None:
    for scheme, context in (("together", 8192), ("openrouter", 4096), ("gemini", None)):
        async with service_server(SERVICES[scheme]) as server:
            backend = await opened(at(scheme, server, model=None))
            await backend.aclose()
        assert (backend.traits.model, backend.traits.context_tokens) == ("m", context)


async def test_several_services_of_one_run_each_get_their_own_key() -> None:
    """Models of a comparison, each on a service of its own."""
    async with service_server(SERVICES["groq"]) as one, service_server(SERVICES["azure"]) as other:
        results = await BatchAgent.run(
            task="Say {x}",
            inputs=[{"x": 1}],
            models={"fast": at("groq", one, model="m"), "strong": at("azure", other, model="deployed")},
            progress=False,
        )
    assert {(result.model, result.error) for result in results} == {("fast", None), ("strong", None)}
    assert {each.headers["authorization"] for each in one.heard} == {f"Bearer {KEY}"}
    assert {each.headers["api-key"] for each in other.heard} == {KEY}
    assert {each.body["model"] for each in other.requests} == {"deployed"}


async def test_two_keys_of_one_service_form_a_pool() -> None:
    def either(heard: Heard) -> web.Response | None:
        return None

    async with service_server(replace(SERVICES["mistral"], refuse=either)) as server:
        second = Backend("mistral://", base_url=server.url + "/v1", headers={"Authorization": f"Bearer {KEY}"})
        backend = await connect([at("mistral", server), second], "m", uses_tools=False, notify=lambda text: None)
        try:
            async with asyncio.timeout(20), backend.stream(ASKED) as deltas:
                assert [delta async for delta in deltas]
        finally:
            await backend.aclose()
        with pytest.raises(SpecError, match="listed twice"):
            await connect([at("mistral", server)] * 2, "m", uses_tools=False, notify=lambda text: None)
