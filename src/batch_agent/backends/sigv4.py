"""AWS request signing (SigV4) with botocore, which also finds the credentials."""

import asyncio
import logging
from typing import TYPE_CHECKING

from yarl import URL

from ..core.errors import BackendError, ErrorKind, SpecError
from .dialects.bedrock.decoder import NEEDS_BOTOCORE
from .http.transport import Headers

if TYPE_CHECKING:
    from botocore.credentials import Credentials, ReadOnlyCredentials  # type: ignore[import-untyped]

_SIGNED = {"Content-Type": "application/json"}
_CREDENTIALS_HELP = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or a Bedrock API key in "
    "AWS_BEARER_TOKEN_BEDROCK; or log in with aws sso login."
)


class SigV4:
    """Signs requests to one service in one region. Safe to use from many tasks at once."""

    def __init__(self, credentials: "Credentials", service: str, region: str) -> None:
        self._credentials = credentials
        self._service = service
        self._region = region
        log = logging.getLogger("botocore.auth")
        if log.level == logging.NOTSET:  # at DEBUG it logs what it signs, including session tokens
            log.setLevel(logging.INFO)

    @classmethod
    async def find(cls, service: str, region: str) -> "SigV4":
        """A signer with the credentials of this machine. Raises SpecError if botocore or credentials are missing."""
        return cls(await asyncio.to_thread(_find_credentials), service, region)

    async def sign(self, method: str, url: URL, body: bytes) -> Headers:
        """The signed headers. Blocks only while expiring credentials are refreshed. Raises BackendError if that
        fails."""
        from botocore.auth import SigV4Auth  # type: ignore[import-untyped]
        from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]

        request = AWSRequest(method, str(url), headers=_SIGNED, data=body)
        SigV4Auth(await self._current(), self._service, self._region).add_auth(request)
        return dict(request.headers.items())

    async def _current(self) -> "ReadOnlyCredentials":
        from botocore.credentials import RefreshableCredentials
        from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

        found = self._credentials
        if not isinstance(found, RefreshableCredentials) or not found.refresh_needed():
            return found.get_frozen_credentials()
        try:
            return await asyncio.to_thread(
                found.get_frozen_credentials
            )  # refreshed by one thread, under botocore's lock
        except (BotoCoreError, ClientError, RuntimeError, OSError) as error:
            raise BackendError(ErrorKind.AUTH, f"The AWS credentials could not be refreshed: {error}") from error


def _find_credentials() -> "Credentials":
    """Reads files, and may query a metadata service."""
    try:
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.session import Session  # type: ignore[import-untyped]
    except ImportError as error:
        raise SpecError(NEEDS_BOTOCORE) from error
    try:
        found = Session().get_credentials()
        if found is not None:
            found.get_frozen_credentials()
    except (BotoCoreError, ClientError, RuntimeError, OSError) as error:
        raise SpecError(f"The AWS credentials cannot be used: {error} {_CREDENTIALS_HELP}") from error
    if found is None:
        raise SpecError(f"No AWS credentials found for bedrock://. {_CREDENTIALS_HELP}")
    return found
