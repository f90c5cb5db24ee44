"""Claims of writes: durable before the function is entered, taken back when it was not."""

from collections.abc import Callable
from typing import Any, Protocol

from ..aio import Extend
from ..core.errors import BatchAgentError
from ..core.messages import ToolCall
from ..core.protocols import Journal


class WriteClaim:
    """The claim of one call. The thread that enters the function and the loop that gives the call up agree on which of
    the two came first: `list.pop` is atomic."""

    __slots__ = ("_call", "_is_given_up", "_is_taken", "_journal", "_ticket", "failure")

    def __init__(self, journal: Journal | None, call: ToolCall) -> None:
        self._journal = journal
        self._call = call
        self._ticket = [call]
        self._is_taken = False
        self._is_given_up = False
        self.failure: BatchAgentError | None = None
        """Of the journal, which is not the tool's."""

    async def take(self) -> None:
        """When it is the call's turn. Durable on return; a later attempt of the same call finds it taken. Raises
        StoreError and LeaseLost."""
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
        """Right before the function is called, in its thread. False: it must not be called any more."""
        try:
            self._ticket.pop()
        except IndexError:  # or entered before, by an earlier attempt
            return not self._is_given_up
        return True

    def give_up(self) -> bool:
        """Whether the function was never entered, and never will be; then the claim is taken back."""
        try:
            self._ticket.pop()
        except IndexError:
            return self._is_given_up
        self._is_given_up = True
        if self._is_taken and self._journal is not None:
            self._journal.withdraw(self._call)
        return True


class TakesClaim(Protocol):
    """One claim, or those of a batch."""

    async def take(self) -> None: ...

    def enter(self) -> bool: ...


class ClaimEntry:
    """The way of one execution into its function: what is claimed before, and until when it may take."""

    __slots__ = ("began", "claim", "extend")

    def __init__(self, claim: TakesClaim | None = None, extend: Extend | None = None) -> None:
        """`extend`: of an execution that several wait for. Told when it is due and its seconds, it gives the time until
        which somebody who came later still waits; None: nobody does."""
        self.claim = claim
        self.extend = extend
        self.began: float | None = None
        """When it was at last its turn."""

    async def claimed(self) -> None:
        """Raises StoreError and LeaseLost."""
        if self.claim is not None:
            await self.claim.take()

    def call(self, function: Callable[[], Any]) -> Any:
        """Calls the function, if it still may be called. Of a call that was given up nobody hears."""
        return function() if self.claim is None or self.claim.enter() else None
