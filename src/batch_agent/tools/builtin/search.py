"""Built-in tool that searches the web, or a folder of text files without a network."""

import asyncio
import math
import os
import re
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import Field

from ...core.errors import SpecError
from ...core.fast_dataclass import dataclass
from ..tool import Tool, make_tool
from .html_text import decode
from .http_session import RequestFailed, RequestMayPass, first_chars
from .rooted_folder import RootedFolder, Version
from .search_providers import APIS, DuckDuckGo, Hit, SearchProvider

_SUFFIXES = frozenset({".txt", ".text", ".md", ".markdown", ".rst"})
_MAX_BYTES = 2_000_000
_SATURATION = 1.5
_LENGTH_WEIGHT = 0.75
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class _Document:
    path: str
    counts: Counter[str]
    terms: int


@dataclass(frozen=True, slots=True)
class _Index:
    """Ranks documents by BM25: rare terms count more, repetitions and long documents less."""

    version: tuple[tuple[str, Version | None], ...]
    documents: tuple[_Document, ...]
    holders: Counter[str]
    """Number of documents that contain each word."""
    mean_terms: float

    def rank(self, terms: Sequence[str]) -> list[_Document]:
        scored = [(self._score(document, terms), document) for document in self.documents]
        return [document for score, document in sorted(scored, key=lambda pair: -pair[0]) if score > 0]

    def rarity(self, word: str) -> float:
        holders = self.holders[word]
        return math.log(1 + (len(self.documents) - holders + 0.5) / (holders + 0.5))

    def _score(self, document: _Document, terms: Sequence[str]) -> float:
        damped = _SATURATION * (1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * document.terms / self.mean_terms)
        return sum(
            self.rarity(word) * count * (_SATURATION + 1) / (count + damped)
            for word in terms
            if (count := document.counts[word])
        )


class Corpus:
    """Search provider over text and Markdown files. The index is rebuilt when a file changes."""

    def __init__(self, folder: str | Path) -> None:
        self._path = PurePosixPath(folder)
        self._folder = RootedFolder(folder)
        self._lock = threading.Lock()
        self._index: _Index | None = None

    async def search(self, query: str, max_results: int) -> Sequence[Hit]:
        return await asyncio.to_thread(self._search, query, max_results)

    def _search(self, query: str, limit: int) -> Sequence[Hit]:
        index = self._current()
        terms = sorted(set(_terms(query)))
        return [self._hit(index, document, terms) for document in index.rank(terms)[:limit]]

    def _current(self) -> _Index:
        try:
            paths = [path for path in self._folder.files("**/*")[0] if PurePosixPath(path).suffix.lower() in _SUFFIXES]
        except OSError as error:
            raise RequestFailed(
                f"{str(self._path)!r} is not a folder to search: set BATCH_AGENT_SEARCH_CORPUS"
            ) from error
        version = tuple((path, self._folder.version(path)) for path in paths)
        with self._lock:  # concurrent searches wait while the index is built
            if self._index is None or self._index.version != version:
                self._index = self._build(version)
            return self._index

    def _build(self, version: tuple[tuple[str, Version | None], ...]) -> _Index:
        counted = ((path, Counter(_terms(self._text(path)))) for path, _ in version)
        documents = tuple(_Document(path, counts, counts.total()) for path, counts in counted)
        holders = Counter(word for document in documents for word in document.counts)
        mean = sum(document.terms for document in documents) / max(1, len(documents))
        return _Index(version, documents, holders, max(1.0, mean))

    def _hit(self, index: _Index, document: _Document, terms: Sequence[str]) -> Hit:
        paragraphs = re.split(r"\n\s*\n", self._text(document.path).strip())
        title = first_chars(paragraphs[0].split("\n")[0].lstrip("# "), 100) or document.path

        def weight(paragraph: str) -> float:
            inside = set(_terms(paragraph))
            return sum(index.rarity(word) for word in terms if word in inside)

        bodies = [
            each for each in paragraphs if "\n" in each or not each.startswith("#")
        ] or paragraphs  # not a heading
        return Hit(title, str(self._path / document.path), first_chars(max(bodies, key=weight), 500))

    def _text(self, path: str) -> str:
        try:
            with self._folder.open(path) as file:
                return decode(file.read(_MAX_BYTES)) or ""
        except OSError:  # deleted in the meantime
            return ""


def _terms(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


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
