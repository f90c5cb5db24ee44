"""Stores that do not outlive the process."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.facts import Fact, Replied
from ..core.protocols.store import Account, Prices, Submission
from ..core.requests import NO_USAGE, Usage
from ..core.results import AgentError


class NoStore:
    """Store of a run without a checkpoint. It keeps nothing, so that long runs do not fill the memory."""

    is_durable = False

    def __init__(self) -> None:
        self._identity = secrets.token_hex(8)

    async def open(self) -> None:
        pass

    async def plan(self) -> Mapping[str, Any] | None:
        return None

    async def save_plan(self, plan: Mapping[str, Any]) -> None:
        pass

    async def identity(self) -> str:
        return self._identity

    async def facts(self, key: str) -> Sequence[Fact]:
        return ()

    async def spent(self) -> Usage:
        return NO_USAGE

    async def account(self) -> Account | None:
        return None

    async def save_account(self, account: Account) -> None:
        pass

    def save_run(self, inputs: Sequence[Any], prices: Prices | None) -> None:
        pass

    def reject(self, index: int, value: Any, error: AgentError) -> None:
        pass

    def record(self, key: str, fact: Fact) -> None:
        pass

    def restart(self, key: str, facts: Sequence[Fact]) -> None:
        pass

    async def settle(self, key: str | None = None, *, sync: bool = False) -> None:
        pass

    async def aclose(self) -> None:
        pass


class MemoryStore:
    """Store in memory, for tests and for runs that are resumed in the same process."""

    is_durable = True

    def __init__(self) -> None:
        self._identity = secrets.token_hex(8)
        self._facts: dict[str, list[Fact]] = {}
        self._plan: Mapping[str, Any] | None = None
        self._discarded_usage = NO_USAGE
        self._account: Account | None = None
        self._submissions: dict[str, Submission] = {}

    async def open(self) -> None:
        pass

    async def plan(self) -> Mapping[str, Any] | None:
        return self._plan

    async def save_plan(self, plan: Mapping[str, Any]) -> None:
        self._plan = plan

    async def identity(self) -> str:
        return self._identity

    async def facts(self, key: str) -> Sequence[Fact]:
        return tuple(self._facts.get(key, ()))

    async def spent(self) -> Usage:
        replies = [fact for facts in self._facts.values() for fact in facts if isinstance(fact, Replied)]
        return sum((fact.reply.usage for fact in replies), self._discarded_usage)

    async def account(self) -> Account | None:
        return self._account

    async def save_account(self, account: Account) -> None:
        self._account = account

    async def submissions(self) -> Sequence[Submission]:
        return [each for each in self._submissions.values() if each.lines]

    async def save_submission(self, submission: Submission) -> None:
        known = self._submissions.get(submission.wave)
        lines = submission.lines if known is None else known.lines
        self._submissions[submission.wave] = replace(submission, lines=lines)

    def take_lines(self, wave: str, keys: Sequence[str]) -> None:
        known, taken = self._submissions[wave], set(keys)
        self._submissions[wave] = replace(known, lines=tuple(each for each in known.lines if each.key not in taken))

    def save_run(self, inputs: Sequence[Any], prices: Prices | None) -> None:
        """Does nothing: nobody but the store itself would read it."""

    def reject(self, index: int, value: Any, error: AgentError) -> None:
        """Does nothing, like `save_run`."""

    def record(self, key: str, fact: Fact) -> None:
        self._facts.setdefault(key, []).append(fact)

    def restart(self, key: str, facts: Sequence[Fact]) -> None:
        for fact in self._facts.pop(key, ()):
            if isinstance(fact, Replied):
                self._discarded_usage += fact.reply.usage
        self._facts[key] = list(facts)

    async def settle(self, key: str | None = None, *, sync: bool = False) -> None:
        pass

    async def aclose(self) -> None:
        pass
