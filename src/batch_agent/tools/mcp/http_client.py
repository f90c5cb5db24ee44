"""HTTP client of an MCP session, which tells a lost session and an unavailable server from a failed tool call.

A server that was restarted does not know earlier sessions. The specification asks for status 404; the reference server
in TypeScript responds with 400, others with 400 and plain text. The SDK drops status and text, so both are read here
and passed on in the `data` of a JSON-RPC error. Imported only where `mcp` is installed.
"""

import json
from typing import Any

import httpx2
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, PARSE_ERROR

from .mcp_errors import MAX_MESSAGE_BYTES, McpRejection

_SESSION_HEADER = "mcp-session-id"
_SESSION_STATUSES = (400, 404, 410)
_SESSION_TERMS = ("session", "initiali")  # "Server not initialized"
_CALL_ERRORS = (METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR, PARSE_ERROR)
_UNAVAILABLE_STATUSES = (429, 502, 503, 504)
_MAX_MESSAGE_CHARS = 300
_CLOSE_SECONDS = 5.0
_MAX_ERROR_BYTES = 1024 * 1024


class SessionClient(httpx2.AsyncClient):
    """Client of one session. Proxies and certificates are those of the environment, as for any httpx client."""

    _is_rejected = False

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method == "DELETE":
            if self._is_rejected:  # the server does not know the session that would be closed
                return httpx2.Response(200, request=request)
            request.extensions["timeout"] = httpx2.Timeout(_CLOSE_SECONDS).as_dict()
        response = await super().send(request, **options)
        if request.method != "POST":
            return response
        if response.status_code < 400:
            return await _bounded(response, request)
        body = await _read(response, _MAX_ERROR_BYTES)
        if body is None:
            body = b"an explanation that is too long to be read"
        text = body.decode(errors="replace")
        rejection = rejection_of(response.status_code, text, in_session=_SESSION_HEADER in request.headers)
        if rejection is None:
            return _with_body(response, request, body)
        self._is_rejected = self._is_rejected or rejection.is_of_session
        return _error(response.status_code, request, rejection.message, rejection.as_data())


async def _bounded(response: httpx2.Response, request: httpx2.Request) -> httpx2.Response:
    """The response, or an error if its JSON is larger than MAX_MESSAGE_BYTES. The SDK would read it whole; it limits
    only the events of a stream."""
    if not response.headers.get("content-type", "").lower().startswith("application/json"):
        return response
    body = await _read(response, MAX_MESSAGE_BYTES)
    if body is None:
        return _error(413, request, f"the result is larger than {MAX_MESSAGE_BYTES:,} bytes: ask for less")
    return _with_body(response, request, body)


async def _read(response: httpx2.Response, limit: int) -> bytes | None:
    """The decoded body; None if it is larger than `limit`, in which case the rest is not read."""
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > limit:
            await response.aclose()
            return None
        parts.append(part)
    await response.aclose()
    return b"".join(parts)


def _with_body(response: httpx2.Response, request: httpx2.Request, body: bytes) -> httpx2.Response:
    """The response with a body that was read and decoded."""
    encoding_headers = ("content-encoding", "content-length", "transfer-encoding")
    headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in encoding_headers]
    return httpx2.Response(response.status_code, headers=headers, content=body, request=request)


def _error(status: int, request: httpx2.Request, message: str, data: Any = None) -> httpx2.Response:
    """An error that the SDK raises for the caller."""
    error = {"code": INTERNAL_ERROR, "message": message, "data": data}
    return httpx2.Response(status, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request)


def rejection_of(status: int, text: str, *, in_session: bool) -> McpRejection | None:
    """Classifies a response of status 400 or above; None if the server's JSON-RPC error explains it."""
    code, detail = _json_rpc_error(text)
    message = f"HTTP {status}: {detail.strip()[:_MAX_MESSAGE_CHARS] or 'no explanation'}"
    if in_session and status in _SESSION_STATUSES and code not in _CALL_ERRORS:
        names_session = any(term in detail.lower() for term in _SESSION_TERMS)
        return McpRejection(message, is_of_session=True, is_certain=status != 400 or names_session)
    if status in _UNAVAILABLE_STATUSES and code is None:
        return McpRejection(message, is_of_session=False, is_certain=status in (429, 503))
    return None


def _json_rpc_error(text: str) -> tuple[int | None, str]:
    """Code and message of a JSON-RPC error, which may lack an `id`; (None, `text`) for anything else."""
    try:
        error = json.loads(text)["error"]
        return int(error["code"]), str(error["message"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None, text
