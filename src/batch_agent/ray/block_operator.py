"""Operator of Ray Data that runs an agent for each row of the blocks that its actor receives."""

import tempfile
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray

from ..core.errors import BatchAgentError
from ..core.fast_dataclass import dataclass
from ..core.results import AgentResult
from ..run.resources import RunResources
from ..run.setup import RunSetup
from .answer_columns import AnswerColumns, ResultColumns, WholeResult, add_columns, check_names
from .block_checkpoints import BlockCheckpoints
from .block_run import BlockSession, run_block
from .packed_rows import unpack_rows
from .ray_coordinator import RayCoordinator
from .serialization import RemoteError, deserialize_spec
from .worker_actor import check_version

ROWS_PER_PART = 2_000
"""Maximum rows in a part of a block, which is one run with one checkpoint. Bounds the memory of an actor."""
_PARTS_AT_ONCE = 2
"""Number of parts of a block that run at the same time: while the last agents of one part end, those of the next one
begin."""


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """Configuration that the caller of a map passes to its actors."""

    spec: bytes
    """A result of `serialize_spec`."""
    version: str
    """The caller's version of batch-agent."""
    name: str
    """Name of the map, used for the directories of its temporary checkpoints."""
    checkpoint_dir: str | None
    """Directory for checkpoints on every node; None: a temporary one."""
    prefix: str | None
    """Prefix of the column names. None: a single column with whole results."""

    @property
    def root(self) -> Path:
        """Directory for checkpoints on this node."""
        if self.checkpoint_dir is not None:
            return Path(self.checkpoint_dir)
        return Path(tempfile.gettempdir()) / f"batch-agent-{self.name}"


class BlockOperator:
    """Callable for `Dataset.map_batches`, in an actor: takes a block, and returns the same rows with their answers.

    A block runs in parts, each by the ordinary engine with its own checkpoint on this node. If the actor dies, Ray
    repeats its blocks on any node; agents with facts in a checkpoint there are not repeated. The backend, the tools and
    the membership in the coordinator stay open between blocks."""

    def __init__(self, config: OperatorConfig, coordinator: Any) -> None:
        """`coordinator`: the actor through which all operators of the map share limits, budget and tool calls."""
        self._config = config
        self._coordinator = coordinator
        self._checkpoints = BlockCheckpoints(config.root, is_temporary=config.checkpoint_dir is None)
        self._lock = threading.Lock()
        self._setup: RunSetup | None = None
        self._session: BlockSession | None = None

    def __call__(self, block: pa.Table) -> Iterator[pa.Table]:
        """Yields the parts in order, each as soon as it has ended. Ray calls it in several threads, one per concurrent
        block. Raises SpecError, BackendError, RunStopped and StoreError."""
        session, columns = self._opened()
        check_names(columns, block.column_names)
        running: deque[tuple[pa.Table, Future[_Ended]]] = deque()
        folders: list[Path] = []
        try:
            for start in range(0, block.num_rows, ROWS_PER_PART):
                part = block.slice(start, ROWS_PER_PART)
                running.append((part, session.submit(self._part(unpack_rows(part), columns))))
                if len(running) == _PARTS_AT_ONCE:
                    yield _joined(*running.popleft(), folders, columns)
            while running:
                yield _joined(*running.popleft(), folders, columns)
            if not block.num_rows:
                yield add_columns(columns, block, ())
        finally:
            for _, future in running:
                future.cancel()
        self._checkpoints.block_ended(folders)

    def __del__(self) -> None:
        """Called by Ray when its actor ends regularly. Frees the operator's share of the limits at once."""
        if self._session is not None:
            self._session.close()
        self._checkpoints.delete_ended()

    def _opened(self) -> tuple[BlockSession, ResultColumns]:
        """The session of this actor, or a new one if the last one has failed, and the columns of the results. Raises
        SpecError."""
        with self._lock:
            if self._setup is None:
                check_version(self._config.version)
                self._setup = RunSetup.validate(deserialize_spec(self._config.spec), None, input_fields=())
            if self._session is None or self._session.has_ended:
                rank = ray.get_runtime_context().get_actor_id()  # the same after a restart
                self._session = BlockSession(self._setup, RayCoordinator(self._find_coordinator, rank))
        if self._config.prefix is None:
            return self._session, WholeResult()
        output = self._setup.output
        return self._session, AnswerColumns(None if output is None else output.json_schema, self._config.prefix)

    async def _find_coordinator(self) -> Any:
        return self._coordinator

    def _part(self, rows: Sequence[Any], columns: ResultColumns) -> Callable[[RunResources], Awaitable["_Ended"]]:
        checkpoints = self._checkpoints  # without a reference to the operator, which would keep it alive

        async def run(resources: RunResources) -> _Ended:
            answers: list[tuple[Any, ...]] = [()] * len(rows)

            async def put(result: AgentResult) -> None:
                answers[result.index] = columns.values(result)

            async with checkpoints.open(rows) as (folder, store):
                await run_block(resources, folder.name, rows, store, put)
            return _Ended(folder, answers)

        return run


@dataclass(frozen=True, slots=True)
class _Ended:
    """A part whose agents have ended."""

    folder: Path
    answers: list[tuple[Any, ...]]
    """Values of the columns for each row."""


def _joined(part: pa.Table, future: "Future[_Ended]", folders: list[Path], columns: ResultColumns) -> pa.Table:
    try:
        ended = future.result()
    except BatchAgentError as error:
        raise RemoteError.of(error).error() from None  # the error itself may not be picklable
    folders.append(ended.folder)
    return add_columns(columns, part, ended.answers)
