"""Memory of the model's replies exactly as written, by which later requests are restored."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b
from itertools import count

from ...agent.context_size import chars_of_turn as message_chars
from ...core.json import loads
from ...core.messages import Assistant, Message, ToolCall
from ...core.requests import Reply
from .json_text import as_object, is_same

_MAX_CHARS = 8_000_000
_MAX_TEXTS = 20_000


class ReplyMemory:
    """Replies to one agent, bounded by dropping the oldest. Programs reorder arguments, trim text and drop thoughts. A
    conversation in that form would no longer match the prefix in the server's cache."""

    def __init__(self, max_chars: int = _MAX_CHARS, max_texts: int = _MAX_TEXTS) -> None:
        self._max_chars = max_chars
        self._max_texts = max_texts
        self._turns: deque[Assistant] = deque()
        self._chars = 0
        self._by_call: dict[str, Assistant] = {}
        self._whitespace: dict[bytes, tuple[str, str]] = {}
        """Leading and trailing whitespace of texts without calls, by the digest of the stripped text."""
        self._numbers = count(1)

    def keep(self, reply: Reply, history: tuple[Message, ...]) -> Reply:
        """Remembers the reply and returns it with unique call ids."""
        taken = {call.id for message in history if isinstance(message, Assistant) for call in message.calls}
        reply = replace(reply, calls=tuple(self._with_unique_ids(reply.calls, taken)))
        if reply.calls:
            self._add(Assistant(reply.text, reply.calls, reply.thoughts))
        else:
            core = reply.text.strip()
            before, _, after = reply.text.partition(core) if core else (reply.text, "", "")
            self._whitespace.setdefault(
                _digest(core), (before, after)
            )  # the first entry wins, so that restored text does not change later
            if len(self._whitespace) > self._max_texts:
                del self._whitespace[next(iter(self._whitespace))]
        return reply

    def restore(self, received: Assistant) -> Assistant:
        """Returns the reply that `received` stands for, as the model wrote it, if both have the same meaning."""
        if not received.calls:
            core = received.text.strip()
            whitespace = self._whitespace.get(_digest(core))
            return received if whitespace is None else replace(received, text=core.join(whitespace))
        turn = self._by_call.get(received.calls[0].id)
        if turn is None:
            return received
        own = {call.id: call for call in turn.calls}
        calls = tuple(_own_call(own.get(call.id), call) for call in received.calls)
        if received.calls[0].id != turn.calls[0].id:  # the program split a turn: only its first part has the text
            return replace(received, calls=calls)
        text = turn.text if received.text.strip() == turn.text.strip() else received.text
        return Assistant(text, calls, turn.thoughts if _has_same_thoughts(received, turn) else received.thoughts)

    def _with_unique_ids(self, calls: tuple[ToolCall, ...], taken: set[str]) -> Iterator[ToolCall]:
        for call in calls:
            name = call.id
            while not name or name in taken or name in self._by_call:
                name = f"call_{next(self._numbers)}"
            taken.add(name)
            yield call if name == call.id else replace(call, id=name)

    def _add(self, turn: Assistant) -> None:
        self._turns.append(turn)
        self._chars += message_chars(turn)
        self._by_call |= {call.id: turn for call in turn.calls}
        while self._chars > self._max_chars and self._turns:
            oldest = self._turns.popleft()
            self._chars -= message_chars(oldest)
            for call in oldest.calls:
                del self._by_call[call.id]


def _own_call(own: ToolCall | None, received: ToolCall) -> ToolCall:
    return own if own is not None and own.name == received.name and _has_same_arguments(own, received) else received


def _has_same_arguments(own: ToolCall, received: ToolCall) -> bool:
    if own.arguments == received.arguments:
        return True
    try:
        return is_same(as_object(own.arguments), loads(received.arguments or "{}"))
    except (ValueError, RecursionError):
        return False


def _has_same_thoughts(received: Assistant, turn: Assistant) -> bool:
    """Whether the thoughts are equal or missing: programs drop them, together with signatures that the provider
    requires."""
    return not received.thoughts or _thinking(received) == _thinking(turn)


def _thinking(message: Assistant) -> str:
    return "".join(thought.text + thought.redacted for thought in message.thoughts).strip()


def _digest(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
