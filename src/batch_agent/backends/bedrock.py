"""Backend for bedrock:// URLs: Amazon Bedrock's Converse API, or its newer endpoints with ?api=mantle."""

import os
import re

from yarl import URL

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.protocols.backend import Backend, Traits
from ..core.requests import RequestObserver
from .address import key_from_environment
from .dialects.anthropic.encoder import AnthropicMessages
from .dialects.bedrock.encoder import BedrockConverse, cache_support, supports_schema
from .dialects.dialect import Dialect
from .dialects.openai.encoder import OpenAIChat
from .flavors import BEDROCK, takes_images
from .http.client import ServerClient, Signer
from .http.transport import Headers, Transport
from .http.transport_selection import open_transport
from .http_backend import HttpBackend
from .probe import ServedModel, list_models, select_model
from .sigv4 import SigV4

_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d+")
_ANTHROPIC_VERSION = "2023-06-01"


async def open_bedrock(url: URL, model: str | None, observe: RequestObserver | None = None) -> Backend:
    """Opens the backend; nothing is generated. Raises SpecError for a URL without a region or a model, and for missing
    credentials; BackendError if the models cannot be listed."""
    target = _parse_target(url, model)
    return await (_open_mantle(target, observe) if target.is_mantle else _open_converse(target, observe))


@dataclass(frozen=True, slots=True)
class _Target:
    """What a bedrock:// URL names."""

    region: str
    model: str | None
    is_mantle: bool


@dataclass(frozen=True, slots=True)
class _Access:
    """How requests authenticate: headers with an API key, or a signer."""

    headers: Headers
    signer: Signer | None


def _parse_target(url: URL, model: str | None) -> _Target:
    given = f"backend={str(url)!r}"
    if unknown_options := sorted(set(url.query) - {"api"}):
        raise SpecError(f"{given}: unknown option {unknown_options[0]!r}; bedrock:// accepts only api.")
    api = url.query.get("api", "converse")
    if api not in ("converse", "mantle"):
        raise SpecError(f"{given}: unknown api={api!r}; use converse or mantle.")
    region = url.host or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""
    if not region:
        raise SpecError(f"{given} has no region. Use bedrock://us-east-1/MODEL, or set AWS_REGION.")
    if not _REGION.fullmatch(region) or url.explicit_port is not None or url.user is not None:
        raise SpecError(
            f"{given}: {url.authority or region!r} is not an AWS region. Use a URL as in bedrock://us-east-1/MODEL."
        )
    named = url.path.strip("/") or None
    if named and model and named != model:
        raise SpecError(f"{given} names the model {named!r}, but model={model!r}. Omit one of them.")
    if not (named or model) and api == "converse":
        raise SpecError(f"{given} has no model. Use bedrock://{region}/MODEL, or pass model=...")
    return _Target(region, named or model, api == "mantle")


def offline_bedrock(url: URL, model: str | None, unknown_model: str) -> HttpBackend:
    """The backend without credentials and without a list of models, to show requests. Nothing can be sent. Raises
    SpecError for a URL without a region or a model."""
    target = _parse_target(url, model)
    token = key_from_environment(BEDROCK.key_variable or "")
    access = _Access({"Authorization": f"Bearer {token}" if token else "AWS4-HMAC-SHA256 of each request"}, None)
    if not target.is_mantle:
        return _converse(target, access, None)
    host = _mantle_host(target)
    return _mantle(target, ServedModel(target.model or unknown_model), host, _mantle_transport(access, host), access)


async def _open_converse(target: _Target, observe: RequestObserver | None) -> Backend:
    return _converse(target, await _access("bedrock", target.region), observe)


def _converse(target: _Target, access: _Access, observe: RequestObserver | None) -> HttpBackend:
    assert target.model is not None
    root = _endpoint("BEDROCK_RUNTIME", f"https://bedrock-runtime.{target.region}.amazonaws.com")
    server = ServerClient(_open_transport(access.headers, root), root, access.signer)
    caches = cache_support(target.model) is not None
    seen = (f"bedrock in {target.region}", *(("cache points",) if caches else ()))
    keeps = supports_schema(target.model)
    traits = _traits(target.model, json_schema=keeps, strict_schema=keeps, managed_cache=caches, seen=seen)
    return HttpBackend(server, BedrockConverse(), traits, observe=observe)


async def _open_mantle(target: _Target, observe: RequestObserver | None) -> Backend:
    host = _mantle_host(target)
    access = await _access("bedrock-mantle", target.region)
    transport = _mantle_transport(access, host)
    try:
        root = _join(host, "/v1")
        served = await list_models(
            ServerClient(transport, root, access.signer), may_be_missing=target.model is not None
        )
        model = select_model(served, target.model, root)
    except BaseException:
        await transport.aclose()
        raise
    return _mantle(target, model, host, transport, access, observe)


def _mantle_host(target: _Target) -> URL:
    return _endpoint("BEDROCK_MANTLE", f"https://bedrock-mantle.{target.region}.api.aws")


def _mantle_transport(access: _Access, host: URL) -> Transport:
    return _open_transport({"anthropic-version": _ANTHROPIC_VERSION, **access.headers}, host)


def _mantle(
    target: _Target,
    model: ServedModel,
    host: URL,
    transport: Transport,
    access: _Access,
    observe: RequestObserver | None = None,
) -> HttpBackend:
    seen, root = (f"bedrock-mantle in {target.region}",), _join(host, "/v1")
    dialect: Dialect
    if model.name.startswith("anthropic."):
        # The same dialect as Anthropic's own service, except for schemas, which this endpoint rejects.
        root = _join(host, "/anthropic/v1")
        dialect = AnthropicMessages(max_output_tokens=model.max_output_tokens, strict_schema=True)
        traits = _traits(model.name, json_schema=False, strict_schema=True, managed_cache=True, seen=seen)
    else:
        dialect, keeps = OpenAIChat(), supports_schema(model.name)
        traits = _traits(model.name, json_schema=keeps, strict_schema=False, managed_cache=False, seen=seen, ignores=())
    return HttpBackend(ServerClient(transport, root, access.signer), dialect, traits, observe=observe)


def _endpoint(service: str, default: str) -> URL:
    for variable in (f"AWS_ENDPOINT_URL_{service}", "AWS_ENDPOINT_URL"):
        if value := os.environ.get(variable, "").strip():
            try:
                url = URL(value)
            except ValueError:
                url = URL()
            if url.scheme not in ("http", "https") or not url.host:
                raise SpecError(f"{variable}={value!r} is not a URL. Use one as in https://example.com.")
            return url
    return URL(default)


async def _access(service: str, region: str) -> _Access:
    assert BEDROCK.key_variable is not None
    if token := key_from_environment(BEDROCK.key_variable):
        return _Access({"Authorization": f"Bearer {token}"}, None)
    return _Access({}, await SigV4.find(service, region))


def _open_transport(headers: Headers, root: URL) -> Transport:
    return open_transport(root, headers, keep_alive=BEDROCK.keep_alive)


def _join(host: URL, path: str) -> URL:
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
        lanes=BEDROCK.lanes,
        unsupported_sampling=ignores,
        images=takes_images(BEDROCK, model),
        max_image_bytes=BEDROCK.max_image_bytes,
        max_image_side=BEDROCK.max_image_side,
        image_tokens=BEDROCK.image_tokens,
        detected=seen,
    )
