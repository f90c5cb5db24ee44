"""Amazon Bedrock's wire format on loopback: signed requests in, Converse answers and binary event streams out.

botocore stands on both sides of it: it checks each signature here, and
tests/unit/backends/dialects/bedrock/test_conformance.py reads these answers with botocore's own client."""

import struct
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote
from zlib import crc32

import orjson
import pytest
from aiohttp import web
from botocore.auth import SigV4Auth  # type: ignore[import-untyped]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.credentials import Credentials  # type: ignore[import-untyped]

KEY, SECRET, TOKEN = "AKIDEXAMPLE", "wJalrXUtnFEMI+secret", "FwoGZXIvYXdzEXAMPLETOKEN"
BEARER = "bedrock-api-key-EXAMPLE"
Block = dict[str, Any]


@dataclass
class Said:
    """What the model says, as content blocks."""

    blocks: Sequence[Block]
    stop: str = "end_turn"
    usage: dict[str, int] = field(default_factory=lambda: {"inputTokens": 7, "outputTokens": 3, "totalTokens": 10})
    breaks: Literal["", "exception", "error", "cut", "checksum"] = ""
    """How the stream fails after its first half."""


@dataclass
class Fault:
    status: int
    name: str
    message: str
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Heard:
    method: str
    path: str
    """As it came, still percent-encoded."""
    headers: dict[str, str]
    raw: bytes

    @property
    def model(self) -> str:
        """As the service reads it: one segment of the path, decoded once."""
        _, root, model, _operation = self.path.split("/")
        assert root == "model"
        return unquote(model)

    @property
    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = orjson.loads(self.raw)
        return body


Answer = Callable[[Heard], Said | Fault | web.Response]


@dataclass
class BedrockServer:
    url: str
    heard: list[Heard] = field(default_factory=list)


@asynccontextmanager
async def bedrock_server(answer: Answer, service: str = "bedrock") -> AsyncIterator[BedrockServer]:
    """Answers whoever shows the bearer token, or a signature with the secret that is right for `service`."""

    async def serve(request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        heard = Heard(request.method, request.raw_path, headers, await request.read())
        server.heard.append(heard)
        if problem := _access_problem(heard, service):
            return _fault(Fault(403, *problem))
        said = answer(heard)
        if isinstance(said, web.Response):
            return said
        if isinstance(said, Fault):
            return _fault(said)
        return await _stream(request, said) if heard.path.endswith("/converse-stream") else _plain(said)

    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server = BedrockServer(f"http://127.0.0.1:{runner.addresses[0][1]}")
        yield server
    finally:
        await runner.cleanup()


def use_keys(patch: pytest.MonkeyPatch, url: str = "", *, token: str = "", service: str = "BEDROCK_RUNTIME") -> None:
    """The environment of somebody with these keys, and with nothing else to find on this machine."""
    for name in ("AWS_BEARER_TOKEN_BEDROCK", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        patch.delenv(name, raising=False)
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    patch.setenv("AWS_CONFIG_FILE", "/nowhere")
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    patch.setenv("AWS_ACCESS_KEY_ID", KEY)
    patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    patch.setenv("AWS_SESSION_TOKEN", token)
    if url:
        patch.setenv(f"AWS_ENDPOINT_URL_{service}", url)


def frame(payload: Any, **headers: str) -> bytes:
    """One event-stream message. Header names are given without their colon, with _ for -."""
    named = {f":{name.replace('_', '-')}": value for name, value in headers.items()}
    return raw_frame(named, payload if isinstance(payload, bytes) else orjson.dumps(payload))


def raw_frame(headers: dict[str, str], payload: bytes) -> bytes:
    lines = b"".join(
        struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", 7, len(value.encode())) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", 16 + len(lines) + len(payload), len(lines))
    message = prelude + struct.pack("!I", crc32(prelude)) + lines + payload
    return message + struct.pack("!I", crc32(message))


def event(name: str, payload: Any) -> bytes:
    return frame(payload, event_type=name, content_type="application/json", message_type="event")


def exception(name: str, message: str) -> bytes:
    said = {"message": message}
    return frame(said, exception_type=name, content_type="application/json", message_type="exception")


def events(said: Said) -> Iterator[bytes]:
    """A streamed answer as the service cuts it: a text and the input of a call in pieces."""
    yield event("messageStart", {"role": "assistant"})
    for index, block in enumerate(said.blocks):
        if "toolUse" in block:
            use = {"toolUseId": block["toolUse"]["toolUseId"], "name": block["toolUse"]["name"]}
            yield event("contentBlockStart", {"contentBlockIndex": index, "start": {"toolUse": use}})
        for delta in _deltas(block):
            yield event("contentBlockDelta", {"contentBlockIndex": index, "delta": delta})
        yield event("contentBlockStop", {"contentBlockIndex": index})
    yield event("messageStop", {"stopReason": said.stop})
    yield event("metadata", {"usage": said.usage, "metrics": {"latencyMs": 5}})


def _deltas(block: Block) -> Iterator[Block]:
    match block:
        case {"text": text}:
            yield from ({"text": piece} for piece in _halves(text))
        case {"toolUse": use}:
            yield from ({"toolUse": {"input": piece}} for piece in _halves(orjson.dumps(use["input"]).decode()))
        case {"reasoningContent": {"reasoningText": thought}}:
            yield from ({"reasoningContent": {"text": piece}} for piece in _halves(thought["text"]))
            yield {"reasoningContent": {"signature": thought["signature"]}}
        case {"reasoningContent": redacted}:
            yield {"reasoningContent": redacted}


def _halves(text: str) -> list[str]:
    return [text[: len(text) // 2], text[len(text) // 2 :]]


def _plain(said: Said) -> web.Response:
    message = {"role": "assistant", "content": list(said.blocks)}
    body = {"output": {"message": message}, "stopReason": said.stop, "usage": said.usage, "metrics": {"latencyMs": 5}}
    return web.Response(body=orjson.dumps(body), content_type="application/json")


async def _stream(request: web.Request, said: Said) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/vnd.amazon.eventstream"})
    await response.prepare(request)
    frames = list(events(said))
    if said.breaks:
        frames = frames[: len(frames) // 2]
    for number, data in enumerate(frames):
        is_last = number == len(frames) - 1
        await response.write(data[:-1] + bytes([data[-1] ^ 1]) if is_last and said.breaks == "checksum" else data)
    if said.breaks == "exception":
        await response.write(exception("throttlingException", "Too many tokens, please wait."))
    if said.breaks == "error":
        await response.write(frame(b"", message_type="error", error_code="InternalFailure", error_message="Oh no."))
    if said.breaks == "cut" and request.transport is not None:
        request.transport.close()
    return response


def _fault(fault: Fault) -> web.Response:
    headers = {"x-amzn-ErrorType": f"{fault.name}:http://internal.amazon.com/", **fault.headers}
    body = orjson.dumps({"message": fault.message})
    return web.Response(status=fault.status, body=body, headers=headers, content_type="application/json")


def _access_problem(heard: Heard, service: str) -> tuple[str, str] | None:
    shown = heard.headers.get("authorization", "")
    if shown == f"Bearer {BEARER}":
        return None
    if not shown.startswith(f"AWS4-HMAC-SHA256 Credential={KEY}/"):
        return "UnrecognizedClientException", "The security token included in the request is invalid."
    told, right = shown.rpartition("Signature=")[2], signature(heard, service, "us-east-1")
    if told == right:
        return None
    # As the service does, it tells what it has signed: the session's token is a part of that.
    return "InvalidSignatureException", f"The signature does not match. Headers: {heard.headers}"


def signature(heard: Heard, service: str, region: str) -> str:
    """The right one for what came, by botocore."""
    listed = heard.headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    assert "host" in listed
    url = f"http://{heard.headers['host']}{heard.path}"
    request = AWSRequest(heard.method, url, {name: heard.headers[name] for name in listed}, heard.raw)
    request.context["timestamp"] = heard.headers["x-amz-date"]
    signer = SigV4Auth(Credentials(KEY, SECRET), service, region)
    right: str = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    return right
