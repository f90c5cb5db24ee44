"""Blackboard: agents read a shared board, and each adds to its own section."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from ..core.errors import SpecError
from .pool_protocol import Pool
from .response import Response
from .response_checks import no_answer_error, require_agents

BoardState = dict[str, list[str]]
PromptFn = Callable[[str, BoardState], str]
ConvergenceFn = Callable[[BoardState], bool]


class Blackboard:
    """A board of named sections. Agents whose endpoint has the field `role=<section>` add to that section."""

    def __init__(self, sections: Sequence[str], prompt_fn: PromptFn) -> None:
        """`prompt_fn(section, board)`: returns the prompt for the agents of a section. Raises SpecError if there are no
        sections, or if one is repeated."""
        if isinstance(sections, str) or not sections or len(set(sections)) < len(sections):
            raise SpecError(f"sections must be a non-empty list of distinct names; got {sections!r}.")
        self._board: BoardState = {section: [] for section in sections}
        self._failures: dict[str, list[Response]] = {section: [] for section in sections}
        self._prompt_fn = prompt_fn
        self._round = 0

    @property
    def board(self) -> BoardState:
        """The board itself. Agents also read what was added to it before a run."""
        return self._board

    @property
    def failures(self) -> dict[str, list[Response]]:
        """Failed responses by section. They are not on the board."""
        return self._failures

    @property
    def round(self) -> int:
        """Number of completed rounds."""
        return self._round

    def snapshot(self) -> dict[str, Any]:
        """A copy of the round and the board as JSON data."""
        return {"round": self._round, "board": deepcopy(self._board)}

    async def run(self, pool: Pool, max_rounds: int = 10, convergence_fn: ConvergenceFn | None = None) -> BoardState:
        """Runs up to `max_rounds` further rounds, or until `convergence_fn(board)` is true after a round. Returns the
        board.

        In a round, the sections take turns in order: each reads what the previous sections have just written. The
        agents of a section work concurrently and do not see each other's answers. A section without agents is left
        unchanged; agents whose role is not a section are not used.

        Raises SpecError, before anything is sent, if no section has an agent, and BackendError if a whole round has no
        answer; the board keeps what was written before. Exceptions of the two functions are propagated."""
        pools = self._section_pools(pool, max_rounds)
        for _ in range(max_rounds):
            await self._run_round(pools)
            self._round += 1
            if convergence_fn is not None and convergence_fn(self._board):
                break
        return self._board

    def _section_pools(self, pool: Pool, max_rounds: int) -> dict[str, Pool]:
        """The agents of each section. Raises SpecError."""
        require_agents(pool, "Blackboard")
        if max_rounds < 1:
            raise SpecError(f"max_rounds must be >= 1; got {max_rounds}.")
        every = {section: pool.by_tag("role", section) for section in self._board}
        pools = {section: agents for section, agents in every.items() if agents.size}
        if not pools:
            roles = sorted({each.fields["role"] for each in pool.endpoints if "role" in each.fields})
            raise SpecError(
                f"No endpoint has the role of a section: the sections are {list(self._board)}, the roles are {roles}. "
                "Add role=<section> to an endpoint in the hostfile."
            )
        return pools

    async def _run_round(self, pools: dict[str, Pool]) -> None:
        received: list[Response] = []
        for section, agents in pools.items():
            responses = await agents.broadcast_prompt(self._prompt_fn(section, self._board))
            self._board[section] += [response.text for response in responses if response.success]
            self._failures[section] += [response for response in responses if not response.success]
            received += responses
        if not any(response.success for response in received):
            raise no_answer_error(received, f"Round {self._round + 1} of the board")


async def blackboard(
    pool: Pool,
    sections: Sequence[str],
    prompt_fn: PromptFn,
    max_rounds: int = 10,
    convergence_fn: ConvergenceFn | None = None,
) -> BoardState:
    """Runs a new board and returns its sections: see `Blackboard`."""
    return await Blackboard(sections, prompt_fn).run(pool, max_rounds, convergence_fn)
