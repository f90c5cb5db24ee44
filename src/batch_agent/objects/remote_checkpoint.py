"""Checkpoint in an object store: a directory on this machine that is uploaded at intervals and at the end.

A checkpoint is a SQLite database, which needs a file system. The store has generations of it:

- `data-000007-OWNER.tar.gz`: the directory as it was, with a consistent copy of the database;
- `state-000007.json`: which data belongs to the generation, and which process wrote it.

A state is created only if there is none of its number, so that of two processes that upload, one learns that it is no
longer the owner, and stops. The next process takes the latest generation, and with it the ownership.
"""

import asyncio
import glob
import os
import re
import shutil
import socket
import sqlite3
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..aio import exit_in_thread, ungrouped
from ..atomic_file import DRAFT, atomic_write, make_private_dir, open_private, try_lock
from ..core.errors import SpecError, StoreError
from ..core.fast_dataclass import dataclass
from ..core.json import dumps, loads
from .store_client import StoreClient

_INTERVAL = 60.0
_MAX_TIME_SHARE = 0.1
"""Maximum share of the time for uploads: a large checkpoint is uploaded less often."""
_STATE = re.compile(r"state-(\d{6,})\.json$")
_DATABASE = ".sqlite3"
_NOT_COPIED = (".lock", ".sock", "-wal", "-shm", ".syncs", DRAFT)
"""Suffixes of files that are meaningful only on this machine. Without run.syncs, an older database is not an error."""
_OWN_STATE = "copy.json"
"""File that names the generation from which the directory on this machine continues."""
_REPORT = "report.html"
_MAX_NAME = 60
"""In characters, which may take four bytes each; file systems accept 255 bytes."""
_CLAIM_TRIES = 50
_READ_ONLY = frozenset({"hf"})

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Generation:
    """State of a checkpoint in the store."""

    number: int
    owner: str
    data: str | None
    """Name of the object with the directory; None before the first upload."""
    host: str
    is_ended: bool

    def to_json(self) -> bytes:
        return dumps({"owner": self.owner, "data": self.data, "host": self.host, "ended": self.is_ended, "version": 1})


class RemoteCheckpoint:
    """Local directory of a checkpoint whose URL is in an object store.

    `with copy: ...` downloads it, unless this machine has the latest one, and takes the ownership. It uploads while the
    block runs, and once more at its end. Methods block. Raises SpecError for an unreachable store, and StoreError if
    another process on this machine uses the checkpoint."""

    def __init__(self, url: str, notify: Notify, label: str = "checkpoint_dir") -> None:
        scheme = url.partition("://")[0].lower()
        if scheme in _READ_ONLY:
            raise SpecError(
                f"{label} {url!r}: {scheme}:// cannot create an object only if there is none, which keeps two runs "
                "apart. Use s3://, gs:// or az://, or a directory on this machine."
            )
        self.url = f"{url.rstrip('/')}/"
        self.directory = local_directory(self.url)
        self._notify = notify
        self._store = StoreClient(self.url, label)
        self._owner = os.urandom(8).hex()
        self._latest = _Generation(0, "", None, "", True)
        self._lock: int | None = None
        self._is_as_uploaded = False
        """Whether the local directory is exactly the latest generation."""
        self._uploaded: object = None
        """Signature of the files at the last upload."""
        self._is_closing = threading.Event()
        self._lost: StoreError | None = None
        self._when_lost: Callable[[], object] | None = None
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._take_lock()
        try:
            found = self._claim()
            if found is None:  # also if someone has deleted it to start over
                _clear(self.directory)
            else:
                self._take_over(found)
            with atomic_write(self.directory / _OWN_STATE, is_private=True) as file:
                file.write(dumps({"owner": self._owner, "url": self.url}))
        except BaseException:
            self._release_lock()
            raise
        self._uploaded = self._signature() if self._latest.data is not None and self._is_as_uploaded else None
        self._thread = threading.Thread(target=self._upload_until_closed, name="batch-agent-checkpoint", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Uploads what is new. If that fails, reports where the checkpoint is, and does not raise: the results of the
        run must not be lost."""
        self._is_closing.set()
        if self._thread is not None:
            self._thread.join()
        try:
            if self._lost is None:
                self._upload(is_ended=True)
                if (report := self.directory / _REPORT).exists():  # to be opened without this program
                    self._store.upload(report, self.url + _REPORT)
        except (SpecError, StoreError) as problem:
            self._notify(f"{problem} The checkpoint is complete in {str(self.directory)!r}: run again to upload it.")
        finally:
            self._release_lock()

    @asynccontextmanager
    async def guard(self) -> AsyncIterator[None]:
        """Cancels the block and raises StoreError as soon as another process has taken the checkpoint."""
        loop, lost = asyncio.get_running_loop(), asyncio.Event()

        async def watch() -> None:
            await lost.wait()
            assert self._lost is not None
            raise self._lost

        with self._guard:
            self._when_lost = lambda: loop.call_soon_threadsafe(lost.set)
            if self._lost is not None:
                lost.set()
        try:
            with ungrouped():
                async with asyncio.TaskGroup() as tasks:
                    watching = tasks.create_task(watch())
                    yield
                    watching.cancel()
        finally:
            with self._guard:
                self._when_lost = None

    def _take_lock(self) -> None:
        make_private_dir(self.directory)
        file = open_private(self.directory / "copy.lock", os.O_RDWR)
        is_locked: bool | None = None
        with suppress(OSError):  # a file system without locks
            is_locked = try_lock(file)
        if is_locked is False:
            os.close(file)
            raise StoreError(
                f"Another run on this machine is using the checkpoint {self.url!r}. Wait until it ends, or use another "
                "checkpoint_dir."
            )
        self._lock = file

    def _release_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _claim(self) -> _Generation | None:
        """Takes the ownership of the latest generation, and returns that generation. Its owner may upload the next one
        meanwhile, which is then the latest. Raises StoreError if other processes are always faster."""
        for _ in range(_CLAIM_TRIES):
            found = find_latest(self._store, self.url)
            self._latest = found or _Generation(0, "", None, "", True)
            if self._create_state(self._latest.data, is_ended=False):
                return found
        raise StoreError(f"Other runs keep taking the checkpoint {self.url!r}. Use another checkpoint_dir.")

    def _take_over(self, found: _Generation) -> None:
        """Makes the local directory continue from the generation."""
        if not found.is_ended:
            self._notify(
                f"The last run with the checkpoint {self.url!r}, on {found.host}, did not end: continuing from what it "
                "uploaded. If it is still running, it stops at its next upload."
            )
        own = _read_json(self.directory / _OWN_STATE)
        if own is not None and own.get("owner") == found.owner:  # its changes after the upload are here
            return
        _clear(self.directory)
        if found.data is not None:
            _unpack(self._store, self.url + found.data, self.directory)
        self._is_as_uploaded = True

    def _upload_until_closed(self) -> None:
        """Uploads in the thread."""
        pause = _INTERVAL
        while not self._is_closing.wait(pause):
            began = time.monotonic()
            try:
                self._upload(is_ended=False)
            except StoreError:  # lost
                return
            except SpecError as error:
                self._notify(f"{error} The run continues; the checkpoint is uploaded when the store answers again.")
            pause = max(_INTERVAL, (time.monotonic() - began) * (1 / _MAX_TIME_SHARE - 1))

    def _upload(self, *, is_ended: bool) -> None:
        """Uploads the directory if it has changed. Raises SpecError, and StoreError if the ownership is lost."""
        signature = self._signature()
        data = self._latest.data
        if signature != self._uploaded:
            data = f"data-{self._latest.number + 1:06}-{self._owner}.tar.gz"
            with tempfile.TemporaryDirectory(prefix="batch-agent-") as folder:
                archive = Path(folder, "data.tar.gz")
                _pack(self.directory, archive, Path(folder))
                self._store.upload(archive, self.url + data)
        elif not is_ended:
            return
        if not self._create_state(data, is_ended=is_ended):
            self._lose(data)
        self._uploaded = signature

    def _create_state(self, data: str | None, *, is_ended: bool) -> bool:
        """Creates the next generation and deletes earlier ones. Returns False if another process has created it."""
        state = _Generation(self._latest.number + 1, self._owner, data, socket.gethostname(), is_ended)
        name = f"{self.url}state-{state.number:06}.json"
        if not self._store.create(name, state.to_json()):
            return False
        latest = max(_numbered_states(self._store, self.url), default=0)
        if latest > state.number:  # another process has a later one, and has deleted this number
            self._store.delete([name])
            return False
        self._latest = state
        self._delete_earlier()
        return True

    def _lose(self, data: str | None) -> None:
        if data is not None and self._owner in data:
            with suppress(SpecError):
                self._store.delete([self.url + data])
        error = StoreError(
            f"Another run has taken over the checkpoint {self.url!r}: this one stops, so no agent is billed twice. "
            "What it did since its last upload is not in the checkpoint."
        )
        (self.directory / _OWN_STATE).unlink(missing_ok=True)  # the next run on this machine takes the other's state
        with self._guard:
            self._lost = error
            if self._when_lost is not None:
                with suppress(RuntimeError):  # the loop is closed
                    self._when_lost()
        raise error

    def _delete_earlier(self) -> None:
        kept = {f"state-{self._latest.number:06}.json", self._latest.data}
        names = [file.url for file in self._store.files(self.url) if file.name not in kept]
        number = self._latest.number
        self._store.delete([url for url in names if _number_of(url) < number])

    def _signature(self) -> object:
        """A value that changes whenever a file does."""
        found = []
        for path in sorted(self.directory.rglob("*")):
            if _is_progress(path):
                with suppress(FileNotFoundError):
                    found.append((str(path), path.stat().st_size, path.stat().st_mtime_ns))
        return found


def download_checkpoint(url: str, directory: Path) -> Path:
    """Copies the last upload to a new directory inside this one, without taking the ownership, and returns the new
    directory. If the URL is that of a checkpoint followed by the name of a stage, returns the directory of the stage.
    Blocks. Raises SpecError, and StoreError if there is no checkpoint."""
    folder = url.rstrip("/")
    store = StoreClient(folder)
    run, _, stage = folder.rpartition("/")
    copy = directory / _file_name(folder)
    if _download(store, f"{folder}/", copy):
        return copy
    if run.partition("://")[2] and store.files(f"{glob.escape(run)}/state-*.json"):  # without a listing of all else
        copy = directory / _file_name(run)
        if _download(store, f"{run}/", copy) and (found := copy / _file_name(stage)).is_dir():
            return found
    raise StoreError(f"{url!r} is not the checkpoint of a run, or nothing has been uploaded yet.")


def _download(store: StoreClient, folder: str, directory: Path) -> bool:
    """Downloads the latest generation. Returns False if there is no checkpoint. Raises SpecError."""
    seen = -1
    while True:
        latest = find_latest(store, folder)
        if latest is None or latest.data is None:
            return False
        try:
            _unpack(store, folder + latest.data, directory)
            return True
        except SpecError:
            if latest.number == seen:
                raise
            seen = latest.number  # it may have been replaced meanwhile


def local_directory(url: str) -> Path:
    """The directory of this machine's copy of a checkpoint."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    digest = blake2b(f"{url.rstrip('/')}/".encode(), digest_size=12).hexdigest()
    return Path(cache, "batch-agent", "checkpoints", digest, _file_name(url))


def _file_name(url: str) -> str:
    """Directory name of a copy, which is also the title of the run's report."""
    name = url.rstrip("/").rpartition("/")[2]
    return "checkpoint" if name in ("", ".", "..") else name[-_MAX_NAME:]


@asynccontextmanager
async def open_checkpoint_copy(url: str, notify: Notify) -> AsyncIterator[Path]:
    """The local directory of a checkpoint in an object store, for the duration of a run. Raises SpecError, and
    StoreError, also if another process takes over the checkpoint."""
    copy = await asyncio.to_thread(lambda: RemoteCheckpoint(url, notify).__enter__())
    try:
        async with copy.guard():
            yield copy.directory
    finally:
        await exit_in_thread(copy, None, None, None)


def _is_progress(path: Path) -> bool:
    """Whether a change of the file is progress of the run. A database changes in its log first."""
    return path.name.endswith("-wal") or not (path.name.endswith(_NOT_COPIED) or path.name == _OWN_STATE)


def find_latest(store: StoreClient, folder: str) -> _Generation | None:
    """The latest generation; None if there is none. Raises SpecError."""
    for number in sorted(_numbered_states(store, folder), reverse=True):
        if (data := store.read(f"{folder}state-{number:06}.json")) is not None:
            state = loads(data)
            return _Generation(number, state["owner"], state["data"], state["host"], state["ended"])
    return None


def _numbered_states(store: StoreClient, folder: str) -> list[int]:
    matches = (_STATE.search(file.url) for file in store.files(folder))
    return [int(match[1]) for match in matches if match is not None]


def _unpack(store: StoreClient, url: str, directory: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="batch-agent-") as folder:
        archive = Path(folder, "data.tar.gz")
        store.download(url, archive)
        with tarfile.open(archive) as opened:
            if sys.version_info >= (3, 11, 4):
                opened.extractall(directory, filter="data")
            else:  # the Python of Debian 12 has no filters
                files = [each for each in opened if each.isfile() and not {"/", ".."} & {*Path(each.name).parts}]
                opened.extractall(directory, files)  # noqa: S202 - files with paths below the directory


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found


def _clear(directory: Path) -> None:
    """Deletes the contents of the directory, except for its lock."""
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != "copy.lock":
            entry.unlink()


def _pack(directory: Path, archive: Path, scratch: Path) -> None:
    """Archives the files of a directory, with consistent copies of its databases, which may change meanwhile. Raises
    SpecError."""
    try:
        with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
            for path in sorted(directory.rglob("*")):
                if not path.is_file() or path.name.endswith(_NOT_COPIED) or path.name == _OWN_STATE:
                    continue
                name = str(path.relative_to(directory))
                if path.name.endswith(_DATABASE):
                    packed.add(_database_copy(path, scratch / "database"), name)
                else:
                    with suppress(FileNotFoundError):  # replaced or deleted meanwhile
                        packed.add(path, name)
    except (OSError, sqlite3.Error) as error:
        raise SpecError(f"The checkpoint in {str(directory)!r} cannot be copied: {error}.") from error


def _database_copy(path: Path, target: Path) -> Path:
    target.unlink(missing_ok=True)
    with (
        closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as source,
        closing(sqlite3.connect(target)) as copy,
    ):
        source.backup(copy)
    return target


def _number_of(url: str) -> int:
    match = re.match(r"(?:state|data)-(\d{6,})", url.rpartition("/")[2])
    return int(match[1]) if match is not None else 2**62
