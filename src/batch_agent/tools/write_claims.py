"""Claims of writes: durable before the tool's function is entered, withdrawn if it never was."""

from collections.abc import Callable
from typing import Any, Protocol

from ..aio import Extend
from ..core.errors import BatchAgentError
from ..core.messages import ToolCall
from ..core.protocols.tool_set import Journal


class WriteClaim:
    """Claim of one call. The thread that enters the function and the event loop that gives the call up agree on which
    of them came first, because `list.pop` is atomic."""

    __slots__ = ("_call", "_is_given_up", "_is_taken", "_journal", "_ticket", "failure")

    def __init__(self, journal: Journal | None, call: ToolCall) -> None:
        self._journal = journal
        self._call = call
        self._ticket = [call]
        self._is_taken = False
        self._is_given_up = False
        self.failure: BatchAgentError | None = None
        """An error of the journal, as opposed to one of the tool."""

    async def take(self) -> None:
        """Records the claim when it is the call's turn. Durable on return; later attempts of the same call reuse it.
        Raises StoreError and LeaseLost."""
        if self.failure is not None:
            raise self.failure
        if self._is_taken or self._is_given_up or self._journal is None:
            return
        self._is_taken = True
        try:
            await self._journal.claim(self._call)
        except BatchAgentError as error:
            self.failure = error
            raise

    def enter(self) -> bool:
        """Called in the function's thread right before the function. Returns False if the function must not be
        called."""
        try:
            self._ticket.pop()
        except IndexError:  # or entered before, by an earlier attempt
            return not self._is_given_up
        return True

    def give_up(self) -> bool:
        """Withdraws the claim. Returns True if the function was never entered, and never will be."""
        try:
            self._ticket.pop()
        except IndexError:
            return self._is_given_up
        self._is_given_up = True
        if self._is_taken and self._journal is not None:
            self._journal.withdraw(self._call)
        return True


class Claim(Protocol):
    """The claim of one call, or those of a batch."""

    async def take(self) -> None: ...

    def enter(self) -> bool: ...


class ClaimEntry:
    """Entry of one execution into the tool's function: the claim before it, and the deadline."""

    __slots__ = ("claim", "extend", "started_at")

    def __init__(self, claim: Claim | None = None, extend: Extend | None = None) -> None:
        """`extend`: for an execution with several waiters. Called with its due time and its limit in seconds; returns
        the time until which a waiter that joined later still waits, or None if there is none."""
        self.claim = claim
        self.extend = extend
        self.started_at: float | None = None
        """When the latest attempt got its turn."""

    async def take_claim(self) -> None:
        """Raises StoreError and LeaseLost."""
        if self.claim is not None:
            await self.claim.take()

    def call(self, function: Callable[[], Any]) -> Any:
        """Calls the function, unless the call was given up; then the result is not used."""
        return function() if self.claim is None or self.claim.enter() else None
