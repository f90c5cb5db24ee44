"""Object store behind a URL: lists, reads and writes whole objects, with retries and actionable errors."""

import errno
import io
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.safe_text import public_url
from ..schedule.retry import Backoff

_INSTALL = {
    "s3": "'batch-agent[s3]'",
    "s3a": "'batch-agent[s3]'",
    "gs": "'batch-agent[gcs]'",
    "gcs": "'batch-agent[gcs]'",
    "az": "'batch-agent[azure]'",
    "abfs": "'batch-agent[azure]'",
    "abfss": "'batch-agent[azure]'",
    "hf": "huggingface_hub",
}
_LOGIN = {
    "s3": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; a machine in AWS may have a role instead.",
    "gs": "Run gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS.",
    "az": "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or run az login.",
    "hf": "Set HF_TOKEN, or run hf auth login.",
}
_FAMILY = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}
_BUCKET_NAMES = {"az": "container", "hf": "dataset"}
_DEFINITE = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    ValueError,
    TypeError,
)
"""Errors that a retry does not change."""
_DEFINITE_NUMBERS = frozenset({errno.EINVAL, errno.ENOSPC, errno.EROFS})
_TRANSIENT_STATUSES = frozenset({408, 425, 429})
_DENIED, _MISSING = (401, 403), 404
_BACKOFF = Backoff(0.2, 15.0)
_TRIES = 8
"""Half a minute in total, in addition to the retries of the store's client library."""
_BLOCK_BYTES = 8 * 1024 * 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """An object, read in blocks on demand."""

    store: "StoreClient"
    url: str
    size: int

    @property
    def name(self) -> str:
        """Last part of the URL."""
        return self.url.rpartition("/")[2]

    def __str__(self) -> str:
        return self.url

    def open(self) -> io.BufferedReader:
        """Opens the object for reading. Blocks. Raises SpecError."""
        with self.store.translate_errors(self.url, "read"):
            opened = self.store.filesystem.open(self.url, "rb", block_size=_BLOCK_BYTES, cache_type="readahead")
        return io.BufferedReader(_Blocks(opened, self), 1024 * 1024)


class _Blocks(io.RawIOBase):
    """File of fsspec that raises SpecError."""

    def __init__(self, opened: Any, file: RemoteFile) -> None:
        self._opened = opened
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return cast(int, self._opened.seek(offset, whence))

    def tell(self) -> int:
        return cast(int, self._opened.tell())

    def readinto(self, buffer: Any) -> int:
        with self._file.store.translate_errors(self._file.url, "read"):
            found = self._opened.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        self._opened.close()
        super().close()


class StoreClient:
    """Client of the store in a URL. All methods block and raise SpecError."""

    def __init__(self, url: str, label: str = "", tries: int = _TRIES) -> None:
        """`label`: the option with the URL, for messages. `tries`: number of tries of each temporarily failing
        operation."""
        self._scheme = url.partition("://")[0].lower()
        self._family = _FAMILY.get(self._scheme, self._scheme)
        self._label = f"{label} " if label else ""
        self._tries = tries
        self.filesystem = self._open(url)

    def files(self, url: str) -> list[RemoteFile]:
        """Objects that match a pattern, in order of their names; with a trailing slash, all objects below a folder;
        otherwise the object with this name. Empty if there are none."""

        def find() -> list[RemoteFile]:
            if url.endswith("/"):
                found = self.filesystem.find(url, detail=True)
            else:
                found = self.filesystem.glob(url, detail=True)
            infos = [info for info in found.values() if info["type"] == "file" and not info["name"].endswith("/")]
            if not infos:
                self._check_bucket(url)
            return [self._file(info) for info in sorted(infos, key=lambda info: str(info["name"]))]

        return self._retried(find, url, "list")

    def read(self, url: str) -> bytes | None:
        """The bytes of an object; None if it does not exist."""

        def read() -> bytes | None:
            try:
                return cast(bytes, self.filesystem.cat_file(url))
            except FileNotFoundError:
                return None

        return self._retried(read, url, "read")

    def replace(self, url: str, data: bytes) -> None:
        """Writes an object. Readers see it as a whole, and until then the earlier one."""
        self._retried(lambda: self.filesystem.pipe_file(url, data), url, "write")

    def create(self, url: str, data: bytes) -> bool:
        """Writes an object if none has this name. Returns False if there is one with other data."""

        def create() -> bool:
            try:
                self.filesystem.pipe_file(url, data, mode="create")
            except FileExistsError:  # possibly by an earlier try whose response was lost
                return bool(self.filesystem.cat_file(url) == data)
            return True

        return self._retried(create, url, "write")

    def upload(self, path: Path, url: str) -> None:
        """Writes a file as an object. Readers see it as a whole or not at all. May be repeated."""
        self._retried(lambda: self.filesystem.put_file(str(path), url), url, "write")

    def download(self, url: str, path: Path) -> None:
        """Copies an object to a file."""
        self._retried(lambda: self.filesystem.get_file(url, str(path)), url, "read")

    def delete(self, urls: Iterable[str]) -> None:
        """Deletes objects. Ignores those that no longer exist."""
        for url in urls:
            self._retried(lambda url=url: self._delete(url), url, "delete")  # type: ignore[misc]

    @contextmanager
    def translate_errors(self, url: str, verb: str) -> Iterator[None]:
        """Translates errors of the client library to SpecError."""
        try:
            yield
        except SpecError:
            raise
        except Exception as error:
            raise SpecError(self._explain(url, verb, error)) from error

    def _open(self, url: str) -> Any:
        try:
            import fsspec.core

            return fsspec.core.url_to_fs(url)[0]
        except (ImportError, ValueError) as error:
            name = _INSTALL.get(self._scheme)
            if name is None:
                raise SpecError(f"{self._label}{public_url(url)!r} cannot be opened: {error}.") from error
            raise SpecError(
                f"{self._label}{public_url(url)!r} needs a package: pip install {name} ({error})."
            ) from None
        except Exception as error:
            raise SpecError(self._explain(url, "open", error)) from error

    def _file(self, info: dict[str, Any]) -> RemoteFile:
        return RemoteFile(self, f"{self._scheme}://{info['name'].lstrip('/')}", info["size"] or 0)

    def _check_bucket(self, url: str) -> None:
        """Raises FileNotFoundError for a missing bucket: adlfs lists it as an empty one, and s3fs finds nothing for a
        pattern in it."""
        bucket = f"{self._scheme}://{_bucket(url)}"
        if self._family == "az" and not self.filesystem.exists(bucket):
            raise FileNotFoundError(f"there is no container {_bucket(url)!r}")
        if self._family == "s3":
            with suppress(PermissionError):  # a user with access to a part of the bucket may not see the bucket
                self.filesystem.info(bucket)

    def _delete(self, url: str) -> None:
        try:
            self.filesystem.rm_file(url)
        except FileNotFoundError:
            return

    def _retried(self, call: Callable[[], T], url: str, verb: str) -> T:
        failures = 0
        while True:
            try:
                self.filesystem.invalidate_cache()  # an earlier listing would hide what was written since
                return call()
            except Exception as error:
                failures += 1
                if not is_transient(error) or failures >= self._tries:
                    raise SpecError(self._explain(url, verb, error)) from error
                time.sleep(_BACKOFF.jittered(failures - 1, random.random()))  # noqa: S311

    def _explain(self, url: str, verb: str, error: Exception) -> str:
        what = f"{self._label}{public_url(url)!r}"
        past = {"list": "listed", "read": "read", "write": "written", "delete": "deleted", "open": "opened"}[verb]
        if _lacks_credentials(error):
            return f"{what} cannot be {past}: there are no credentials. {_LOGIN.get(self._family, '')}".rstrip()
        status, text = _status(error), str(error)
        if status is not None and text:  # Azure's has the whole response after the first line
            text = text.splitlines()[0]
        reason = " ".join(text.split()).removesuffix(".") or type(error).__name__
        is_missing = isinstance(error, FileNotFoundError) or status == _MISSING
        match error:
            case _ if isinstance(error, PermissionError) or status in _DENIED:
                advice = "Check the credentials and their permissions."
            case _ if is_missing and verb in ("write", "list"):
                kind = _BUCKET_NAMES.get(self._family, "bucket")
                advice = f"Create the {kind} {_bucket(url)!r} first, or check its name."
            case _ if is_missing:
                advice = "It does not exist."
            case _ if is_transient(error):
                advice = "The store did not answer for a while: try again later."
            case _:
                advice = ""
        return f"{what} cannot be {past}: {reason}. {advice}".rstrip()


def is_transient(error: Exception) -> bool:
    """Whether a retry may help: after timeouts, lost connections, and for a store that is too busy."""
    if isinstance(error, _DEFINITE) or _lacks_credentials(error):
        return False
    status = _status(error)
    if status is not None and 400 <= status < 500 and status not in _TRANSIENT_STATUSES:
        return False
    return not (isinstance(error, OSError) and error.errno in _DEFINITE_NUMBERS)


def _bucket(url: str) -> str:
    """Name of the bucket; for a dataset on Hugging Face, `user/name`."""
    scheme, _, path = url.partition("://")
    return "/".join(path.split("/")[1:3]) if scheme == "hf" else path.partition("/")[0]


def _status(error: Exception) -> int | None:
    """HTTP status of an error, which each library stores in another place: azure-core, gcsfs, and huggingface_hub."""
    response = getattr(error, "response", None)
    found = (getattr(error, "status_code", None), getattr(error, "code", None), getattr(response, "status_code", None))
    return next((each for each in found if isinstance(each, int) and each >= 100), None)


def _lacks_credentials(error: BaseException) -> bool:
    """Whether an error means missing credentials. Each library has its own class: NoCredentialsError,
    DefaultCredentialsError, CredentialUnavailableError."""
    return any("Credential" in kind.__name__ for kind in type(error).__mro__)
