"""What the model said, as it said it."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b
from itertools import count

from ...agent.context_size import chars_of_turn as chars_said
from ...core.json import loads
from ...core.messages import Assistant, Message, ToolCall
from ...core.requests import Reply
from .json_text import as_object, is_same

_MOST_CHARS = 8_000_000
_MOST_TEXTS = 20_000


class ReplyMemory:
    """Of one agent. Programs write arguments in another order, trim texts, and have no place for thoughts: sent back
    that way, the conversation would not begin any more as the server has it in its cache. It is bounded; the oldest is
    forgotten first."""

    def __init__(self, most_chars: int = _MOST_CHARS, most_texts: int = _MOST_TEXTS) -> None:
        self._most_chars = most_chars
        self._most_texts = most_texts
        self._turns: deque[Assistant] = deque()
        self._chars = 0
        self._by_call: dict[str, Assistant] = {}
        self._edges: dict[bytes, tuple[str, str]] = {}
        """The blanks before and after a text without calls, by what is between them."""
        self._numbers = count(1)

    def keep(self, reply: Reply, history: tuple[Message, ...]) -> Reply:
        """The reply, with calls that can be told from those before them."""
        taken = {call.id for message in history if isinstance(message, Assistant) for call in message.calls}
        reply = replace(reply, calls=tuple(self._named(reply.calls, taken)))
        if reply.calls:
            self._add(Assistant(reply.text, reply.calls, reply.thoughts))
        else:
            core = reply.text.strip()
            before, _, after = reply.text.partition(core) if core else (reply.text, "", "")
            self._edges.setdefault(_digest(core), (before, after))  # the first, so that it stays what it was
            if len(self._edges) > self._most_texts:
                del self._edges[next(iter(self._edges))]
        return reply

    def recall(self, said: Assistant) -> Assistant:
        """What a program says that the model said, in the model's own words where it means the same."""
        if not said.calls:
            core = said.text.strip()
            edges = self._edges.get(_digest(core))
            return said if edges is None else replace(said, text=core.join(edges))
        turn = self._by_call.get(said.calls[0].id)
        if turn is None:
            return said
        own = {call.id: call for call in turn.calls}
        calls = tuple(_own_call(own.get(call.id), call) for call in said.calls)
        if said.calls[0].id != turn.calls[0].id:  # one turn as several: the first has what goes before the calls
            return replace(said, calls=calls)
        text = turn.text if said.text.strip() == turn.text.strip() else said.text
        return Assistant(text, calls, turn.thoughts if _has_same_thoughts(said, turn) else said.thoughts)

    def _named(self, calls: tuple[ToolCall, ...], taken: set[str]) -> Iterator[ToolCall]:
        for call in calls:
            name = call.id
            while not name or name in taken or name in self._by_call:
                name = f"call_{next(self._numbers)}"
            taken.add(name)
            yield call if name == call.id else replace(call, id=name)

    def _add(self, turn: Assistant) -> None:
        self._turns.append(turn)
        self._chars += chars_said(turn)
        self._by_call |= {call.id: turn for call in turn.calls}
        while self._chars > self._most_chars and self._turns:
            oldest = self._turns.popleft()
            self._chars -= chars_said(oldest)
            for call in oldest.calls:
                del self._by_call[call.id]


def _own_call(own: ToolCall | None, said: ToolCall) -> ToolCall:
    return own if own is not None and own.name == said.name and _has_same_arguments(own, said) else said


def _has_same_arguments(own: ToolCall, said: ToolCall) -> bool:
    if own.arguments == said.arguments:
        return True
    try:
        return is_same(as_object(own.arguments), loads(said.arguments or "{}"))
    except (ValueError, RecursionError):
        return False


def _has_same_thoughts(said: Assistant, turn: Assistant) -> bool:
    """Or none at all: programs leave them out, and with them signatures that the provider wants to see again."""
    return not said.thoughts or _thinking(said) == _thinking(turn)


def _thinking(words: Assistant) -> str:
    return "".join(thought.text + thought.redacted for thought in words.thoughts).strip()


def _digest(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
