"""Errors of invalid requests, with vLLM's texts where a client may parse them."""


class RequestError(Exception):
    """An invalid request, with the status and message of the response.

    vLLM detects some errors after it has begun the stream: those are `late`, and sent in the stream."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
        *,
        late: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.late = late


def unknown_model(model: object) -> RequestError:
    return RequestError(f"The model `{model}` does not exist.", 404, "NotFoundError", "model")


def invalid(message: str, param: str) -> RequestError:
    """A body without the fields of its route."""
    return RequestError(f"1 validation error:\n  {message}", kind="Bad Request", param=param)


def too_long(context: int, prompt_tokens: int, output_tokens: int) -> RequestError:
    return RequestError(
        f"This model's maximum context length is {context} tokens. However, you requested {output_tokens} output "
        f"tokens and your prompt contains at least {prompt_tokens} input tokens, for a total of at least "
        f"{prompt_tokens + output_tokens} tokens. Please reduce the length of the input prompt or the number of "
        "requested output tokens.",
        param="input_tokens",
    )
