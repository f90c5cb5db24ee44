"""Unix socket in the checkpoint of a live run, through which its user changes it. Only the user who runs it can open
the socket."""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..core.errors import BatchAgentError, SpecError, StoreError
from ..core.events import Steered
from ..core.json import dumps, loads
from ..core.options.control_request import ControlRequest
from ..observe.report.lock_probe import is_held
from .control import RunControl

SOCKET = "run.sock"
_log = logging.getLogger("batch_agent")
_MAX_PATH = 100
"""Bytes. The name of a socket has at most 104 on some systems, 108 on others."""
_MAX_REQUEST = 64 * 1024 * 1024
_LENGTH_BYTES = 8
_GRACE_SECONDS = 5.0
"""Time for answering a request that arrives while the run ends."""
_ANSWER_SECONDS = 30.0


@asynccontextmanager
async def serve_control(folder: Path, control: RunControl) -> AsyncIterator[None]:
    """Accepts requests while the block runs. The caller holds the lock of the checkpoint. On a file system without
    sockets, the run cannot be changed but goes on."""
    server = _ControlServer(control)
    try:
        listening = await server.listen(folder)
    except (OSError, NotImplementedError) as error:
        _log.info("batch-agent ctl cannot reach this run: %s", error)
        yield
        return
    try:
        yield
    finally:
        listening.close()
        await server.finish()
        (folder / SOCKET).unlink(missing_ok=True)


class _ControlServer:
    """Answers requests, one per connection."""

    def __init__(self, control: RunControl) -> None:
        self._control = control
        self._connections: dict[asyncio.Task[None], bool] = {}
        """Open connections, and whether each has received its request."""

    async def listen(self, folder: Path) -> asyncio.Server:
        """Raises OSError and NotImplementedError."""
        if not hasattr(socket, "AF_UNIX"):
            raise NotImplementedError("the system has no Unix sockets")
        (folder / SOCKET).unlink(missing_ok=True)  # of a run that was killed
        opened = socket.socket(socket.AF_UNIX)
        try:
            with _short_path(folder) as path:
                opened.bind(path)
            os.chmod(folder / SOCKET, 0o600)  # before it listens: until then, nobody can connect
            return await asyncio.start_unix_server(self._accept, sock=opened)
        except BaseException:
            opened.close()
            raise

    async def finish(self) -> None:
        """Waits for requests that are being answered, but not for clients that have not sent one."""
        for task, has_request in list(self._connections.items()):
            if not has_request:
                task.cancel()
        if self._connections:
            _, late = await asyncio.wait(list(self._connections), timeout=_GRACE_SECONDS)
            for task in late:
                task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = False
        try:
            # The client is gone or of another kind, or the run has ended.
            with suppress(OSError, EOFError, ValueError, asyncio.CancelledError):
                request = await _read(reader)
                self._connections[task] = True
                writer.write(_message(await self._answer(request)))
                await writer.drain()
        finally:
            del self._connections[task]
            writer.close()

    async def _answer(self, request: Any) -> dict[str, Any]:
        try:
            asked = ControlRequest(**{**request, "cancel": tuple(request["cancel"]), "add": tuple(request["add"])})
            return {"changes": [asdict(change) for change in await self._control.apply(asked)]}
        except BatchAgentError as error:
            return {"error": str(error)}
        except (TypeError, KeyError):
            return {"error": "The run does not understand the request: it may be of another version of batch-agent."}


async def steer(folder: Path, request: ControlRequest) -> list[Steered]:
    """Sends a request to the run that uses this checkpoint, and returns what it changed. Raises SpecError with the
    run's reason for a refusal, and StoreError if there is no such run."""
    request.check()
    message = _message(asdict(request))
    if len(message) > _MAX_REQUEST:
        raise SpecError(f"{len(message):,} bytes of inputs are too many at once: add at most {_MAX_REQUEST:,}.")
    try:
        with _short_path(folder) as path:
            reader, writer = await asyncio.open_unix_connection(path)
    except (OSError, AttributeError) as error:
        raise _unreachable(folder, error) from None
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            writer.write(message)
            await writer.drain()
            answer = await _read(reader)
    except TimeoutError:
        raise StoreError(f"The run in {str(folder)!r} has not answered within {_ANSWER_SECONDS:g} s.") from None
    except (OSError, EOFError):
        raise StoreError(
            f"The run in {str(folder)!r} ended before it answered. `batch-agent inspect {folder}` shows what it did."
        ) from None
    finally:
        writer.close()
    if "error" in answer:
        raise SpecError(answer["error"])
    return [Steered(**change) for change in answer["changes"]]


def _unreachable(folder: Path, error: Exception) -> StoreError:
    if isinstance(error, PermissionError):
        return StoreError(f"The run in {str(folder)!r} belongs to another user, who alone may change it.")
    if not folder.is_dir():
        return StoreError(f"There is no checkpoint in {str(folder)!r}.")
    if not is_held(folder):
        return StoreError(
            f"The run in {str(folder)!r} is not running. To resume it: batch-agent resume {folder}, or run the same "
            "command or code again, with the values that you want."
        )
    if (folder.parent / SOCKET).exists():
        return StoreError(f"{str(folder)!r} is one stage of the run in {str(folder.parent)!r}. Use that directory.")
    return StoreError(
        f"The run in {str(folder)!r} is starting or ending, or it cannot be reached ({error}). Try again."
    )


def _message(value: Any) -> bytes:
    data = dumps(value)
    return len(data).to_bytes(_LENGTH_BYTES) + data


async def _read(reader: asyncio.StreamReader) -> Any:
    """Raises EOFError (asyncio.IncompleteReadError) and OSError."""
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
    if length > _MAX_REQUEST:
        raise EOFError
    return loads(await reader.readexactly(length))


@contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """Path of the socket that is short enough for the system: if need be, through a temporary link to the folder."""
    path = str((folder / SOCKET).absolute())
    if len(os.fsencode(path)) <= _MAX_PATH:
        yield path
        return
    import tempfile  # rarely needed

    with tempfile.TemporaryDirectory() as temporary:
        link = Path(temporary, "c")
        link.symlink_to(folder.absolute(), target_is_directory=True)
        yield str(link / SOCKET)
