"""Errors of an OpenAI-compatible server."""

from typing import Any


class ApiError(Exception):
    """A refused request, with the HTTP status and the fields of OpenAI's error object."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}


def not_found(what: str, name: str, param: str = "id") -> ApiError:
    return ApiError(f"No such {what} object: {name}", 404, param=param)
