"""Read-only access to a checkpoint, also while a run writes to it."""

import sqlite3
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from heapq import merge
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from ..core.agent_config import SAMPLE_MARK, sample_of, without_sample
from ..core.errors import ErrorKind, SpecError, StoreError
from ..core.facts import Fact, Started
from ..core.fast_dataclass import dataclass
from ..core.json import loads
from ..core.protocols.store import Prices
from ..core.requests import Usage
from ..core.results import AgentError
from ..plan.fingerprint import Keys, fingerprint
from ..plan.row_keys import is_of_question, key_of_row, row_id, row_key
from .codec import decode, decode_error, encode_input
from .sqlite import FACT_INDEX, SCHEMA_VERSION, TOTAL_USAGE, sum_of_rows

_AGENTS = """
SELECT json_extract(CAST(data AS TEXT), '$.index') AS position, key, seq FROM facts
WHERE kind = 'started' AND instr(key, '.') = 0 ORDER BY position, seq
"""
_FACTS = "SELECT kind, data FROM facts WHERE key = ? ORDER BY seq"
_POSITIONS = """
CREATE TEMP TABLE positions (key TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (key, seq)) WITHOUT ROWID
"""
_FACTS_BY_POSITION = """
SELECT kind, data, seq FROM positions JOIN facts USING (key, seq) WHERE key = ?
UNION ALL SELECT kind, data, seq FROM facts WHERE seq > ? AND key = ? ORDER BY seq
"""
_MAX_SHOWN = 3


@dataclass(frozen=True, slots=True)
class StoredAgent:
    """An agent that has started."""

    index: int
    """Position among the inputs of the run that started the agent."""
    key: str


@dataclass(frozen=True, slots=True)
class StoredInput:
    """An input and what happened to it."""

    index: int
    """Position in the run that read the input last."""
    key: str
    """Key of its agent."""
    value: Any
    """The value from JSON; None if JSON cannot represent it."""
    facts: tuple[Fact, ...] = ()
    """Facts of the agent; empty if the agent was not started."""
    error: AgentError | None = None
    """Why the input was rejected before its agent could start."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """An input before its facts are read."""

    agent: StoredAgent
    is_started: bool
    data: bytes | None = None
    error: bytes | None = None


class CheckpointReader:
    """Reader of a checkpoint. It takes no lock and changes nothing. Every method raises StoreError for unreadable
    data."""

    def __init__(self, folder: Path) -> None:
        """Raises StoreError for a directory without a checkpoint, and for a checkpoint of a newer version."""
        path = folder / "run.sqlite3"
        if not path.is_file():
            results_of = folder.with_name(f"{folder.name}.checkpoint")
            hint = f" Did you mean {str(results_of)!r}?" if results_of.is_dir() else ""
            raise StoreError(f"There is no checkpoint in {str(folder)!r}: it has no run.sqlite3.{hint}")
        self._folder = folder
        self._db = _open(path)
        self._last_position: int | None = None
        """Position up to which the reader's own index covers the facts; None without such an index."""
        try:
            self._check_version()
        except BaseException:
            self._db.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def plan(self) -> Mapping[str, Any]:
        """The description of the run's plan."""
        for (data,) in self._rows("SELECT data FROM plan"):
            plan: Mapping[str, Any] = orjson.loads(data)
            return plan
        raise StoreError(f"The checkpoint in {str(self._folder)!r} is empty: its run ended before its first request.")

    def agents(self) -> Iterator[StoredAgent]:
        """Agents in the order of their index. If an index has an agent of the current plan, those of earlier plans
        (`plan_changed="rerun"`) are left out, as are samples beyond the number of the last run."""
        samples = self.samples()
        rows = (row for row in self._rows(_AGENTS) if sample_of(row[1]) < samples)
        if self._has_row_keys():
            yield from self._latest_rows(rows)
            return
        for _, same in groupby(rows, key=lambda row: row[0]):
            known = [StoredAgent(index, key) for index, key, _ in same]
            yield from known if len(known) == 1 else self._of_this_plan(known)

    def samples(self) -> int:
        """Number of agents per input in the last run."""
        for (data,) in self._rows("SELECT data FROM plan"):
            return int(orjson.loads(data).get("samples", 1))
        return 1

    def facts(self, key: str) -> tuple[Fact, ...]:
        """The facts of an agent, oldest first; empty for an unknown agent."""
        if (last := self._last_position) is None or self._has_index():
            rows = self._rows(_FACTS, key)
        else:
            rows = self._rows(_FACTS_BY_POSITION, key, last, key)
        try:
            return tuple(decode(kind, data) for kind, data, *_ in rows)
        except ValueError as error:
            raise StoreError(f"{self._folder}: the facts of agent {row_key(key)} cannot be read: {error}") from error

    def histories(self) -> Iterator[tuple[StoredAgent, tuple[Fact, ...]]]:
        """Every agent with its facts, read one agent at a time."""
        self._index_facts()
        for agent in self.agents():
            yield agent, self.facts(agent.key)

    def inputs(self) -> Iterator[StoredInput]:
        """Every input that the checkpoint knows, in order of the index, read one at a time: inputs of the last run, and
        agents of earlier runs for other inputs. If the inputs were not a list, only those whose agents started or that
        were rejected."""
        for entry in self._entries():
            yield self._stored(entry)

    def usage(self) -> Usage:
        """Usage of all replies under all plans, including agents that failed and were restarted."""
        return sum_of_rows(self._rows(TOTAL_USAGE))

    def prices(self) -> Prices | None:
        """Prices of the run's model; None if they are unknown."""
        for _, numbers in self._rows_of("price", "id, numbers"):
            return tuple(loads(numbers))
        return None

    def find(self, wanted: str) -> StoredAgent:
        """The agent with this key, index or key prefix. Raises SpecError if there is none or more than one."""
        return self._pick(wanted, [entry.agent for entry in self._entries() if entry.is_started])

    def find_input(self, wanted: str) -> StoredInput:
        """Like `find`, but also finds an input whose agent was not started."""
        entries = {entry.agent: entry for entry in self._entries()}
        return self._stored(entries[self._pick(wanted, list(entries))])

    def _pick(self, wanted: str, known: list[StoredAgent]) -> StoredAgent:
        found = (
            [agent for agent in known if wanted in (agent.key, _name(agent))]
            or [agent for agent in known if f"{agent.index}{_sample_mark(agent)}" == wanted]
            or [agent for agent in known if wanted and row_key(agent.key).startswith(wanted)]
        )
        if len(found) == 1:
            return found[0]
        if found:
            raise SpecError(f"{wanted!r} matches {len(found)} agents: {_names(found)}. Use a longer prefix of the key.")
        raise SpecError(f"There is no agent {wanted!r} in {str(self._folder)!r}. {_suggestion(wanted, known)}")

    def _entries(self) -> Iterator[_Entry]:
        self._index_facts()
        agents = list(self.agents())
        keys = self._input_keys(agents)
        samples = [
            self._entries_of_sample(number, keys, [agent for agent in agents if sample_of(agent.key) == number])
            for number in range(self.samples())
        ]
        return merge(*samples, key=lambda entry: entry.agent.index)

    def _entries_of_sample(
        self, sample: int, keys: Mapping[int, str], agents: Sequence[StoredAgent]
    ) -> Iterator[_Entry]:
        mark = f"{SAMPLE_MARK}{sample}" if sample else ""
        matches = match_inputs(keys, agents)
        self._match_recorded_values(matches, keys, agents)
        used = {agent.key for agent in matches.values()}
        rows: Iterator[tuple[int, Any]] = ((row[0], row[1:]) for row in self._input_rows())
        others = ((agent.index, agent) for agent in agents if agent.key not in used)
        for index, found in merge(rows, others, key=lambda each: each[0]):
            agent = found if isinstance(found, StoredAgent) else matches.get(index)
            if agent is not None:
                yield _Entry(StoredAgent(index, agent.key), True)
            else:
                key = keys.get(index) or f"unusable-{index}"
                yield _Entry(StoredAgent(index, f"{key}{mark}"), False, *found)

    def _stored(self, entry: _Entry) -> StoredInput:
        agent = entry.agent
        if entry.is_started:
            facts = self.facts(agent.key)
            value = facts[0].input if isinstance(facts[0], Started) else None
            return StoredInput(agent.index, agent.key, value, facts)
        value = None if entry.data is None else loads(entry.data)
        error = None if entry.error is None else decode_error(entry.error)
        return StoredInput(agent.index, agent.key, value, error=error)

    def _input_rows(self) -> Iterator[tuple[Any, ...]]:
        """Index, value and error of each input."""
        return self._rows_of("inputs", "position, data, error")

    def _rows_of(self, table: str, columns: str) -> Iterator[tuple[Any, ...]]:
        """Rows of a table by its primary key."""
        return self._rows(f"SELECT {columns} FROM {table} ORDER BY 1")  # noqa: S608 - not from outside

    def _has_index(self) -> bool:
        """Whether the run has created the index of its facts."""
        return bool(list(self._rows("SELECT 1 FROM sqlite_master WHERE name = ?", FACT_INDEX)))

    def _index_facts(self) -> None:
        """Prepares to read the facts of many agents: creates the reader's own index, if the run has not created one."""
        if self._last_position is None and not self._has_index():
            list(self._rows(_POSITIONS))
            list(self._rows("INSERT INTO positions SELECT key, seq FROM facts ORDER BY key, seq"))
            [(last,)] = self._rows("SELECT coalesce(max(seq), 0) FROM positions")
            self._last_position = last

    def _input_keys(self, agents: Sequence[StoredAgent]) -> dict[int, str]:
        """Key of each input by index, or only its beginning for a run with row keys; empty if the input was not kept.
        An input that was rejected because another one has its id has no key: the agent is that of the other."""
        rows = list(self._input_rows())
        if not rows:
            return {}
        question = self.plan()["question"]
        key = self._key_of_row if "key" in question else Keys(fingerprint(question)).key
        keys = {index: "" if data is None else key(loads(data)) for index, data, _ in rows}
        owners = {_input_hash(agent.key): agent.index for agent in agents}
        for index, _, error in rows:
            if _is_unusable(error) and owners.get(_input_hash(keys[index]), index) != index:
                del keys[index]
        return keys

    def _key_of_row(self, value: Any) -> str:
        try:
            return key_of_row(row_id(value, self.plan()["question"]["key"]))
        except ValueError:  # the input was rejected because of its key
            return ""

    def _match_recorded_values(
        self, matches: dict[int, StoredAgent], keys: Mapping[int, str], agents: Sequence[StoredAgent]
    ) -> None:
        """Adds agents whose keys do not match their inputs, because JSON could not represent the input or the plan has
        changed since."""
        if len(matches) == len(keys):
            return
        left = self._by_value(agents, {agent.key for agent in matches.values()})
        for index, data, _ in self._input_rows() if left else ():
            same = left.get(data)
            if index in keys and index not in matches and same:
                at = next((at for at, agent in enumerate(same) if agent.index == index), 0)
                matches[index] = same.pop(at)

    def _by_value(self, agents: Sequence[StoredAgent], used: Container[str]) -> dict[bytes, list[StoredAgent]]:
        """Unused agents, by their inputs as JSON."""
        found: dict[bytes, list[StoredAgent]] = {}
        for agent in agents:
            started = None if agent.key in used else self.facts(agent.key)[0]
            if isinstance(started, Started) and (data := encode_input(started.input)) is not None:
                found.setdefault(data, []).append(agent)
        return found

    def _has_row_keys(self) -> bool:
        plans = list(self._rows("SELECT data FROM plan"))
        return any("key" in orjson.loads(data)["question"] for (data,) in plans)

    def _latest_rows(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[StoredAgent]:
        """One agent for each row of the inputs and each of its samples: that of the current question and the latest
        contents of the row."""
        run = fingerprint(self.plan()["question"])
        latest: dict[str, tuple[tuple[bool, int], StoredAgent]] = {}
        for index, key, seq in rows:
            rank, agent = (is_of_question(key, run), seq), StoredAgent(index, key)
            if rank >= latest.get(_name(agent), (rank, None))[0]:
                latest[_name(agent)] = rank, agent
        return iter(sorted((agent for _, agent in latest.values()), key=lambda agent: agent.index))

    def _of_this_plan(self, known: list[StoredAgent]) -> list[StoredAgent]:
        self._index_facts()
        run = fingerprint(self.plan()["question"])
        return [agent for agent in known if self._answers(run, agent)] or known

    def _answers(self, run: bytes, agent: StoredAgent) -> bool:
        """Whether the agent's key is that of its input in this run; False if JSON could not represent the input."""
        started = self.facts(agent.key)[0]
        if not isinstance(started, Started):
            return False
        return Keys(run).key(started.input) == _input_hash(agent.key)

    def _check_version(self) -> None:
        [(version,)] = self._rows("PRAGMA user_version")
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"The checkpoint in {str(self._folder)!r} was written by a newer version of batch-agent (format "
                f"{version}; this version reads {SCHEMA_VERSION}). Upgrade batch-agent."
            )
        if version < SCHEMA_VERSION:
            raise StoreError(f"The run.sqlite3 in {str(self._folder)!r} is not a checkpoint of batch-agent.")

    def _rows(self, statement: str, *values: str | int) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._db.execute(statement, values)
        except sqlite3.Error as error:
            raise StoreError(f"The checkpoint in {str(self._folder)!r} cannot be read: {error}.") from error


def match_inputs(keys: Mapping[int, str], agents: Sequence[StoredAgent]) -> dict[int, StoredAgent]:
    """Agents of inputs, by index. Inputs may have moved since their agents started. The keys of equal inputs differ
    only in the number of the copy."""
    matches = {agent.index: agent for agent in agents if _may_be_of(keys.get(agent.index), agent)}
    used = {agent.key for agent in matches.values()}
    left: dict[str, list[StoredAgent]] = {}
    for agent in agents:
        if agent.key not in used:
            left.setdefault(_input_hash(agent.key), []).append(agent)
    for index, key in keys.items():
        if index not in matches and (same := left.get(_input_hash(key))):
            matches[index] = same.pop(0)
    return matches


def _is_unusable(error: bytes | None) -> bool:
    return error is not None and decode_error(error).kind is ErrorKind.BAD_INPUT


def _may_be_of(key: str | None, agent: StoredAgent) -> bool:
    return key is not None and (not key or _input_hash(key) == _input_hash(agent.key))


def _input_hash(key: str) -> str:
    """The part of a key that all copies and samples of an input, or all contents of a row, have in common."""
    row, mark, _ = key.rpartition("@")
    return row if mark else without_sample(key).partition("-")[0]


def _sample_mark(agent: StoredAgent) -> str:
    sample = sample_of(agent.key)
    return f"{SAMPLE_MARK}{sample}" if sample else ""


def _name(agent: StoredAgent) -> str:
    """The key of an agent as results show it, with the number of the sample unless it is the first."""
    return f"{row_key(without_sample(agent.key))}{_sample_mark(agent)}"


def _open(path: Path) -> sqlite3.Connection:
    """Opens a database for reading. SQLite creates files next to a database that it reads. If it cannot, because the
    disk is read-only, and no run has left such a file, there is no writer either, and the database is opened as
    immutable."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    database = sqlite3.connect(uri, uri=True, isolation_level=None)
    try:
        database.execute("PRAGMA user_version")
    except sqlite3.OperationalError:
        if path.with_name(f"{path.name}-wal").exists():
            return database
        database.close()
        return sqlite3.connect(f"{uri}&immutable=1", uri=True, isolation_level=None)
    except sqlite3.Error:  # the error is raised when the database is read
        return database
    return database


def _suggestion(wanted: str, known: list[StoredAgent]) -> str:
    if not known:
        return "No agent has started yet."
    prefixes = {row_key(agent.key)[: len(wanted)]: agent for agent in known}
    close = [prefixes[found] for found in get_close_matches(wanted, prefixes, _MAX_SHOWN)]
    if close:
        return f"Did you mean {_names(close)}?"
    return f"Started agents: {len(known)}, from {_names([known[0]])} to {_names([known[-1]])}."


def _names(agents: list[StoredAgent]) -> str:
    shown = ", ".join(f"{_name(agent)} (index {agent.index})" for agent in agents[:_MAX_SHOWN])
    return f"{shown}, ..." if len(agents) > _MAX_SHOWN else shown
