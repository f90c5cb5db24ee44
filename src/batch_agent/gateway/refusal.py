"""Why a program gets no answer."""

from ..core.errors import BackendError, BatchAgentError, ErrorKind


class Refused(BatchAgentError):
    """A request that is not answered; the message is for the program that made it."""

    def __init__(self, message: str, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        """As OpenAI names it, where programs look for that name."""


def refusal_of(error: BatchAgentError) -> Refused:
    """What could be tried again has been: with 400 the program does not try by itself. A context overflow is said in
    the words by which programs know that they have to shorten the conversation: those of Anthropic, which Claude Code,
    OpenCode and pi look for, and those of llama.cpp, which LiteLLM does."""
    if isinstance(error, BackendError) and error.kind is ErrorKind.CONTEXT_OVERFLOW:
        message = f"prompt is too long: it exceeds the available context size. {error}"
        return Refused(message, code="context_length_exceeded")
    return Refused(str(error))
