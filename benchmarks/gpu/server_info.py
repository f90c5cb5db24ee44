"""What a running vLLM says of itself, and of the GPU that it runs on."""

import re
import subprocess
from types import TracebackType
from typing import Any, Self

import aiohttp

from .token_texts import Words

_COUNTER = re.compile(r"^vllm:(\w+?)(?:_total)?(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)
_CACHE = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_HEALTH_TIMEOUT = aiohttp.ClientTimeout(total=10)
COUNTED = (
    "num_preemptions",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "external_prefix_cache_queries",
    "external_prefix_cache_hits",
    "prompt_tokens",
    "generation_tokens",
)


class ServerGone(Exception):
    """The server ended while it was measured."""


class Server:
    """An OpenAI-compatible server at `url`, which has no /v1. Every question is bounded in time."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.model = ""
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30))
        try:
            self.model = str((await self._get("/v1/models"))["data"][0]["id"])
        except BaseException:
            await self._session.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def about(self) -> dict[str, Any]:
        """Its version, and the KV cache that it has."""
        found = _CACHE.search(await self._text("/metrics"))
        labels = dict(_LABEL.findall(found[1])) if found else {}
        blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
        return {
            "version": (await self._get("/version")).get("version"),
            "kv_tokens": int(blocks) * int(size) if blocks.isdecimal() and size.isdecimal() else None,
            "kv_offloading_gib": _number(labels.get("kv_offloading_size", "")),
        }

    async def counters(self) -> dict[str, float]:
        """What it has counted since its start."""
        totals = dict.fromkeys(COUNTED, 0.0)
        for name, value in _COUNTER.findall(await self._text("/metrics")):
            if name in totals:
                totals[name] += float(value)
        return totals

    async def is_gone(self) -> bool:
        """Whether it refuses connections, or says that its engine is dead. One that is merely slow is there."""
        assert self._session is not None
        try:
            async with self._session.get(f"{self.url}/health", timeout=_HEALTH_TIMEOUT) as response:
                return response.status == 503
        except aiohttp.ClientConnectorError:
            return True
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def words(self) -> Words:
        """A writer for its tokenizer."""
        assert self._session is not None
        body = {"model": self.model, "prompt": Words.sample(), "add_special_tokens": False}
        async with self._session.post(f"{self.url}/tokenize", json=body) as response:
            response.raise_for_status()
            return Words.measured(int((await response.json())["count"]))

    async def _get(self, path: str) -> Any:
        assert self._session is not None
        async with self._session.get(self.url + path) as response:
            response.raise_for_status()
            return await response.json()

    async def _text(self, path: str) -> str:
        assert self._session is not None
        async with self._session.get(self.url + path) as response:
            response.raise_for_status()
            return await response.text()


def _number(text: str) -> float | None:
    return float(text) if text.replace(".", "", 1).isdecimal() else None


def gpu() -> str | None:
    """Its name and memory, where there is one."""
    return _ask_gpu("name,memory.total")


def gpu_memory_used_mib() -> int | None:
    said = _ask_gpu("memory.used")
    return int(said.split()[0]) if said and said.split()[0].isdecimal() else None


def _ask_gpu(what: str) -> str | None:
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return None
    return said.splitlines()[0] if said else None
