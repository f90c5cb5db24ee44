"""Table of a checkpoint: a result for each input, whatever became of its agent, and the story of one."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from rich.text import Text

from ..core.agent_config import AgentConfig
from ..core.errors import ErrorKind
from ..core.facts import failure_of
from ..core.options.price import price_from_numbers
from ..core.results import AgentResult
from ..observe.checkpoint_results import recorded_result, unfinished_result
from ..observe.report.lock_probe import is_held
from ..observe.text.agent_trace import agent_trace_lines, as_text, part
from ..observe.text.formatting import one_line
from ..plan.row_keys import row_key
from ..store.reader import CheckpointReader, StoredInput

_MAX_LENGTH = 200


class CheckpointTable:
    """Rows of a checkpoint, in input order, read one at a time. Inputs without a result are rows too: their `status`
    says whether the agent is running, was interrupted or was not started."""

    def __init__(self, folder: Path, reader: CheckpointReader, config: AgentConfig) -> None:
        self._folder = folder
        self._reader = reader
        self._config = config
        prices = reader.prices()
        self._price = None if prices is None else price_from_numbers(prices)
        self._is_complete = bool(reader.plan().get("finished", {}).get("failures"))

    def __iter__(self) -> Iterator[tuple[StoredInput, AgentResult]]:
        for stored in self._reader.inputs():
            yield stored, self._with_cost(self._result(stored))

    def _with_cost(self, result: AgentResult) -> AgentResult:
        return result if self._price is None else replace(result, cost=self._price.of(result.usage))

    def _result(self, stored: StoredInput) -> AgentResult:
        index, key, value = stored.index, stored.key, stored.value
        if stored.error is not None:
            return AgentResult(index, key, value, error=stored.error)
        if not stored.facts:
            return unfinished_result(ErrorKind.NOT_STARTED, index, key, value)
        result = recorded_result(self._config, key, stored.facts, is_complete=self._is_complete)
        if result is None:
            return unfinished_result(self._unfinished, index, key, value, stored.facts)
        return result if result.index == index else replace(result, index=index)

    @cached_property
    def _unfinished(self) -> ErrorKind:
        """Probes the lock of the run only if an agent is not finished."""
        return ErrorKind.RUNNING if is_held(self._folder) else ErrorKind.INTERRUPTED


def story_lines(folder: Path, config: AgentConfig, stored: StoredInput, *, full: bool = False) -> Iterator[Text]:
    """The story of an input's agent; if that was not started, the reason. `full`: as for `agent_trace_lines`."""
    if stored.facts:
        is_running = failure_of(stored.facts) is None and is_held(folder) is not False
        yield from agent_trace_lines(config, stored.key, stored.facts, full=full, is_running=is_running)
        return
    yield Text.assemble((f"Agent {stored.index}", "bold"), f"  key {row_key(stored.key)}")
    value = as_text(stored.value)
    yield from part("input", value if full else one_line(value, _MAX_LENGTH))
    if stored.error is None:
        yield from part("not started", "", "bold yellow")
    else:
        yield from part("failed", f"before its first request: {stored.error}", "bold red")
