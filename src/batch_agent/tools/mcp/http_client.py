"""HTTP client of an MCP session. It tells a refused session and an unavailable server from a failed tool call.

Servers that were restarted do not know the session of an earlier life. The specification asks them for 404; the
reference server in TypeScript answers 400, others 400 with plain text. The SDK keeps neither status nor text, so both
are read here and passed on in the `data` of a JSON-RPC error. Imported only where `mcp` is installed.
"""

import json
from typing import Any

import httpx2
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, PARSE_ERROR

from .errors import LARGEST_MESSAGE, McpRejection

_SESSION_HEADER = "mcp-session-id"
_SESSION_STATUSES = (400, 404, 410)
_SESSION_WORDS = ("session", "initiali")  # "Server not initialized"
_CALL_ERRORS = (METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR, PARSE_ERROR)
_UNAVAILABLE_STATUSES = (429, 502, 503, 504)
_SHOWN_CHARACTERS = 300
_FAREWELL_SECONDS = 5.0
_LARGEST_REFUSAL = 1024 * 1024


class SessionClient(httpx2.AsyncClient):
    """Client of one session. Proxies and certificates are those of the environment, as for any httpx client."""

    _is_refused = False

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method == "DELETE":
            if self._is_refused:  # the server does not know the session that would be ended
                return httpx2.Response(200, request=request)
            request.extensions["timeout"] = httpx2.Timeout(_FAREWELL_SECONDS).as_dict()
        response = await super().send(request, **options)
        if request.method != "POST":
            return response
        if response.status_code < 400:
            return await _bounded(response, request)
        body = await _read(response, _LARGEST_REFUSAL)
        if body is None:
            body = b"an explanation that is too long to be read"
        text = body.decode(errors="replace")
        refusal = refusal_of(response.status_code, text, in_session=_SESSION_HEADER in request.headers)
        if refusal is None:
            return _with_body(response, request, body)
        self._is_refused = self._is_refused or refusal.is_of_session
        return _error(response.status_code, request, refusal.message, refusal.as_data())


async def _bounded(response: httpx2.Response, request: httpx2.Request) -> httpx2.Response:
    """The response as it is, or an error where its JSON is larger than LARGEST_MESSAGE. The SDK would read it whole; of
    a stream of events it bounds each itself."""
    if not response.headers.get("content-type", "").lower().startswith("application/json"):
        return response
    body = await _read(response, LARGEST_MESSAGE)
    if body is None:
        return _error(413, request, f"the result is larger than {LARGEST_MESSAGE:,} bytes: ask for less")
    return _with_body(response, request, body)


async def _read(response: httpx2.Response, most: int) -> bytes | None:
    """The body, unpacked; None for one that is larger, of which the rest is not read."""
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > most:
            await response.aclose()
            return None
        parts.append(part)
    await response.aclose()
    return b"".join(parts)


def _with_body(response: httpx2.Response, request: httpx2.Request, body: bytes) -> httpx2.Response:
    """The response with a body that was read, which is packed no more."""
    packed = ("content-encoding", "content-length", "transfer-encoding")
    headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in packed]
    return httpx2.Response(response.status_code, headers=headers, content=body, request=request)


def _error(status: int, request: httpx2.Request, message: str, data: Any = None) -> httpx2.Response:
    """As the SDK gives it to whoever waits for the answer."""
    error = {"code": INTERNAL_ERROR, "message": message, "data": data}
    return httpx2.Response(status, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request)


def refusal_of(status: int, text: str, *, in_session: bool) -> McpRejection | None:
    """What a response of status 400 or above means; None where the server's JSON-RPC error says it."""
    code, words = _json_rpc_error(text)
    message = f"HTTP {status}: {words.strip()[:_SHOWN_CHARACTERS] or 'no explanation'}"
    if in_session and status in _SESSION_STATUSES and code not in _CALL_ERRORS:
        names_session = any(word in words.lower() for word in _SESSION_WORDS)
        return McpRejection(message, is_of_session=True, is_certain=status != 400 or names_session)
    if status in _UNAVAILABLE_STATUSES and code is None:
        return McpRejection(message, is_of_session=False, is_certain=status in (429, 503))
    return None


def _json_rpc_error(text: str) -> tuple[int | None, str]:
    """The code and message of an error; (None, the text itself) for anything else. Servers leave out `id`."""
    try:
        error = json.loads(text)["error"]
        return int(error["code"]), str(error["message"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None, text
