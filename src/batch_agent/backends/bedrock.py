"""From a bedrock:// URL to a backend: Amazon Bedrock's Converse API, or its newer endpoints with ?api=mantle."""

import os
import re

from yarl import URL

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.protocols import Backend, Traits
from .address import key_of_environment
from .dialects.anthropic.encoder import AnthropicMessages
from .dialects.bedrock.encoder import BedrockConverse, cache_support, keeps_schema
from .dialects.dialect import Dialect
from .dialects.openai.encoder import OpenAIChat
from .flavors import BEDROCK
from .http.client import ServerClient, Signer
from .http.transport import Headers, Transport, open_transport
from .http_backend import HttpBackend
from .probe import list_models, select_model
from .signing import SigV4

_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d+")
_ANTHROPIC_VERSION = "2023-06-01"


async def open_bedrock(url: URL, model: str | None) -> Backend:
    """Raises SpecError for a URL without a region or a model, and where credentials are missing; BackendError where
    the models cannot be listed. Nothing is generated."""
    place = _place(url, model)
    return await (_open_mantle(place) if place.is_mantle else _open_converse(place))


@dataclass(frozen=True, slots=True)
class _Region:
    region: str
    model: str | None
    is_mantle: bool


@dataclass(frozen=True, slots=True)
class _Access:
    """How requests show who sends them: a plain key, or a signature each."""

    headers: Headers
    signer: Signer | None


def _place(url: URL, model: str | None) -> _Region:
    shown = f"backend={str(url)!r}"
    if odd := sorted(set(url.query) - {"api"}):
        raise SpecError(f"{shown}: {odd[0]!r} is not known here; only api is.")
    api = url.query.get("api", "converse")
    if api not in ("converse", "mantle"):
        raise SpecError(f"{shown}: api={api!r} is not known here; converse and mantle are.")
    region = url.host or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""
    if not region:
        raise SpecError(f"{shown} names no region: write bedrock://us-east-1/MODEL, or set AWS_REGION.")
    if not _REGION.fullmatch(region) or url.explicit_port is not None or url.user is not None:
        raise SpecError(
            f"{shown}: {url.authority or region!r} is no AWS region. Write it as in bedrock://us-east-1/MODEL."
        )
    named = url.path.strip("/") or None
    if named and model and named != model:
        raise SpecError(f"{shown} names the model {named!r}, but model={model!r}: leave one of them out.")
    if not (named or model) and api == "converse":
        raise SpecError(f"{shown} names no model: write bedrock://{region}/MODEL, or model=...")
    return _Region(region, named or model, api == "mantle")


async def _open_converse(place: _Region) -> Backend:
    assert place.model is not None
    root = _endpoint("BEDROCK_RUNTIME", f"https://bedrock-runtime.{place.region}.amazonaws.com")
    access = await _access("bedrock", place.region)
    server = ServerClient(_wire(access.headers, root), root, access.signer)
    caches = cache_support(place.model) is not None
    seen = (f"bedrock in {place.region}", *(("cache points",) if caches else ()))
    keeps = keeps_schema(place.model)
    traits = _traits(place.model, json_schema=keeps, strict_schema=keeps, managed_cache=caches, seen=seen)
    return HttpBackend(server, BedrockConverse(), traits)


async def _open_mantle(place: _Region) -> Backend:
    host = _endpoint("BEDROCK_MANTLE", f"https://bedrock-mantle.{place.region}.api.aws")
    access = await _access("bedrock-mantle", place.region)
    wire = _wire({"anthropic-version": _ANTHROPIC_VERSION, **access.headers}, host)
    try:
        root = _below(host, "/v1")
        served = await list_models(ServerClient(wire, root, access.signer), may_be_missing=place.model is not None)
        model = select_model(served, place.model, root)
    except BaseException:
        await wire.aclose()
        raise
    seen = (f"bedrock-mantle in {place.region}",)
    dialect: Dialect
    if model.name.startswith("anthropic."):
        # The same dialect as Anthropic's own service, but for schemas, which this endpoint refuses.
        root = _below(host, "/anthropic/v1")
        dialect = AnthropicMessages(longest_answer=model.longest_answer, strict_schema=True)
        traits = _traits(model.name, json_schema=False, strict_schema=True, managed_cache=True, seen=seen)
    else:
        dialect, keeps = OpenAIChat(), keeps_schema(model.name)
        traits = _traits(model.name, json_schema=keeps, strict_schema=False, managed_cache=False, seen=seen, ignores=())
    return HttpBackend(ServerClient(wire, root, access.signer), dialect, traits)


def _endpoint(service: str, default: str) -> URL:
    for variable in (f"AWS_ENDPOINT_URL_{service}", "AWS_ENDPOINT_URL"):
        if value := os.environ.get(variable, "").strip():
            try:
                url = URL(value)
            except ValueError:
                url = URL()
            if url.scheme not in ("http", "https") or not url.host:
                raise SpecError(f"{variable}={value!r} is not a URL: write it as in https://example.com.")
            return url
    return URL(default)


async def _access(service: str, region: str) -> _Access:
    assert BEDROCK.key_variable is not None
    if token := key_of_environment(BEDROCK.key_variable):
        return _Access({"Authorization": f"Bearer {token}"}, None)
    return _Access({}, await SigV4.find(service, region))


def _wire(headers: Headers, root: URL) -> Transport:
    return open_transport(root, headers, keeps_alive=BEDROCK.keeps_alive)


def _below(host: URL, path: str) -> URL:
    return host.with_path(host.path.rstrip("/") + path)


def _traits(
    model: str,
    *,
    json_schema: bool,
    strict_schema: bool,
    managed_cache: bool,
    seen: tuple[str, ...],
    ignores: tuple[str, ...] = BEDROCK.ignores,
) -> Traits:
    return Traits(
        name=BEDROCK.name,
        model=model,
        native_tools=True,
        json_schema=json_schema,
        json_schema_with_tools=BEDROCK.json_schema_with_tools,
        inflight=BEDROCK.inflight,
        strict_schema=strict_schema,
        managed_cache=managed_cache,
        unsupported_sampling=ignores,
        detected=seen,
    )
