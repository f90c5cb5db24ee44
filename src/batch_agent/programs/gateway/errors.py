"""Why a program gets no answer."""

import re
from typing import assert_never

from ...core.errors import BackendError, BatchAgentError, ErrorKind
from ...core.run_failure import RunStopped

_ADDRESS = re.compile(r"(?:[a-z][a-z0-9+.-]*://[^\s'\"<>]*[^\s'\"<>.,;:)\]])", re.IGNORECASE)


class GatewayError(BatchAgentError):
    """A request that is not answered; the message is for the program that made it."""

    def __init__(
        self, message: str, *, status: int = 400, code: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        """As OpenAI names it, where programs look for that name."""
        self.retry_after = retry_after
        """Seconds, where the server named them."""


def gateway_error_for(error: BatchAgentError) -> GatewayError:
    """An error of the run's backend, for the program whose request came to it.

    Its status says whose fault it is. The address of the backend stays with us, and so does what a failed connection
    says, which holds addresses in many forms. A context overflow is said in the words by which programs know that they
    have to shorten the conversation: those of Anthropic, which Claude Code, OpenCode and pi look for, and those of
    llama.cpp, which LiteLLM does."""
    if not isinstance(error, BackendError | RunStopped):
        return GatewayError(_without_addresses(str(error)))
    said = _without_addresses(str(error))
    retry_after = error.retry_after if isinstance(error, BackendError) else None
    match error.kind:
        case ErrorKind.CONTEXT_OVERFLOW:
            message = f"prompt is too long: it exceeds the available context size. {said}"
            return GatewayError(message, code="context_length_exceeded")
        case ErrorKind.BAD_REQUEST | ErrorKind.BAD_INPUT | ErrorKind.REFUSED:
            return GatewayError(said)
        case ErrorKind.MAX_TURNS | ErrorKind.BUDGET | ErrorKind.AGENT_TIMEOUT:
            return GatewayError(said)  # no later request of this agent is answered either
        case ErrorKind.RATE_LIMITED:
            return GatewayError(said, status=429, code="rate_limit_exceeded", retry_after=retry_after)
        case ErrorKind.TURN_TIMEOUT:
            return GatewayError(said, status=504)
        case ErrorKind.UNAVAILABLE:
            return GatewayError("The model's server cannot be reached.", status=503, retry_after=retry_after)
        case ErrorKind.CONNECTION:
            return GatewayError("The connection to the model's server broke before the answer was whole.", status=502)
        case ErrorKind.TLS:
            return GatewayError("There is no secure connection to the model's server.", status=502)
        case ErrorKind.AUTH:
            return GatewayError("The model's server does not take the key of this run.", status=502)
        case ErrorKind.NOT_FOUND | ErrorKind.SERVER | ErrorKind.TRUNCATED | ErrorKind.INVALID_OUTPUT:
            return GatewayError(said, status=502)
        case ErrorKind.PROGRAM | ErrorKind.CALLBACK | ErrorKind.INPUTS | ErrorKind.OUT | ErrorKind.INTERNAL:
            return GatewayError(said, status=500)
        case kind:
            assert_never(kind)


def _without_addresses(text: str) -> str:
    return _ADDRESS.sub("the model's server", text)
