"""Providers of web search."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from html import unescape
from typing import Any, Protocol

import aiohttp
import orjson

from ...core.fast_dataclass import dataclass
from ...core.safe_text import masked_bytes
from .http_session import RequestFailed, RequestMayPass, SharedSession, first_chars, read_up_to, user_agent

_MAX_BYTES = 5_000_000
_TIMEOUT = 20.0


@dataclass(frozen=True, slots=True)
class Hit:
    title: str
    url: str
    snippet: str


class SearchProvider(Protocol):
    """A search engine."""

    async def search(self, query: str, max_results: int) -> Sequence[Hit]:
        """At most `max_results` results. Raises RequestFailed, or RequestMayPass if a retry may help."""
        ...


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """One request: a GET with parameters, or a POST with a body."""

    headers: Mapping[str, str]
    parameters: Mapping[str, str]
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class SearchApi:
    """A search service with an API key, which is read from the environment at each call."""

    name: str
    key_names: tuple[str, ...]
    endpoint: str
    build_request: Callable[[str, str, int], SearchQuery]
    """Builds the request from key, query and number of results."""
    results: tuple[str, ...]
    """Path to the list of results in the response."""
    fields: tuple[str, str, str]
    """Field names of a result's title, URL and snippet."""

    def key(self) -> str:
        """The API key; empty if none is set."""
        return next(filter(None, (os.environ.get(name, "").strip() for name in self.key_names)), "")

    async def search(self, query: str, max_results: int) -> Sequence[Hit]:
        key = self.key()
        if not key:
            raise RequestFailed(f"{self.name} needs a key: set {self.key_names[0]}")
        if not (key.isascii() and key.isprintable()):
            raise RequestFailed(f"{' or '.join(self.key_names)} holds characters that no key can: copy it again")
        answer = await self._answer(self.build_request(key, query, max_results), key)
        for step in self.results:
            answer = answer.get(step) if isinstance(answer, dict) else None
        found = [entry for entry in answer or () if isinstance(entry, dict)] if isinstance(answer, list) else []
        return [Hit(*(_line(entry.get(field)) for field in self.fields)) for entry in found[:max_results]]

    async def _answer(self, request: SearchQuery, key: str) -> Any:
        try:
            async with asyncio.timeout(_TIMEOUT), _SESSIONS.use() as session, self._send(session, request) as response:
                body = masked_bytes(await read_up_to(response, _MAX_BYTES), [key])
        except RequestFailed:
            raise RequestFailed(f"{self.name} gave an answer that cannot be decoded") from None
        except (aiohttp.ClientError, OSError) as error:
            # Without the error's message, which may quote a URL that contains the key.
            raise RequestMayPass(f"{self.name} cannot be reached ({type(error).__name__})") from None
        if response.status != 200:
            raise self._error(response.status, body)
        if len(body) > _MAX_BYTES:
            raise RequestFailed(f"{self.name} gave an answer of more than {_MAX_BYTES:,} bytes; ask for fewer results")
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError:
            raise RequestFailed(f"{self.name} gave an answer that is no JSON") from None

    def _send(self, session: aiohttp.ClientSession, request: SearchQuery) -> "aiohttp.client._RequestContextManager":
        return session.request(
            "GET" if request.body is None else "POST",
            self.endpoint,
            params=request.parameters,
            headers={"User-Agent": user_agent(), "Accept": "application/json", **request.headers},
            json=request.body,
            allow_redirects=False,  # the key must not be sent to another host
        )

    def _error(self, status: int, body: bytes) -> RequestFailed:
        if status in (401, 403):
            return RequestFailed(f"{self.name} refuses the key ({status}): check {' or '.join(self.key_names)}")
        message = f"{self.name} answered with {status}: {first_chars(body.decode(errors='replace'))}"
        return RequestMayPass(message) if status == 429 or status >= 500 else RequestFailed(message)


class DuckDuckGo:
    """Search without a key, through the library ddgs (extra `search`), which also queries other engines."""

    async def search(self, query: str, max_results: int) -> Sequence[Hit]:
        return await asyncio.to_thread(self._search, query, max_results)

    def _search(self, query: str, max_results: int) -> Sequence[Hit]:
        try:
            from ddgs import DDGS
            from ddgs.exceptions import DDGSException
        except ImportError:
            raise RequestFailed(
                f"no search provider is available: {_keys()}, or pip install 'batch-agent[search]'"
            ) from None
        try:
            found = DDGS().text(query, max_results=max_results)
        except DDGSException as error:
            if "No results" in str(error):
                return []
            reason = first_chars(str(error), 200)
            raise RequestMayPass(f"DuckDuckGo does not answer ({reason}); if that lasts, {_keys()}") from error
        return [Hit(*(_line(entry.get(field)) for field in ("title", "href", "body"))) for entry in found[:max_results]]


def _open_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        cookie_jar=aiohttp.DummyCookieJar(), headers={"Accept-Encoding": "gzip"}, auto_decompress=False, trust_env=True
    )


def _keys() -> str:
    return f"set one of {', '.join(api.key_names[0] for api in APIS)}"


def _line(value: object) -> str:
    return first_chars(unescape(value), 500) if isinstance(value, str) else ""


_SESSIONS = SharedSession(_open_session)

BRAVE = SearchApi(
    "Brave",
    ("BRAVE_SEARCH_API_KEY", "BRAVE_API_KEY"),
    "https://api.search.brave.com/res/v1/web/search",
    lambda key, query, max_results: SearchQuery(
        {"X-Subscription-Token": key}, {"q": query, "count": str(max_results), "text_decorations": "false"}
    ),
    ("web", "results"),
    ("title", "url", "description"),
)
SERPAPI = SearchApi(
    "SerpApi",
    ("SERPAPI_KEY", "SERPAPI_API_KEY", "SERPAPI"),
    "https://serpapi.com/search.json",
    lambda key, query, max_results: SearchQuery(
        {}, {"engine": "google", "q": query, "num": str(max_results), "api_key": key}
    ),
    ("organic_results",),
    ("title", "link", "snippet"),
)
TAVILY = SearchApi(
    "Tavily",
    ("TAVILY_API_KEY",),
    "https://api.tavily.com/search",
    lambda key, query, max_results: SearchQuery(
        {"Authorization": f"Bearer {key}"}, {}, {"query": query, "max_results": max_results}
    ),
    ("results",),
    ("title", "url", "content"),
)
EXA = SearchApi(
    "Exa",
    ("EXA_API_KEY",),
    "https://api.exa.ai/search",
    lambda key, query, max_results: SearchQuery(
        {"x-api-key": key},
        {},
        {"query": query, "numResults": max_results, "contents": {"text": {"maxCharacters": 500}}},
    ),
    ("results",),
    ("title", "url", "text"),
)
APIS = (BRAVE, SERPAPI, TAVILY, EXA)
"""In order of preference, if several have a key."""
