"""Searching a folder of texts, without a network."""

import asyncio
import math
import re
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from ...core.fast_dataclass import dataclass
from .html_text import decode
from .http_session import RequestFailed, first_chars
from .rooted_folder import RootedFolder, Version
from .search_providers import Hit

_SUFFIXES = frozenset({".txt", ".text", ".md", ".markdown", ".rst"})
_MOST_BYTES = 2_000_000
_SATURATION = 1.5
_LENGTH_COUNTS = 0.75
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class _Document:
    path: str
    counts: Counter[str]
    words: int


@dataclass(frozen=True, slots=True)
class _Index:
    """Ranks documents by BM25: rare words count more, repetitions and long documents less."""

    version: tuple[tuple[str, Version | None], ...]
    documents: tuple[_Document, ...]
    holders: Counter[str]
    """In how many documents a word is."""
    mean_words: float

    def rank(self, words: Sequence[str]) -> list[_Document]:
        scored = [(self._score(document, words), document) for document in self.documents]
        return [document for score, document in sorted(scored, key=lambda pair: -pair[0]) if score > 0]

    def rarity(self, word: str) -> float:
        holders = self.holders[word]
        return math.log(1 + (len(self.documents) - holders + 0.5) / (holders + 0.5))

    def _score(self, document: _Document, words: Sequence[str]) -> float:
        damped = _SATURATION * (1 - _LENGTH_COUNTS + _LENGTH_COUNTS * document.words / self.mean_words)
        return sum(
            self.rarity(word) * count * (_SATURATION + 1) / (count + damped)
            for word in words
            if (count := document.counts[word])
        )


class Corpus:
    """Text and Markdown files as a web to be searched. What was read is kept until a file changes."""

    def __init__(self, folder: str | Path) -> None:
        self._path = PurePosixPath(folder)
        self._folder = RootedFolder(folder)
        self._lock = threading.Lock()
        self._index: _Index | None = None

    async def search(self, query: str, most: int) -> Sequence[Hit]:
        return await asyncio.to_thread(self._search, query, most)

    def _search(self, query: str, most: int) -> Sequence[Hit]:
        index = self._current()
        words = sorted(set(_words(query)))
        return [self._hit(index, document, words) for document in index.rank(words)[:most]]

    def _current(self) -> _Index:
        try:
            paths = [path for path in self._folder.files("**/*")[0] if PurePosixPath(path).suffix.lower() in _SUFFIXES]
        except OSError as error:
            raise RequestFailed(f"{str(self._path)!r} is no folder to search: set BATCH_AGENT_SEARCH_CORPUS") from error
        version = tuple((path, self._folder.version(path)) for path in paths)
        with self._lock:  # whoever comes while it is built waits for it
            if self._index is None or self._index.version != version:
                self._index = self._build(version)
            return self._index

    def _build(self, version: tuple[tuple[str, Version | None], ...]) -> _Index:
        counted = ((path, Counter(_words(self._text(path)))) for path, _ in version)
        documents = tuple(_Document(path, counts, counts.total()) for path, counts in counted)
        holders = Counter(word for document in documents for word in document.counts)
        mean = sum(document.words for document in documents) / max(1, len(documents))
        return _Index(version, documents, holders, max(1.0, mean))

    def _hit(self, index: _Index, document: _Document, words: Sequence[str]) -> Hit:
        paragraphs = re.split(r"\n\s*\n", self._text(document.path).strip())
        title = first_chars(paragraphs[0].split("\n")[0].lstrip("# "), 100) or document.path

        def weight(paragraph: str) -> float:
            inside = set(_words(paragraph))
            return sum(index.rarity(word) for word in words if word in inside)

        said = [each for each in paragraphs if "\n" in each or not each.startswith("#")] or paragraphs  # not a heading
        return Hit(title, str(self._path / document.path), first_chars(max(said, key=weight), 500))

    def _text(self, path: str) -> str:
        try:
            with self._folder.open(path) as file:
                return decode(file.read(_MOST_BYTES)) or ""
        except OSError:  # gone meanwhile
            return ""


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
