"""Agents that work together on a board: each reads what is there, and adds to its own section."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from ..core.errors import SpecError
from .protocol import Pool
from .response import Response
from .response_checks import need_agents, no_answer

BoardState = dict[str, list[str]]
PromptFn = Callable[[str, BoardState], str]
ConvergenceFn = Callable[[BoardState], bool]


class Blackboard:
    """A board of named sections. The agents whose endpoint has the field `role=<section>` add to that section."""

    def __init__(self, sections: Sequence[str], prompt_fn: PromptFn) -> None:
        """`prompt_fn(section, board)` is what agents of a section are asked. Raises SpecError for no sections, and for
        one that is there twice."""
        if isinstance(sections, str) or not sections or len(set(sections)) < len(sections):
            raise SpecError(f"sections is {sections!r}: a board needs a list of names, each of them once.")
        self._board: BoardState = {section: [] for section in sections}
        self._failures: dict[str, list[Response]] = {section: [] for section in sections}
        self._prompt_fn = prompt_fn
        self._round = 0

    @property
    def board(self) -> BoardState:
        """The board itself: what is put on it before a run, agents read."""
        return self._board

    @property
    def failures(self) -> dict[str, list[Response]]:
        """Responses that are not on the board because they failed, by section."""
        return self._failures

    @property
    def round(self) -> int:
        """Rounds that are over."""
        return self._round

    def snapshot(self) -> dict[str, Any]:
        """A copy of it all, for JSON."""
        return {"round": self._round, "board": deepcopy(self._board)}

    async def run(self, pool: Pool, max_rounds: int = 10, convergence_fn: ConvergenceFn | None = None) -> BoardState:
        """The board after `max_rounds` more rounds, or after the round that `convergence_fn(board)` is content with.

        In a round the sections are asked one after the other, in their order: each reads what sections before it have
        just written. The agents of a section are asked at once and do not see one another's answers. A section for
        which there are no agents is left as it is; roles that are no section are not asked.

        Raises SpecError, before anything is asked, where no section has an agent, and BackendError where a whole round
        brings no answer; what was written before stays on the board. What the two functions raise comes through."""
        crews = self._crews(pool, max_rounds)
        for _ in range(max_rounds):
            await self._play(crews)
            self._round += 1
            if convergence_fn is not None and convergence_fn(self._board):
                break
        return self._board

    def _crews(self, pool: Pool, max_rounds: int) -> dict[str, Pool]:
        """Who adds to which section. Raises SpecError."""
        need_agents(pool, "Blackboard")
        if max_rounds < 1:
            raise SpecError(f"max_rounds is {max_rounds}: a board needs one round at least.")
        every = {section: pool.by_tag("role", section) for section in self._board}
        crews = {section: crew for section, crew in every.items() if crew.size}
        if not crews:
            roles = sorted({each.fields["role"] for each in pool.endpoints if "role" in each.fields})
            raise SpecError(
                f"No endpoint has a role that is a section of the board: sections are {list(self._board)}, roles are "
                f"{roles}. Write role=<section> behind the address of an endpoint."
            )
        return crews

    async def _play(self, crews: dict[str, Pool]) -> None:
        """One round."""
        heard: list[Response] = []
        for section, crew in crews.items():
            responses = await crew.broadcast_prompt(self._prompt_fn(section, self._board))
            self._board[section] += [response.text for response in responses if response.success]
            self._failures[section] += [response for response in responses if not response.success]
            heard += responses
        if not any(response.success for response in heard):
            raise no_answer(heard, f"Round {self._round + 1} of the board")


async def blackboard(
    pool: Pool,
    sections: Sequence[str],
    prompt_fn: PromptFn,
    max_rounds: int = 10,
    convergence_fn: ConvergenceFn | None = None,
) -> BoardState:
    """A new board after a run: see `Blackboard`."""
    return await Blackboard(sections, prompt_fn).run(pool, max_rounds, convergence_fn)
