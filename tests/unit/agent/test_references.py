"""Tool results that stand before an agent's own text: which ones, where, and with which bytes."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st
from tests.support.conversations import asked, call, done, rules, say

from batch_agent.agent.conversation import CallTools, Conversation
from batch_agent.agent.references import place, pointer, with_references
from batch_agent.backends.dialects.openai.encoder import OpenAIChat
from batch_agent.core.agent_config import Compaction, Job
from batch_agent.core.facts import Compacted, Fact, Returned, Shortened, Started
from batch_agent.core.messages import Assistant, Placement, Reference, ToolCall, ToolResult, ToolResults, User

LEAD = "What everyone has to know.\n\n"
OWN = "Question: why?"
WIRE = OpenAIChat()


def reference(title: str, rank: int = 0, readers: int = 2, placement: Placement = "first") -> Reference:
    return Reference(f'read(title="{title}")', rank, readers, placement)


def result(title: str, rank: int = 0, *, chars: int = 1000, **options: Any) -> ToolResult:
    content = (f"{title}. " * chars)[:chars]
    return ToolResult(
        ToolCall("c1", "read", f'{{"title":"{title}"}}'), content, reference=reference(title, rank, **options)
    )


def nobody_else(path: Sequence[str]) -> float:
    return 1.0


def job(own: str = OWN) -> Job:
    return Job(3, "key", {"it": 1}, LEAD + own, shared=len(LEAD), references_at=len(LEAD))


def talk(*results: ToolResult, own: str = OWN, **options: Any) -> Conversation:
    """A conversation that has read these, one in each turn."""
    conversation = Conversation(rules(turns=50, **options), job(own))
    for each in results:
        read(conversation, each)
    return conversation


def read(conversation: Conversation, *results: ToolResult) -> Fact:
    conversation.apply(say("", "calls", *(each.call for each in results)))
    step = conversation.next()
    assert isinstance(step, CallTools)
    fact = Returned(conversation.place(results, nobody_else))
    conversation.apply(fact)
    return fact


def first_text(conversation: Conversation) -> str:
    task = asked(conversation).messages[0]
    assert isinstance(task, User)
    return task.text


def behind_calls(conversation: Conversation) -> list[str]:
    messages = asked(conversation).messages
    return [each.content for message in messages if isinstance(message, ToolResults) for each in message.results]


def test_a_result_that_is_placed_first_stands_between_the_lead_and_the_agents_own_text() -> None:
    shown = first_text(talk(result("BERT")))
    assert shown.startswith(LEAD + "<references>\n<reference call='read(title=\"BERT\")'>\nBERT. BERT.")
    assert shown.endswith("\n</reference>\n</references>\n\n" + OWN)


def test_a_pointer_stands_where_the_result_would_have_stood() -> None:
    assert behind_calls(talk(result("BERT"))) == [pointer('read(title="BERT")')]


def test_a_task_without_a_shared_line_has_its_references_at_the_beginning() -> None:
    conversation = Conversation(rules(), Job(0, "key", None, "Why?"))
    read(conversation, result("BERT"))
    assert first_text(conversation).startswith("<references>")


def test_agents_that_read_the_same_documents_in_any_order_have_the_same_bytes_up_to_their_own_text() -> None:
    documents = [result("A", 0), result("B", 1), result("C", 2)]
    texts = {first_text(talk(*order, own=f"Question {at}")) for at, order in enumerate(permutations(documents))}
    assert len({text.partition("</references>")[0] for text in texts}) == 1


def test_an_agent_that_read_fewer_documents_shares_those_that_come_first() -> None:
    fewer, more = first_text(talk(result("A", 0))), first_text(talk(result("C", 2), result("A", 0)))
    assert more.startswith(fewer.partition("</references>")[0])


def test_in_action_mode_the_pointer_is_in_the_message_with_the_results() -> None:
    conversation = Conversation(rules(mode="action"), job())
    conversation.apply(say('{"tool": "read", "arguments": {"title": "BERT"}}'))
    step = conversation.next()
    assert isinstance(step, CallTools)
    conversation.apply(Returned(conversation.place((replace(result("BERT"), call=step.calls[0]),), nobody_else)))
    last = asked(conversation).messages[-1]
    assert last == User("Result of read: " + pointer('read(title="BERT")'))
    assert "<reference call" in first_text(conversation)


def test_the_same_document_is_shown_once_however_often_an_agent_asks() -> None:
    conversation = talk(result("A"), result("A"))
    assert first_text(conversation).count("<reference call") == 1
    assert behind_calls(conversation) == [pointer('read(title="A")')] * 2


def test_a_document_that_has_changed_since_stands_behind_its_call() -> None:
    changed = replace(result("A"), content="Another text. " * 100)
    conversation = talk(result("A"), changed)
    assert behind_calls(conversation)[1] == changed.content
    assert first_text(conversation).count("<reference call") == 1


def test_errors_and_short_results_stay_behind_their_calls() -> None:
    short = replace(result("A"), content="short")
    failed = replace(result("B"), is_error=True)
    conversation = talk(short, failed)
    assert first_text(conversation) == LEAD + OWN
    assert behind_calls(conversation) == ["short", failed.content]


@given(st.lists(st.tuples(st.sampled_from("ABCDE"), st.sampled_from(["first", "auto", "inline"])), max_size=6))
def test_the_same_facts_give_the_same_bytes(reads: list[tuple[str, Placement]]) -> None:
    live = Conversation(rules(turns=50), job())
    facts: list[Fact] = [Started.of(job())]
    for title, placement in reads:
        replied = call(f'{{"title":"{title}"}}', name="read")
        facts.append(replied)
        live.apply(replied)
        returned = Returned(live.place((result(title, ord(title), placement=placement),), lambda path: 4.0))
        facts.append(returned)
        live.apply(returned)
    again = Conversation(rules(turns=50), replace(job(), references_at=0))  # the facts say where
    again.replay(facts)
    assert WIRE.encode(asked(again)) == WIRE.encode(asked(live))


@given(st.lists(st.sampled_from("ABCDE"), max_size=5), st.lists(st.sampled_from("ABCDE"), max_size=5))
def test_a_turn_without_a_new_reference_begins_with_the_bytes_of_the_turn_before(
    titles: list[str], again: list[str]
) -> None:
    conversation = talk(*(result(title, ord(title)) for title in titles))
    before = WIRE.encode(asked(conversation)).partition(b"]")[0]
    for title in again:
        if title in titles:
            read(conversation, result(title, ord(title)))
    messages = orjson.loads(WIRE.encode(asked(conversation)))["messages"]
    assert orjson.dumps(messages).startswith(before.partition(b'"messages":')[2].rstrip(b"]"))


def decide(
    found: ToolResult, own: str, *others: ToolResult, readers: float = 1.0, computations: float = 1.0
) -> Reference:
    messages = (User(LEAD + own), *(message for each in others for message in (Assistant(), ToolResults((each,)))))
    [placed] = place((found,), messages, len(LEAD), lambda path: readers, computations)
    assert placed.reference is not None
    return placed.reference


def test_auto_places_a_long_result_first_that_several_agents_have_at_the_same_place() -> None:
    found = result("A", chars=8000, placement="auto")
    chosen = decide(found, "x" * 1600, readers=2)
    assert (chosen.placement, chosen.moved_chars) == ("first", 1600)


def test_auto_leaves_a_result_behind_its_call_that_only_this_agent_has() -> None:
    assert decide(result("A", chars=8000, readers=9, placement="auto"), "", readers=1).placement == "inline"


def test_auto_leaves_a_result_behind_its_call_if_more_would_have_to_be_computed_again() -> None:
    assert decide(result("A", chars=8000, placement="auto"), "x" * 24_000, readers=100).placement == "inline"
    assert decide(result("A", chars=200, placement="auto"), "x" * 400, readers=100).placement == "inline"


def test_auto_counts_the_references_that_would_move() -> None:
    before, behind = (result("B", rank, chars=8000) for rank in (1, 9))
    late = result("A", 5, chars=8000, placement="auto")
    assert decide(late, "x" * 100, before, readers=1.5).placement == "first"
    assert decide(late, "x" * 100, behind, readers=1.5).placement == "inline"
    assert decide(late, "x" * 100, behind, readers=8).placement == "first"  # others have both in this order


def test_auto_asks_for_the_readers_of_each_reference_that_is_new_in_its_place() -> None:
    asked_for: list[list[str]] = []

    def readers(path: Sequence[str]) -> float:
        asked_for.append([heading.split('"')[1] for heading in path])
        return 2.0

    messages = (User(LEAD), *(part for at in (1, 9) for part in (Assistant(), ToolResults((result(f"B{at}", at),)))))
    place((result("A", 5, placement="auto"),), messages, len(LEAD), readers)
    assert asked_for == [["B1", "A"], ["B1", "A", "B9"]]


def test_auto_places_more_first_where_contexts_are_computed_again_because_the_cache_is_too_small() -> None:
    found = result("A", chars=8000, placement="auto")
    assert decide(found, "x" * 6000, readers=8).placement == "first"
    assert decide(found, "x" * 9000, readers=8).placement == "inline"
    assert decide(found, "x" * 9000, readers=8, computations=2).placement == "first"
    assert decide(found, "x", readers=1, computations=2).placement == "inline"


def test_results_of_one_turn_move_the_own_text_once() -> None:
    pair = [result(title, rank, chars=3000, placement="auto") for rank, title in enumerate("AB")]
    placed = place(tuple(pair), [User(LEAD + "x" * 2500)], len(LEAD), lambda path: 2.0)
    assert all(each.is_placed_first for each in placed)


def test_a_decision_that_was_recorded_stays() -> None:
    assert decide(result("A", readers=1, placement="first"), "x" * 50_000).placement == "first"
    assert decide(result("A", readers=50, placement="inline"), "x").placement == "inline"


def test_a_reference_that_is_compacted_stands_behind_its_call_again() -> None:
    conversation = talk(result("A", 0), result("B", 1), compaction=Compaction(10_000))
    conversation.apply(Compacted((Shortened(0, "[elided]"),)))
    assert behind_calls(conversation) == ["[elided]", pointer('read(title="B")')]
    assert 'read(title="A")' not in first_text(conversation)
    assert list(conversation.references) == ['read(title="B")']


def test_the_transcript_is_what_was_sent() -> None:
    conversation = talk(result("A"))
    sent = asked(conversation).messages
    conversation.apply(say("Because."))
    assert done(conversation).transcript[:-1] == sent


def test_a_conversation_without_references_is_sent_as_it_is() -> None:
    messages = (User("Why?"), Assistant("Because."))
    assert with_references(messages, 0) == messages
