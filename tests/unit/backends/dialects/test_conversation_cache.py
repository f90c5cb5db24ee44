"""The cache of encoded conversations."""

from collections.abc import Callable

import pytest

from batch_agent.backends.dialects import conversation_cache
from batch_agent.backends.dialects.conversation_cache import ConversationCache
from batch_agent.core.messages import Message, User


def turns(count: int, text: str = "message") -> tuple[Message, ...]:
    return tuple(User(f"{text} {number}") for number in range(count))


def recorder(encoded: list[str]) -> Callable[[Message], bytes]:
    def encode(message: Message) -> bytes:
        assert isinstance(message, User)
        encoded.append(message.text)
        return message.text.encode()

    return encode


def joined(messages: tuple[Message, ...]) -> bytes:
    return b",".join(map(recorder([]), messages))


def test_a_turn_of_a_long_conversation_encodes_only_its_new_messages() -> None:
    cache, messages = ConversationCache(), turns(12)
    cache.encode("a", messages[:10], recorder([]))
    new: list[str] = []
    assert cache.encode("a", messages, recorder(new)) == joined(messages)
    assert new == ["message 10", "message 11"]


def test_a_repeated_request_has_the_same_bytes() -> None:
    cache, messages, new = ConversationCache(), turns(10), list[str]()
    first = cache.encode("a", messages, recorder([]))
    assert cache.encode("a", messages, recorder(new)) == first == joined(messages)
    assert new == []


def test_a_conversation_that_was_changed_in_the_middle_is_encoded_again() -> None:
    cache, messages = ConversationCache(), turns(12)
    cache.encode("a", messages, recorder([]))
    compacted = (*messages[:3], User("summary"), *messages[4:], User("next"))
    assert cache.encode("a", compacted, recorder([])) == joined(compacted)
    shorter = messages[:9]
    assert cache.encode("a", shorter, recorder([])) == joined(shorter)


def test_agents_with_equal_keys_in_different_runs_are_not_mixed_up() -> None:
    cache, one, other = ConversationCache(), turns(10, "one"), turns(10, "other")
    cache.encode("a", one, recorder([]))
    assert cache.encode("a", other, recorder([])) == joined(other)
    assert cache.encode("a", one, recorder([])) == joined(one)


def test_short_conversations_and_requests_without_an_agent_are_not_kept() -> None:
    cache, new = ConversationCache(), list[str]()
    for agent, messages in (("a", turns(7)), ("", turns(10))):
        cache.encode(agent, messages, recorder([]))
        cache.encode(agent, messages, recorder(new))
    assert len(new) == 17


def test_the_conversations_that_were_used_last_stay_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = turns(10)
    monkeypatch.setattr(conversation_cache, "_MAX_BYTES", 2 * len(joined(messages)))
    cache, new = ConversationCache(), list[str]()
    for agent in "abac":
        cache.encode(agent, messages, recorder([]))
    cache.encode("a", messages, recorder(new))
    cache.encode("c", messages, recorder(new))
    assert new == []
    cache.encode("b", messages, recorder(new))
    assert len(new) == 10


def test_a_conversation_of_megabytes_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    messages, new = turns(10), list[str]()
    monkeypatch.setattr(conversation_cache, "_MAX_CONVERSATION_BYTES", 50)
    cache = ConversationCache()
    cache.encode("a", messages, recorder([]))
    assert cache.encode("a", messages, recorder(new)) == joined(messages)
    assert len(new) == 10
