"""Opening of the batch lane of a backend."""

from collections.abc import Callable

from ..backends.dialects.openai.encoder import PATH, OpenAIChat
from ..backends.http_backend import HttpBackend
from ..core.errors import SpecError
from ..core.protocols.backend import Backend
from ..core.protocols.store import KeepsSubmissions, Store
from ..lazy_imports import lazy_modules
from .anthropic_batch_service import AnthropicBatchService
from .batch_backend import BatchBackend
from .batch_service import BatchService, OffersBatches
from .openai_batch_service import OpenAIBatchService

with lazy_modules(globals()):
    from ..backends.dialects.anthropic import encoder as anthropic_encoder


async def open_batch_lane(
    live: Backend, store: Store, notify: Callable[[str], None], *, is_mixed: bool = False
) -> BatchBackend:
    """Opens the batch lane of an open backend. The caller closes both. `is_mixed`: whether requests are also sent in
    other lanes, limited by the capacity of the live backend. Raises SpecError and StoreError."""
    if not isinstance(store, KeepsSubmissions):
        raise SpecError(
            "lane='batch' needs checkpoint_dir='...': a batch takes up to a day and outlives this process. Without a "
            "checkpoint, what was submitted would be billed and lost."
        )
    if isinstance(live, OffersBatches):
        backend = BatchBackend(live, live.dialect, live.batch_service, store, notify)
    elif isinstance(live, HttpBackend):
        backend = BatchBackend(
            live, live.dialect, _service(live), store, notify, observe=live.observe, mask=live.server.mask
        )
    else:
        raise SpecError(f"lane='batch' needs one server with batches; {live.traits.name} is not one.")
    if is_mixed:
        backend.traits = live.traits
    await backend.open()
    return backend


def _service(live: HttpBackend) -> BatchService:
    if isinstance(live.dialect, OpenAIChat):
        return OpenAIBatchService(live.server, PATH)
    if isinstance(live.dialect, anthropic_encoder.AnthropicMessages):
        return AnthropicBatchService(live.server)
    raise SpecError(f"lane='batch': the batches of {live.traits.name} are not supported.")
