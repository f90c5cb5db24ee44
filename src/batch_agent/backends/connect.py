"""From a backend URL to a connected backend, with what was seen of the server."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from yarl import URL

from ..core.errors import BackendError, ErrorKind, SpecError
from ..core.interfaces import Backend, Traits
from .dialects.openai_chat import PATH, OpenAIChat
from .embedded import EmbeddedModelError, LocalServer, guided
from .failures import translate_failure, translate_status
from .flavors import BY_OWNER, BY_SCHEME, COMPATIBLE, LLAMACPP, Flavor
from .http import HttpBackend, open_session, shown, without_key

Notify = Callable[[str], None]
_LOOKS_LIKE_A_HOST = re.compile(r"[\w.-]+:\d+(/|$)")
_PROBE_TIMEOUT = aiohttp.ClientTimeout(total=60, sock_connect=10)


async def connect(url: str, model: str | None, *, uses_tools: bool, notify: Notify) -> Backend:
    """Opens the backend that `url` names. Raises SpecError for a URL that names none, BackendError for a server that
    cannot be used. Nothing is generated, but for one token where tools are used and must be tried."""
    parsed = _parse(url)
    if parsed.scheme == "local":
        return await _open_local(parsed, model, notify)
    if parsed.scheme in ("http", "https"):
        return await _open_server(_with_version(parsed), None, model, uses_tools)
    flavor = BY_SCHEME[parsed.scheme]
    return await _open_server(_server_url(parsed, flavor), flavor, model, uses_tools)


def _parse(url: str) -> URL:
    try:
        parsed = URL(url)
    except ValueError as error:
        raise SpecError(f"backend={url!r} is not a URL: {error}.") from error
    schemes = ("local", "http", "https", *BY_SCHEME)
    if parsed.scheme not in schemes:
        known = ", ".join(f"{scheme}://" for scheme in schemes)
        hint = f" Did you mean 'http://{url}'?" if _LOOKS_LIKE_A_HOST.match(url) else ""
        raise SpecError(f"backend={url!r} names no backend that is known here. Known: {known}.{hint}")
    if parsed.scheme in ("http", "https") and not parsed.host:
        raise SpecError(f"backend={url!r} names no host: write it as in 'http://127.0.0.1:8000'.")
    return parsed


async def _open_local(url: URL, model: str | None, notify: Notify) -> Backend:
    if url.host:
        raise SpecError(
            f"backend={str(url)!r}: write the whole path, after three slashes, as in local:///models/a.gguf."
        )
    if odd := sorted(set(url.query) - {"slots"}):
        raise SpecError(f"backend={str(url)!r}: {odd[0]!r} is not known here; only slots is.")
    path = Path(url.path) if url.path not in ("", "/") else None
    slots = url.query.get("slots")
    if slots is not None and (not slots.isdecimal() or int(slots) < 1):
        raise SpecError(f"backend={str(url)!r}: slots must be a whole number of at least 1.")
    notify("Starting the embedded model ...")
    try:
        server = await LocalServer.start(path, slots=int(slots) if slots else None, notify=notify)
    except EmbeddedModelError as error:
        raise BackendError(ErrorKind.NOT_FOUND, str(error)) from error
    try:
        flavor = replace(LLAMACPP, name="local", inflight=server.slots)
        server_url = _with_version(URL(server.url))
        if model is not None and model != server.model_name:
            raise SpecError(f"model={model!r}: {url} serves {server.model_name!r}; leave model out.")
        session = open_session(None, keeps_alive=flavor.keeps_alive, use_proxy=False)
        traits = _traits(flavor, server.model_name, native_tools=False, context=server.context_tokens)
        dialect = OpenAIChat(adapt_schema=guided if path is None else None)
        return HttpBackend(session, _below(server_url, PATH), dialect, traits, on_close=server.aclose)
    except BaseException:
        await server.aclose()
        raise


async def _open_server(url: URL, flavor: Flavor | None, model: str | None, uses_tools: bool) -> Backend:
    key = _key(flavor or COMPATIBLE, url)
    if flavor is not None and flavor.needs_key and key is None and url.host == URL(flavor.default_url).host:
        raise SpecError(f"{flavor.name}:// needs an API key: set the environment variable {flavor.key_variable}.")
    session = open_session(key, keeps_alive=True, use_proxy=url.scheme == "https")
    try:
        probe = _Probe(session, url)
        served = await probe.models(may_be_missing=model is not None)
        flavor = flavor or _guess(served)
        chosen = _choose(served, model, url)
        native_tools = flavor.native_tools
        if native_tools is None:
            native_tools = await probe.takes_tools(chosen.name, flavor) if uses_tools else False
        if not flavor.keeps_alive:
            await session.close()
            session = open_session(key, keeps_alive=False, use_proxy=url.scheme == "https")
        traits = _traits(flavor, chosen.name, native_tools=native_tools, context=chosen.context_tokens)
        return HttpBackend(session, _below(url, PATH), OpenAIChat(flavor.max_tokens_field), traits)
    except BaseException:
        await session.close()
        raise


@dataclass(frozen=True, slots=True)
class _ServedModel:
    name: str
    owner: str
    context_tokens: int | None


@dataclass(frozen=True, slots=True)
class _Probe:
    """Asks a server what it is."""

    session: aiohttp.ClientSession
    url: URL

    async def models(self, *, may_be_missing: bool) -> list[_ServedModel]:
        try:
            body = await self._ask("GET", "/models")
        except BackendError as error:
            if may_be_missing and error.kind is ErrorKind.NOT_FOUND:  # some gateways list none
                return []
            raise
        listed = body.get("data") if isinstance(body, dict) else None
        return [_served(entry) for entry in listed or () if isinstance(entry, dict)]

    async def takes_tools(self, model: str, flavor: Flavor) -> bool:
        """One token with a tool on offer: a server without a tool parser refuses it."""
        tool = {"type": "function", "function": {"name": "probe", "parameters": {"type": "object", "properties": {}}}}
        request = {
            "model": model,
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": [tool],
            flavor.max_tokens_field: 1,
        }
        try:
            await self._ask("POST", PATH, orjson.dumps(request))
        except BackendError as error:
            if error.kind is ErrorKind.BAD_REQUEST:
                return False
            raise
        return True

    async def _ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        url = _below(self.url, path)
        try:
            async with self.session.request(method, url, data=body, timeout=_PROBE_TIMEOUT) as response:
                answer = await response.read()
                if response.status != 200:
                    said = without_key(answer, self.session)
                    raise translate_status(response.status, response.headers, said, shown(url))
                return orjson.loads(answer)
        except (aiohttp.ClientError, OSError) as error:
            raise translate_failure(error, shown(url)) from error
        except orjson.JSONDecodeError as error:
            raise BackendError(
                ErrorKind.NOT_FOUND, f"{shown(url)} does not answer with JSON: is it an inference server?"
            ) from error


def _served(entry: dict[str, Any]) -> _ServedModel:
    meta = entry.get("meta")
    context = (
        entry.get("max_model_len")
        or entry.get("context_window")
        or (meta.get("n_ctx") if isinstance(meta, dict) else None)
    )
    return _ServedModel(
        str(entry.get("id")), str(entry.get("owned_by") or ""), context if isinstance(context, int) else None
    )


def _guess(served: list[_ServedModel]) -> Flavor:
    return BY_OWNER.get(served[0].owner, COMPATIBLE) if served else COMPATIBLE


def _choose(served: list[_ServedModel], model: str | None, url: URL) -> _ServedModel:
    names = [entry.name for entry in served]
    if model is None:
        if len(served) == 1:
            return served[0]
        listed = f"it serves {', '.join(names[:8])}" if names else "it lists none"
        raise SpecError(f"Name a model with model=...: {shown(url)} does not serve exactly one ({listed}).")
    if not served:
        return _ServedModel(model, "", None)
    for entry in served:
        if entry.name == model:
            return entry
    close = get_close_matches(model, names, n=3) or names[:8]
    raise SpecError(f"model={model!r} is not served at {shown(url)}. Did you mean {' or '.join(map(repr, close))}?")


def _traits(flavor: Flavor, model: str, *, native_tools: bool, context: int | None) -> Traits:
    return Traits(
        name=flavor.name,
        model=model,
        native_tools=native_tools,
        json_schema=flavor.json_schema,
        json_schema_beside_tools=flavor.json_schema_beside_tools,
        inflight=flavor.inflight,
        fixed_inflight=flavor.fixed_inflight,
        context_tokens=context,
    )


def _key(flavor: Flavor, url: URL) -> str | None:
    if flavor.key_variable is None or url.user is not None:  # credentials in the URL are those to use
        return None
    if flavor is COMPATIBLE and url.scheme == "http" and not _is_near(url.host or ""):
        return None  # a key is not for any host that a URL may name, in plain text
    return os.environ.get(flavor.key_variable, "").strip() or None


def _server_url(url: URL, flavor: Flavor) -> URL:
    default = URL(flavor.default_url)
    if not url.host:
        return default
    is_hosted = default.scheme == "https"
    scheme = "https" if is_hosted and not _is_near(url.host) else "http"
    return _with_version(url.with_scheme(scheme).with_port(url.port or (None if is_hosted else default.port)))


def _is_near(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _with_version(url: URL) -> URL:
    """Servers are named with or without the /v1 of their API, and sometimes by the whole path of its chat."""
    path = url.path.rstrip("/").removesuffix(PATH)
    return _at(url, path or "/v1")


def _below(url: URL, path: str) -> URL:
    return _at(url, url.path + path)


def _at(url: URL, path: str) -> URL:
    return url.with_path(path).with_query(url.query)
