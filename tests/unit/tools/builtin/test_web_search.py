"""web_search asks whom it can, and keeps the keys to itself."""

import asyncio
import gzip
import json
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ddgs
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from ddgs.exceptions import DDGSException

from batch_agent import SpecError, Tool
from batch_agent.tools.builtin import search
from batch_agent.tools.builtin import search as corpus_module
from batch_agent.tools.builtin import search_providers as providers
from batch_agent.tools.builtin.http_session import RequestFailed, RequestMayPass
from batch_agent.tools.builtin.search import web_search_tool
from batch_agent.tools.builtin.search_providers import APIS, BRAVE, EXA, SERPAPI, TAVILY, Hit, SearchApi

KEY = "k3y-that-nobody-may-see"
TWO = "A & B\nhttps://a.example/\nAbout a.\n---\nC\nhttps://c.example/\nAbout c.\n---"


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BATCH_AGENT_SEARCH_CORPUS", *(key for api in APIS for key in api.key_names)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


class Service:
    """A search service that gives the answer which the test has put there."""

    def __init__(self) -> None:
        self.answer: Any = {}
        self.status = 200
        self.headers: dict[str, str] = {}
        self.asked: list[tuple[web.Request, Any]] = []
        app = web.Application()
        app.router.add_route("*", "/search", self._search)
        self.server = TestServer(app, host="127.0.0.1")

    def at(self, api: SearchApi) -> SearchApi:
        return replace(api, endpoint=str(self.server.make_url("/search")))

    async def _search(self, request: web.Request) -> web.Response:
        self.asked.append((request, await request.json() if request.can_read_body else None))
        if isinstance(self.answer, bytes):
            return web.Response(body=self.answer, status=self.status, headers=self.headers)
        if isinstance(self.answer, str):
            return web.Response(text=self.answer, status=self.status, headers=self.headers)
        return web.json_response(self.answer, status=self.status, headers=self.headers)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    found = Service()
    await found.server.start_server()
    yield found
    await found.server.close()


def results(title: str, url: str, snippet: str) -> list[Any]:
    return [
        {title: "A &amp; B", url: "https://a.example/", snippet: "About\n a."},
        {title: "C", url: "https://c.example/", snippet: "About c."},
        {title: "D", url: "https://d.example/", snippet: None},
    ]


async def test_brave_is_asked_with_a_token(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAVE_API_KEY", KEY)
    service.answer = {"web": {"results": results("title", "url", "description")}}
    assert await web_search_tool(service.at(BRAVE))(query="a b", num_results=2) == TWO
    [(request, _)] = service.asked
    assert request.headers["X-Subscription-Token"] == KEY
    assert dict(request.query) == {"q": "a b", "count": "2", "text_decorations": "false"}


async def test_serpapi_is_asked_with_a_parameter(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPAPI_KEY", KEY)
    service.answer = {"organic_results": results("title", "link", "snippet")}
    assert await web_search_tool(service.at(SERPAPI))(query="a b", num_results=2) == TWO
    [(request, _)] = service.asked
    assert dict(request.query) == {"engine": "google", "q": "a b", "num": "2", "api_key": KEY}


async def test_tavily_is_asked_with_a_bearer(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAVILY_API_KEY", KEY)
    service.answer = {"results": results("title", "url", "content")}
    assert await web_search_tool(service.at(TAVILY))(query="a b", num_results=2) == TWO
    [(request, body)] = service.asked
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert body == {"query": "a b", "max_results": 2}


async def test_exa_is_asked_with_a_header(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXA_API_KEY", KEY)
    service.answer = {"results": results("title", "url", "text")}
    assert await web_search_tool(service.at(EXA))(query="a b", num_results=2) == TWO
    [(request, body)] = service.asked
    assert request.headers["x-api-key"] == KEY
    assert body == {"query": "a b", "numResults": 2, "contents": {"text": {"maxCharacters": 500}}}


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
@pytest.mark.parametrize(
    "answer", [{}, [], {"web": None}, {"results": None}, {"organic_results": {}}, {"results": [1]}]
)
async def test_no_results_are_said_to_be_none(
    service: Service, monkeypatch: pytest.MonkeyPatch, api: SearchApi, answer: Any
) -> None:
    monkeypatch.setenv(api.key_names[-1], KEY)
    service.answer = answer
    assert await web_search_tool(service.at(api))(query="it") == "No results for 'it'; try other words."


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (401, RequestFailed, r"refuses the key \(401\): check "),
        (403, RequestFailed, r"refuses the key \(403\): check "),
        (302, RequestFailed, "answered with 302"),
        (422, RequestFailed, r"answered with 422: your key \*\*\* is odd"),
        (429, RequestMayPass, "answered with 429"),
        (500, RequestMayPass, "answered with 500"),
        (200, RequestFailed, "no JSON"),
    ],
)
async def test_errors_name_the_provider_but_not_the_key(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    api: SearchApi,
    status: int,
    kind: type[RequestFailed],
    said: str,
) -> None:
    monkeypatch.setenv(api.key_names[0], KEY)
    service.status, service.answer, service.headers = status, f"your key {KEY} is odd", {"Location": "/elsewhere"}
    with pytest.raises(RequestFailed, match=said) as caught:
        await web_search_tool(service.at(api))(query="it")
    assert type(caught.value) is kind
    assert api.name in str(caught.value)
    assert KEY not in str(caught.value)
    assert len(service.asked) == 1


@pytest.mark.parametrize(
    ("answer", "encoding", "said"),
    [
        (gzip.compress(bytes(50_000_000), 1, mtime=0), "gzip", "more than 5,000,000 bytes"),
        (b"nonsense", "gzip", "cannot be decoded"),
        (b" " * 6_000_000, "identity", "more than 5,000,000 bytes"),
    ],
    ids=["packed", "not packed", "large"],
)
async def test_an_answer_that_is_too_large_or_cannot_be_decoded_is_said_to_be_so(
    service: Service, monkeypatch: pytest.MonkeyPatch, answer: bytes, encoding: str, said: str
) -> None:
    monkeypatch.setenv(SERPAPI.key_names[0], KEY)
    service.answer, service.headers = answer, {"Content-Encoding": encoding}
    with pytest.raises(RequestFailed, match=said) as caught:
        await web_search_tool(service.at(SERPAPI))(query="it")
    assert KEY not in str(caught.value)


async def test_a_packed_answer_is_read(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SERPAPI.key_names[0], KEY)
    found = json.dumps({"organic_results": [{"title": "It", "link": "https://it", "snippet": "is"}]}).encode()
    service.answer, service.headers = gzip.compress(found), {"Content-Encoding": "gzip"}
    assert "https://it" in await web_search_tool(service.at(SERPAPI))(query="it")


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_a_service_that_is_not_there_is_trouble_that_may_pass(
    monkeypatch: pytest.MonkeyPatch, api: SearchApi
) -> None:
    monkeypatch.setenv(api.key_names[0], KEY)
    with pytest.raises(RequestMayPass, match=f"^{api.name} cannot be reached") as caught:
        await web_search_tool(replace(api, endpoint="http://127.0.0.1:1/search"))(query="it")
    assert KEY not in str(caught.value)


async def test_a_key_that_comes_back_in_a_result_is_not_shown(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXA_API_KEY", KEY)
    service.answer = {"results": [{"title": "t", "url": f"https://e.example/?key={KEY}", "text": KEY}]}
    assert await web_search_tool(service.at(EXA))(query="it") == "t\nhttps://e.example/?key=***\n***\n---"


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_without_its_key_a_provider_says_what_to_set(api: SearchApi) -> None:
    with pytest.raises(RequestFailed, match=f"{api.name} needs a key: set {api.key_names[0]}"):
        await web_search_tool(api.name.lower())(query="it")


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_whom_there_is_a_key_for_is_asked(
    service: Service, monkeypatch: pytest.MonkeyPatch, api: SearchApi
) -> None:
    monkeypatch.setattr(search, "APIS", tuple(map(service.at, APIS)))
    monkeypatch.setenv(api.key_names[0], f" {KEY}\n")
    await Tool.web_search(query="it")
    [(request, _)] = service.asked
    assert KEY in (*request.query.values(), *(value.removeprefix("Bearer ") for value in request.headers.values()))


def test_a_provider_that_is_not_known_is_refused() -> None:
    with pytest.raises(SpecError, match="Use one of: duckduckgo, brave, serpapi, tavily, exa"):
        web_search_tool("altavista")
    with pytest.raises(SpecError, match="not both"):
        web_search_tool("brave", corpus="papers")


async def test_a_provider_may_be_the_users_own() -> None:
    class Own:
        async def search(self, query: str, most: int) -> Sequence[Hit]:
            return [Hit(query, "https://own.example/", str(most))]

    assert await web_search_tool(Own())(query="it", num_results=3) == "it\nhttps://own.example/\n3\n---"


async def test_an_empty_query_is_refused() -> None:
    with pytest.raises(ValueError, match="query is empty"):
        await Tool.web_search(query=" ")


def test_models_may_ask_for_at_most_twenty_results() -> None:
    number = Tool.web_search.spec.parameters["properties"]["num_results"]
    assert (number["minimum"], number["maximum"], number["default"]) == (1, 20, 5)


class FoundByDdgs:
    def text(self, query: str, max_results: int) -> list[dict[str, Any]]:
        return [{"title": query, "href": "https://d.example/", "body": f"{max_results}"}]


class NothingFoundByDdgs:
    def text(self, query: str, max_results: int) -> list[dict[str, Any]]:
        raise DDGSException("No results found.")


async def test_without_any_key_duckduckgo_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ddgs, "DDGS", FoundByDdgs)
    assert await Tool.web_search(query="it", num_results=2) == "it\nhttps://d.example/\n2\n---"
    monkeypatch.setattr(ddgs, "DDGS", NothingFoundByDdgs)
    assert await Tool.web_search(query="it") == "No results for 'it'; try other words."


async def test_without_ddgs_the_error_says_what_to_set_or_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ddgs", None)
    with pytest.raises(RequestFailed, match=r"BRAVE_SEARCH_API_KEY.*EXA_API_KEY.*batch-agent\[search\]"):
        await Tool.web_search(query="it")


@pytest.fixture
def papers(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    (tmp_path / "paging.md").write_text(
        "# Paged attention\n\nMemory is managed in blocks.\n\nBlocks of keys and values."
    )
    (tmp_path / "radix.txt").write_text("Radix attention\n\nPrefixes are shared in a tree.")
    (tmp_path / "deep" / "cats.rst").write_text("Cats\n\nCats sleep. " + "They also eat. " * 200)
    (tmp_path / "code.py").write_text("attention = 'not a text'")
    return tmp_path


async def test_a_folder_of_texts_is_searched(papers: Path) -> None:
    find = web_search_tool(corpus=papers)
    assert await find(query="Blocks, memory") == (
        f"Paged attention\n{papers}/paging.md\nMemory is managed in blocks.\n---"
    )
    assert (await find(query="sleeping cats sleep")).startswith(f"Cats\n{papers}/deep/cats.rst\nCats sleep.")
    assert await find(query="dogs") == "No results for 'dogs'; try other words."
    assert await find(query="?!") == "No results for '?!'; try other words."


async def test_the_better_text_comes_first_and_no_more_than_asked_for(papers: Path) -> None:
    find = web_search_tool(corpus=papers)
    both = await find(query="attention in a tree of prefixes")
    assert both.index("radix.txt") < both.index("paging.md")
    assert (await find(query="attention in a tree of prefixes", num_results=1)).count("---") == 1


async def test_a_text_that_changes_is_read_anew(papers: Path) -> None:
    find = web_search_tool(corpus=papers)
    await find(query="dogs")
    (papers / "dogs.md").write_text("# Dogs\nbark")
    assert (await find(query="dogs")).startswith("Dogs\n")
    (papers / "dogs.md").unlink()
    assert (await find(query="dogs")).startswith("No results")


async def test_a_folder_is_read_once_for_all_who_ask(papers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    build = corpus_module.Corpus._build

    def count(self: corpus_module.Corpus, version: Any) -> Any:
        built.append(1)
        return build(self, version)

    monkeypatch.setattr(corpus_module.Corpus, "_build", count)
    find = web_search_tool(corpus=papers)
    async with asyncio.TaskGroup() as group:
        for query in ("cats", "blocks", "tree", "cats"):
            group.create_task(find(query=query))
    assert built == [1]


async def test_the_environment_may_name_the_folder(papers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH_AGENT_SEARCH_CORPUS", str(papers))
    monkeypatch.setenv("EXA_API_KEY", KEY)
    assert "radix.txt" in await Tool.web_search(query="tree")
    monkeypatch.setenv("BATCH_AGENT_SEARCH_CORPUS", str(papers / "nothing"))
    with pytest.raises(RequestFailed, match="is not a folder to search: set BATCH_AGENT_SEARCH_CORPUS"):
        await Tool.web_search(query="tree")


async def test_an_empty_folder_has_no_results(tmp_path: Path) -> None:
    assert await web_search_tool(corpus=tmp_path)(query="it") == "No results for 'it'; try other words."


async def test_duckduckgo_that_does_not_answer_is_trouble_that_may_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real library, whose every request is refused on the way."""
    monkeypatch.setenv("DDGS_PROXY", "http://127.0.0.1:1")
    with pytest.raises(RequestMayPass, match=r"DuckDuckGo does not answer.*BRAVE_SEARCH_API_KEY"):
        await web_search_tool(providers.DuckDuckGo())(query="it", num_results=1)
