"""HTTP client of an MCP session. It tells a refused session and an unavailable server from a failed tool call.

Servers that were restarted do not know the session of an earlier life. The specification asks them for 404; the
reference server in TypeScript answers 400, others 400 with plain text. The SDK keeps neither status nor text, so both
are read here and passed on in the `data` of a JSON-RPC error. Imported only where `mcp` is installed.
"""

import json
from typing import Any

import httpx2
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, PARSE_ERROR

from .errors import Refusal

_SESSION_HEADER = "mcp-session-id"
_SESSION_STATUSES = (400, 404, 410)
_SESSION_WORDS = ("session", "initiali")  # "Server not initialized"
_CALL_ERRORS = (METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR, PARSE_ERROR)
_UNAVAILABLE_STATUSES = (429, 502, 503, 504)
_SHOWN_CHARACTERS = 300
_FAREWELL_SECONDS = 5.0


class SessionClient(httpx2.AsyncClient):
    """Client of one session. Proxies and certificates are those of the environment, as for any httpx client."""

    _is_refused = False

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method == "DELETE":
            if self._is_refused:  # the server does not know the session that would be ended
                return httpx2.Response(200, request=request)
            request.extensions["timeout"] = httpx2.Timeout(_FAREWELL_SECONDS).as_dict()
        response = await super().send(request, **options)
        if request.method != "POST" or response.status_code < 400:
            return response
        text = (await response.aread()).decode(errors="replace")
        refusal = refusal_of(response.status_code, text, in_session=_SESSION_HEADER in request.headers)
        if refusal is None:
            return response
        self._is_refused = self._is_refused or refusal.is_of_session
        error = {"code": INTERNAL_ERROR, "message": refusal.message, "data": refusal.as_data()}
        body = {"jsonrpc": "2.0", "id": None, "error": error}
        return httpx2.Response(response.status_code, json=body, request=request)


def refusal_of(status: int, text: str, *, in_session: bool) -> Refusal | None:
    """What a response of status 400 or above means; None where the server's JSON-RPC error says it."""
    code, words = _json_rpc_error(text)
    message = f"HTTP {status}: {words.strip()[:_SHOWN_CHARACTERS] or 'no explanation'}"
    if in_session and status in _SESSION_STATUSES and code not in _CALL_ERRORS:
        names_session = any(word in words.lower() for word in _SESSION_WORDS)
        return Refusal(message, is_of_session=True, is_certain=status != 400 or names_session)
    if status in _UNAVAILABLE_STATUSES and code is None:
        return Refusal(message, is_of_session=False, is_certain=status in (429, 503))
    return None


def _json_rpc_error(text: str) -> tuple[int | None, str]:
    """The code and message of an error; (None, the text itself) for anything else. Servers leave out `id`."""
    try:
        error = json.loads(text)["error"]
        return int(error["code"]), str(error["message"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None, text
