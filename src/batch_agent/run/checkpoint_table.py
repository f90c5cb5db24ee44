"""Table of a checkpoint: one result per input, finished or not."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..core.agent_config import AgentConfig, sample_of, without_sample
from ..core.errors import ErrorKind, StoreError
from ..core.options.price import price_from_numbers
from ..core.results import AgentResult
from ..data.results import Results
from ..observe.checkpoint_results import recorded_config, recorded_result, unfinished_result
from ..observe.report.lock_probe import is_held
from ..observe.score_file import MODEL_PREFIX, load_scores
from ..plan.row_keys import row_key
from ..rollouts.rollout import Rollout, rollout_of
from ..store.reader import CheckpointReader, StoredInput


class CheckpointTable:
    """Rows of a checkpoint, in input order, read one at a time. Inputs without a result are rows too: their `status`
    says whether the agent is running, was interrupted or was not started."""

    def __init__(self, folder: Path, reader: CheckpointReader, config: AgentConfig) -> None:
        self._folder = folder
        self._reader = reader
        self._config = config
        prices = reader.prices()
        self._price = None if prices is None else price_from_numbers(prices)
        self._is_complete = "finished" in reader.plan()

    def __iter__(self) -> Iterator[tuple[StoredInput, AgentResult]]:
        """Yields results with the keys of agents."""
        for stored in self._reader.inputs():
            yield stored, self._with_cost(self._result(stored))

    def results(self) -> Iterator[AgentResult]:
        """Yields results as the run returns them, with the key of the input, the number of the sample and the
        scores."""
        for _, result in self._scored():
            yield result

    def rollouts(self) -> Iterator[tuple[AgentResult, Rollout | None]]:
        """Yields the results of agents that have ended, with their tokens, or None for an agent without tokens. Raises
        StoreError."""
        for stored, result in self._scored():
            if result.status in ("answered", "failed"):
                try:
                    yield result, rollout_of(stored.facts)
                except ValueError as error:
                    raise StoreError(f"{self._folder}: the tokens of {result.key} cannot be read: {error}.") from error

    def _scored(self) -> Iterator[tuple[StoredInput, AgentResult]]:
        scores, has_samples = load_scores(self._folder), self._reader.samples() > 1
        is_of_models = self._folder.name.startswith(MODEL_PREFIX)
        for stored, result in self:
            key, sample = row_key(without_sample(result.key)), sample_of(result.key)
            yield (
                stored,
                replace(
                    result,
                    key=key,
                    sample=sample if has_samples else None,
                    model=self._config.model if is_of_models else None,
                    scores=scores.get((key, sample), {}),
                ),
            )

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


def read_results(folder: Path, output_schema: Any = None, max_retries: int | None = None) -> Results:
    """Results of a checkpoint, with scores; of all models, if it has several. Raises StoreError."""
    folders = sorted(facts.parent for facts in folder.glob(f"{MODEL_PREFIX}*/run.sqlite3")) or [folder]
    found: list[AgentResult] = []
    for each in folders:
        with CheckpointReader(each) as reader:
            config = recorded_config(reader.plan(), output_schema, max_retries)
            found += CheckpointTable(each, reader, config).results()
    return Results(sorted(found, key=lambda result: result.index))
