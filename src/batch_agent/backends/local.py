"""Backend for local:// URLs: the embedded model."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from yarl import URL

from ..core.errors import BackendError, ErrorKind, SpecError
from ..core.protocols.backend import Backend
from ..core.requests import RequestObserver
from ..lazy_imports import lazy_modules
from .address import with_version
from .backend_assembly import server_traits
from .dialects.openai.encoder import OpenAIChat
from .flavors import LLAMACPP
from .http.client import ServerClient
from .http.transport_selection import open_transport
from .http_backend import HttpBackend
from .probe import ServedModel, ServerInfo
from .startup_wait import Notify
from .token_counter import token_counter_for

with lazy_modules(globals()):
    from . import embedded


def parse_local(url: URL) -> tuple[Path | None, int | None]:
    """Path of the weights and number of slots of a local:// URL; None for the defaults. Raises SpecError."""
    if url.host:
        raise SpecError(
            f"backend={str(url)!r}: use an absolute path after three slashes, as in local:///models/a.gguf."
        )
    if unknown_options := sorted(set(url.query) - {"slots"}):
        raise SpecError(f"backend={str(url)!r}: unknown option {unknown_options[0]!r}; local:// accepts only slots.")
    slots = url.query.get("slots")
    if slots is not None and (not slots.isdecimal() or int(slots) < 1):
        raise SpecError(f"backend={str(url)!r}: slots must be an integer >= 1.")
    return Path(url.path) if url.path not in ("", "/") else None, int(slots) if slots else None


async def open_local(url: URL, model: str | None, notify: Notify, observe: RequestObserver | None = None) -> Backend:
    path, slots = parse_local(url)
    notify("Starting the embedded model ...")
    try:
        local = await embedded.LocalServer.start(path, slots=slots, notify=notify)
    except embedded.EmbeddedModelError as error:
        raise BackendError(ErrorKind.NOT_FOUND, str(error)) from error
    try:
        served = ServedModel(local.model_name, context_tokens=local.context_tokens)
        return local_backend(URL(local.url), path, local.slots, served, model, local.aclose, observe)
    except BaseException:
        await local.aclose()
        raise


def local_backend(
    url: URL,
    path: Path | None,
    slots: int,
    served: ServedModel,
    model: str | None,
    on_close: Callable[[], Awaitable[None]] | None = None,
    observe: RequestObserver | None = None,
) -> HttpBackend:
    """The backend of an embedded model at `url`. `model`: the name that the user gave. Raises SpecError."""
    if model is not None and model != served.name:
        shown = "local://" if path is None else f"local://{path}"
        raise SpecError(f"model={model!r} is not served: {shown} serves {served.name!r}. Omit model.")
    flavor, root = replace(LLAMACPP, name="local", native_tools=False, inflight=slots), with_version(url)
    server = ServerClient(open_transport(root, {}, keep_alive=flavor.keep_alive), root)
    return HttpBackend(
        server,
        OpenAIChat(adapt_schema=embedded.add_schema_hints if path is None else None),
        server_traits(flavor, served, ServerInfo()),
        on_close=on_close,
        count_tokens=token_counter_for(server, flavor, served.name),
        observe=observe,
    )
