"""Built-in tool that searches the web, or a folder of texts."""

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ...core.errors import SpecError
from ..tool import Tool, make_tool
from .corpus import Corpus
from .http_session import RequestMayPass
from .search_providers import APIS, DuckDuckGo, Hit, SearchProvider

_CORPUS = "BATCH_AGENT_SEARCH_CORPUS"


def web_search_tool(provider: str | SearchProvider | None = None, corpus: str | Path | None = None) -> Tool:
    """A tool `web_search` that queries `provider` ("brave", "serpapi", "tavily", "exa", "duckduckgo", or a
    SearchProvider), or searches the texts in the folder `corpus`. Without either, each call uses the folder in
    BATCH_AGENT_SEARCH_CORPUS, else the first provider with an API key, else DuckDuckGo."""
    choose = _Choice(provider, corpus)

    async def web_search(query: str, num_results: Annotated[int, Field(ge=1, le=20)] = 5) -> str:
        """Search the web. Gives the title, the address and a snippet of each result.

        Args:
            query: What to look for, in a few words.
            num_results: How many results to give at most.
        """
        if not query.strip():
            raise ValueError("the query is empty; say what to look for")
        hits = await choose.provider().search(query, num_results)
        return "\n".join(map(_block, hits)) or f"No results for {query!r}; try other words."

    return make_tool(web_search, effect="read", ttl=600, rate_limit=5, retries=2, retry_on=(RequestMayPass,))


class _Choice:
    """Choice of the provider, made at each call."""

    def __init__(self, provider: str | SearchProvider | None, corpus: str | Path | None) -> None:
        if provider is not None and corpus is not None:
            raise SpecError("web_search_tool takes a provider or a corpus, not both.")
        self._given = _named(provider) if isinstance(provider, str) else provider
        self._corpora: dict[str, Corpus] = {}
        self._corpus = str(corpus) if corpus is not None else None

    def provider(self) -> SearchProvider:
        if self._given is not None:
            return self._given
        folder = self._corpus or os.environ.get(_CORPUS)
        if folder:
            return self._corpora.setdefault(folder, Corpus(folder))
        return next((api for api in APIS if api.key()), DuckDuckGo())


def _named(name: str) -> SearchProvider:
    known: dict[str, SearchProvider] = {"duckduckgo": DuckDuckGo(), **{api.name.lower(): api for api in APIS}}
    if name.lower() not in known:
        raise SpecError(f"Unknown search provider {name!r}. Use one of: {', '.join(known)}.")
    return known[name.lower()]


def _block(hit: Hit) -> str:
    return f"{hit.title}\n{hit.url}\n{hit.snippet}\n---"
