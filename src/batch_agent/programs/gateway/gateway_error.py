"""Errors that programs receive from the gateway."""

import re
from typing import assert_never

from ...core.errors import BackendError, BatchAgentError, ErrorKind
from ...core.run_failure import RunStopped

_ADDRESS = re.compile(r"(?:[a-z][a-z0-9+.-]*://[^\s'\"<>]*[^\s'\"<>.,;:)\]])", re.IGNORECASE)


class GatewayError(BatchAgentError):
    """A rejected or failed request; the message is for the program that sent it."""

    def __init__(
        self, message: str, *, status: int = 400, code: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        """OpenAI's error code, for errors by whose code programs react."""
        self.retry_after = retry_after
        """Seconds, if the server gave a value."""


def gateway_error_for(error: BatchAgentError) -> GatewayError:
    """Translates an error of the run's backend for the program whose request caused it.

    The status tells which side is at fault. The backend's address is removed, as is the message of a failed connection,
    which contains addresses in many forms. A context overflow is reported with the phrases by which programs detect
    that they must shorten the conversation: Anthropic's for Claude Code, OpenCode and pi, llama.cpp's for LiteLLM."""
    if not isinstance(error, BackendError | RunStopped):
        return GatewayError(_without_addresses(str(error)))
    message = _without_addresses(str(error))
    retry_after = error.retry_after if isinstance(error, BackendError) else None
    match error.kind:
        case ErrorKind.CONTEXT_OVERFLOW:
            overflow = f"prompt is too long: it exceeds the available context size. {message}"
            return GatewayError(overflow, code="context_length_exceeded")
        case ErrorKind.BAD_REQUEST | ErrorKind.BAD_INPUT | ErrorKind.REFUSED:
            return GatewayError(message)
        case ErrorKind.MAX_TURNS | ErrorKind.BUDGET | ErrorKind.AGENT_TIMEOUT:
            return GatewayError(message)  # every later request of this agent fails too
        case ErrorKind.RATE_LIMITED | ErrorKind.CAPACITY:
            return GatewayError(message, status=429, code="rate_limit_exceeded", retry_after=retry_after)
        case ErrorKind.TURN_TIMEOUT:
            return GatewayError(message, status=504)
        case ErrorKind.UNAVAILABLE:
            return GatewayError("The model's server cannot be reached.", status=503, retry_after=retry_after)
        case ErrorKind.CONNECTION:
            return GatewayError(
                "The connection to the model's server was lost before the response was complete.", status=502
            )
        case ErrorKind.TLS:
            return GatewayError("No secure connection to the model's server could be made.", status=502)
        case ErrorKind.AUTH:
            return GatewayError("The model's server rejected the API key of this run.", status=502)
        case ErrorKind.NOT_FOUND | ErrorKind.SERVER | ErrorKind.TRUNCATED | ErrorKind.INVALID_OUTPUT:
            return GatewayError(message, status=502)
        case ErrorKind.PROGRAM | ErrorKind.CALLBACK | ErrorKind.INPUTS | ErrorKind.OUT | ErrorKind.INTERNAL:
            return GatewayError(message, status=500)
        case ErrorKind.RUNNING | ErrorKind.INTERRUPTED | ErrorKind.NOT_STARTED | ErrorKind.CANCELLED:
            return GatewayError(message, status=500)  # kinds of results: no request fails with them
        case kind:
            assert_never(kind)


def _without_addresses(text: str) -> str:
    return _ADDRESS.sub("the model's server", text)
