"""What breaks a shared prefix is found; what only looks like it is not."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from hashlib import sha1, sha256
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel
from tests.support.plans import rules

from batch_agent.core.messages import ToolSpec
from batch_agent.core.run_reports import Finding
from batch_agent.plan.lint import MAX_FINDINGS, find_prefix_breaks

SESSION = "3f2a9c1d-77b0-4e21-9c0a-1b5d8e6f7a90"
LONG_TEXT = "You answer questions about our products, politely and in full sentences. " * 10


def in_system(system: str, **options: bool) -> list[str]:
    return kinds(find_prefix_breaks(system, "", (), (), (), **options))


def in_rows(rows: Sequence[dict[str, Any]], *order: str) -> list[str]:
    return kinds(find_prefix_breaks("", "", (), rows, order or tuple(rows[0])))


def kinds(findings: Sequence[Finding]) -> list[str]:
    return [finding.kind for finding in findings]


def tool(name: str, description: str) -> ToolSpec:
    return ToolSpec(name, description, {"type": "object", "properties": {}})


@pytest.mark.parametrize(
    "text",
    [
        "2026-10-01T12:34:56Z",
        "You are an assistant. Generated 2026-10-01T12:34:56.123456+00:00.",
        "Report of 2026-10-01 09:15:02",
        "Started 20261001T123456Z.",
        "Date: Thu, 01 Oct 2026 08:12:31 GMT",
        "Thu Oct  1 10:42:01 2026",
        "Made on October 1, 2026 at 10:42 AM.",
        "It is 10:42, 1 October 2026.",
        "Log of 01.10.2026 10:42",
        "Today is 2026-10-01.",
        "Today is Thursday, and you are a helpful assistant.",
        "Today's date is October 1, 2026.",
        "Today’s date: 1st of October",
        "Current date: 2026-10-01",
        "**Current date:** 2026-10-01",
        "Current date and time: 1 October 2026",
        "current_time = '10:42'",
        "CURRENT_DATE=2026-10-01",
        "It is now 10:42.",
        "<env>\nToday's date: 2026-10-01\n</env>",
        "timestamp: 1790857234",
        "ts=1790857234123",
        "Unix time 1790857234",
    ],
)
def test_a_time_stamp_in_the_system_prompt_is_found(text: str) -> None:
    assert in_system(text) == ["timestamp"]
    assert in_system(LONG_TEXT + text) == ["timestamp"]


@pytest.mark.parametrize(
    "text",
    [
        "Ada Lovelace was born on December 10, 1815, and died in 1852.",
        "She was born on 1990-04-12 in Rome. In 2024 she moved to Paris.",
        "Prices are as of 2024-01-15. The shop opens at 10:30 and closes at 18:00.",
        "Knowledge cutoff: 2023-10",
        "Today is a good day to be exact. Today, 3 of 10 people agree.",
        "The current date is given in the task. Today's date: {date}",
        "If today is Monday, mention the opening hours.",
        "Contracts signed before 2024-01-01T00:00:00Z are void; later ones end 2030-12-31 23:59:59.",
        "Write times like 2024-03-05T10:30:12Z.",
        "Use ISO 8601 (2024-03-05T10:30:12Z) for all times.",
        "Give the time, e.g. 2024-03-05 10:30, in UTC.",
        "Answer in the format 5 March 2024, 10:30.",
        "Examples:\n2024-03-05 10:30:12 ERROR disk full -> disk\n2024-03-05 10:31:12 WARN slow -> speed",
        'Answer with JSON: {"at": "2024-03-05T10:30:12Z", "timestamp": 1790857234, "name": "Ada"}',
        "```python\nstart = parse(2024-03-05 10:30:12)\nts = 1790857234\n```",
        "SELECT * FROM logs WHERE at > '2024-03-05 10:30:12'",
        "MOD = 1000000007; LIMIT = 2147483647; a = 1812433253 * x; call 1800555019",
        "def f(x: int = 1700000001) -> int: return x  # v1.2.3, 16:9, a[1:30]",
        r"\begin{tabular}{l} \frac{2024}{10} 10{:}30 \end{tabular} at \textbf{12:30}",
        "The Apollo 11 landing was on 1969-07-20T20:17:40Z.",
        "timestamp=1700000000",
        "timestamp: 123456789",
        "",
    ],
)
def test_prose_code_and_examples_hold_no_time_stamp(text: str) -> None:
    assert in_system(text) == []
    assert in_system(LONG_TEXT + "\n\n" + text) == []


@pytest.mark.parametrize(
    "text",
    [
        SESSION,
        f"You work in the workspace {SESSION}.",
        f"Session {SESSION.upper()}: be brief.",
        "Your session id is 9f8c2b7a6d5e4f30.",
        "session_id='dGhpcyBpcyB1c2Vk8sK2Lq0Zx3'",
        "request: req_7hG2kL9pQ4rT1",
        "Ticket for run_7hG2kL9pQ4rT1xZ.",
        "trace-id: 4bf92f3577b34da6a3ce929d0e0e4736",
        "Conversation ID: 827364512736",
    ],
)
def test_a_random_id_is_found(text: str) -> None:
    assert in_system("Be kind.\n" * 20 + text) == ["uuid"]
    assert kinds(find_prefix_breaks("", text, (), (), ())) == ["uuid"]


@pytest.mark.parametrize(
    "text",
    [
        "See https://example.com/docs/3f2a9c1d-77b0-4e21-9c0a-1b5d8e6f7a90 for more.",
        "The role arn:aws:run:3f2a9c1d-77b0-4e21-9c0a-1b5d8e6f7a90, or {3F2A9C1D-77B0-4E21-9C0A-1B5D8E6F7A90}.",
        "An id such as 3f2a9c1d-77b0-4e21-9c0a-1b5d8e6f7a90 names a user.",
        "Ids look like `3f2a9c1d-77b0-4e21-9c0a-1b5d8e6f7a90`.",
        '{"session_id": "3f2a9c1d-77b0-4e21-9c0a-1b5d8e6f7a90"}',
        "The user 123e4567-e89b-12d3-a456-426614174000 is the one of the RFC.",
        "Nobody is 00000000-0000-0000-0000-000000000000.",
        "Pinned to commit 7ca2bcf1d0a94e5b8c6f3a2e1d0c9b8a7f6e5d4c, image sha256:9f86d081884c7d659a2feaa0c55ad015.",
        "session: introduction-to-python",
        "Session: 2026-spring-cohort. Run: gpt4o-mini-2024-07-18. Job: mySessionConfigName2024",
        "The session is recorded. Request: summarize_the_document_in_3_lines",
        "run = training_2; trace = np.trace(matrix3x3)",
        "E = mc^2, x_{12345678}, \\ref{eq:session-42}",
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAAHElEQVQI12P4",
    ],
)
def test_names_urls_examples_and_code_are_no_random_ids(text: str) -> None:
    assert in_system(f"{LONG_TEXT}\n\n{text}") == []
    assert kinds(find_prefix_breaks("", text, (), (), ())) == []


def test_a_finding_says_what_was_found_where_and_what_to_do() -> None:
    (found,) = find_prefix_breaks("", "Today is 2026-10-01. Rate this review: ", (), (), ())
    assert "The text with which every task begins" in found.message
    assert "'Today is 2026-10-01'" in found.message
    assert found.advice == "Remove it, or move it to the end of the task."


def test_no_more_than_forty_characters_are_quoted() -> None:
    (found,) = find_prefix_breaks("", "session: " + "a1B2" * 40, (), (), ())
    assert "'session: a1B2a1B2a1B2a1B2a1B2a1B2a1B2...'" in found.message


def test_each_place_is_reported_once_for_a_kind() -> None:
    text = f"Today is 2026-10-01. Now: 10:42. {SESSION} and session 0{SESSION[1:]}."
    assert kinds(find_prefix_breaks(text, text, (), (), ())) == ["timestamp", "uuid", "timestamp", "uuid"]


def test_only_the_beginning_of_a_long_text_is_looked_at() -> None:
    assert in_system("word " * 5_000 + "Today is 2026-10-01.") == []


def test_a_stamp_in_a_description_names_the_tool() -> None:
    tools = [tool("calm", "Finds pages."), tool("clock", "Index of 2026-10-01T12:34:56Z."), tool("b", "Now: 10:42")]
    (found,) = find_prefix_breaks("", "", tools, (), ())
    assert found.kind == "timestamp"
    assert "the tool 'clock' (and of 1 more)" in found.message


def test_tools_in_a_set_are_reported_unless_there_is_but_one() -> None:
    tools = [tool("a", ""), tool("b", "")]
    assert kinds(find_prefix_breaks("", "", tools, (), (), unordered_tools=True)) == ["tool_order"]
    assert kinds(find_prefix_breaks("", "", tools, (), ())) == []
    assert kinds(find_prefix_breaks("", "", tools[:1], (), (), unordered_tools=True)) == []


def test_tools_that_the_system_prompt_describes_have_an_order_too() -> None:
    assert in_system("Tools:\na()\nb()", unordered_tools=True) == ["tool_order"]


PREAMBLE = f"x-anthropic-billing-header: cch=1\nX-Session-ID: {SESSION}\n\nYou are kind."


def test_a_preamble_that_is_kept_is_one_finding() -> None:
    (found,) = find_prefix_breaks(PREAMBLE, "", (), (), (), keeps_preamble=True)
    assert found.kind == "session_header"
    assert "'x-anthropic-billing-header: cch=1'" in found.message
    assert "strip_preamble=True" in found.advice


def test_what_strip_preamble_takes_off_is_not_found_afterwards() -> None:
    assert in_system(rules(system_prompt=PREAMBLE, strip_preamble=True).prompt.system) == []
    kept = rules(system_prompt=PREAMBLE, strip_preamble=False).prompt.system
    assert in_system(kept, keeps_preamble=True) == ["session_header"]


@pytest.mark.parametrize(
    "line",
    [
        "x-request-id: 42",
        "x-anthropic-billing-header: anything",
        f"x-conversation: {SESSION}",
        "session: 9f8c2b7a6d5e4f30",
        "Request-ID: 8273645127",
        "trace_id = 4bf92f3577b34da6a3ce929d0e0e4736",
    ],
)
def test_a_header_that_strip_preamble_leaves_is_found_once(line: str) -> None:
    system = f"You are kind.\n{line}\nAnswer briefly."
    assert in_system(system) == in_system(system, keeps_preamble=True) == ["session_header"]


@pytest.mark.parametrize(
    "line",
    ["x-api-version: 2", "session: morning", "Session 3: closures", "request: summarize", "x: 5", "name: x-ray"],
)
def test_a_line_with_a_colon_is_not_a_header(line: str) -> None:
    assert in_system(f"{line}\nYou are kind.") == []


def test_headers_far_down_are_text() -> None:
    assert in_system("A line.\n" * 20 + "x-request-id: 42") == []


PRODUCTS = ["lamp " * 20, "desk " * 20, "sofa " * 20]


def reviews(ids: Sequence[Any], name: str = "id") -> list[dict[str, Any]]:
    return [{name: one, "product": PRODUCTS[at % 3], "review": f"Review {at}."} for at, one in enumerate(ids)]


START = datetime(2026, 10, 1, 10, 0, 7)


@pytest.mark.parametrize(
    "ids",
    [
        range(40),
        [100 - at for at in range(40)],
        [str(at * 7) for at in range(40)],
        [f"ORD-{at * 7919 % 1000:05}" for at in range(40)],
        [f"2026/{at:04}" for at in range(40)],
        [UUID(int=at * 2**64 + 77) for at in range(40)],
        [sha1(b"%d" % at).hexdigest() for at in range(40)],
        [sha256(b"%d" % at).hexdigest()[:16] for at in range(40)],
        [START + timedelta(minutes=at) for at in range(40)],
        [(START + timedelta(minutes=at)).isoformat() + "Z" for at in range(40)],
        [(START + timedelta(minutes=at)).strftime("%a, %d %b %Y %H:%M:%S GMT") for at in range(40)],
        [(START + timedelta(days=at)).date() for at in range(40)],
        [1790857234.25 + at * 13 for at in range(40)],
        [1790857234123 + at * 7919 % 1000 for at in range(40)],
    ],
)
def test_an_id_before_fields_that_repeat_is_found(ids: Sequence[Any]) -> None:
    (found,) = find_prefix_breaks("", "", (), reviews(ids, "given"), ("given", "product", "review"))
    assert found.kind == "leading_id"
    assert "'given'" in found.message
    assert "'product' repeats" in found.message
    assert found.advice == "Move {given} to the end of the task, or declare the task as Fields(...)."


def test_numbers_in_no_order_are_ids_only_by_name() -> None:
    ids = [at * 7919 % 1000 for at in range(40)]
    assert in_rows(reviews(ids, "ticket_id")) == in_rows(reviews(ids, "ticketId")) == ["leading_id"]
    assert in_rows(reviews(ids, "price")) == []


def test_nearly_every_row_is_enough() -> None:
    ids = [sha1(b"%d" % at).hexdigest() for at in range(39)]
    assert in_rows(reviews([*ids, ids[0]])) == ["leading_id"]
    assert in_rows(reviews([*ids[:39], "unknown"])) == ["leading_id"]
    assert in_rows(reviews(ids[:20] * 2)) == []


def test_an_id_that_is_not_first_or_has_nothing_shared_behind_it_is_fine() -> None:
    rows = reviews(range(40))
    assert in_rows(rows, "product", "id", "review") == []
    assert in_rows(rows, "product", "review", "id") == []
    assert in_rows(rows, "id", "review") == []
    assert in_rows(rows, "id") == []


def test_text_that_comes_first_is_no_id() -> None:
    cities = [f"{name} {at}" for at, name in enumerate(["Roma", "Paris", "Wien", "Oslo"] * 10)]
    planes = [f"{name}{at}" for at, name in enumerate(["Boeing-", "A", "Tu-", "Il-", "MD-"] * 8)]
    logs = [f"2026-10-01T10:{at:02}:00Z ERROR disk {at} is full" for at in range(40)]
    for texts in (cities, planes, logs):
        assert in_rows(reviews(texts, "text")) == []


def test_stamps_and_hashes_in_the_values_of_fields_are_data() -> None:
    rows = [
        {"code": f"git checkout {sha1(b'%d' % at).hexdigest()} # Today is 2026-10-01", "log": f"{START} {SESSION} {at}"}
        for at in range(40)
    ]
    assert in_rows(rows) == []


def test_fields_within_fields_are_found_by_their_path() -> None:
    class Order(BaseModel):
        number: int

    rows = [{"order": Order(number=at), "of": {"product": PRODUCTS[at % 3]}} for at in range(40)]
    (found,) = find_prefix_breaks("", "", (), rows, ("order.number", "of.product"))
    assert found.kind == "leading_id"


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 10, 100])
@pytest.mark.parametrize("count", [201, 4_003, 20_000])
def test_of_many_rows_enough_are_looked_at_to_see_neighbours_repeat(count: int, size: int) -> None:
    assert in_rows([{"id": at, "product": f"{at // size}"} for at in range(count)]) == ["leading_id"]


def test_a_field_that_no_row_has_is_passed_over() -> None:
    assert in_rows([{"id": at} for at in range(40)], "id", "nowhere") == []


def test_keys_in_another_order_are_found_also_deep_inside() -> None:
    one, other = {"a": 1, "b": [{"c": 2, "d": 3}]}, {"a": 1, "b": [{"d": 3, "c": 2}]}
    (found,) = find_prefix_breaks("", "", (), [{"spec": one}, {"spec": other}], ("spec",))
    assert found.kind == "unordered"
    assert "'spec'" in found.message
    assert found.advice == "Sort the keys."
    assert in_rows([{"spec": MappingProxyType({"a": 1, "b": 2})}, {"spec": {"b": 2, "a": 1}}]) == ["unordered"]


def test_sets_are_shown_sorted_and_lists_have_an_order() -> None:
    assert in_rows([{"tags": {"a", "b"}}, {"tags": {"c"}}]) == []
    assert in_rows([{"tags": ["a", "b"]}, {"tags": ["b", "a"]}]) == []


def test_dicts_with_other_content_or_the_same_order_are_fine() -> None:
    assert in_rows([{"spec": {"a": 1, "b": 2}}, {"spec": {"b": 1, "a": 2}}]) == []
    assert in_rows([{"spec": {"b": 1, "a": 2}, "n": str(at)} for at in range(4)]) == []
    assert in_rows([{"spec": {"a": (1, 2)}}, {"spec": {"a": [1, 2]}}]) == []


@pytest.mark.parametrize("name", ["system", "system_prompt", "systemPrompt", "persona", "role_prompt", "agent.persona"])
def test_a_field_that_is_named_like_a_system_prompt_is_found(name: str) -> None:
    rows = [{name: f"You are {who}.", "question": "Why?"} for who in ("Ann", "Bob", "Eve")]
    (found,) = find_prefix_breaks("", "", (), rows, (name,))
    assert found.kind == "system_prompt"
    assert repr(name) in found.message
    assert "system_prompt=..." in found.advice


@pytest.mark.parametrize("name", ["role", "ecosystem", "file_system", "prompt", "instruction", "message"])
def test_other_names_are_no_system_prompts(name: str) -> None:
    assert in_rows([{name: f"You are {who}."} for who in ("Ann", "Bob", "Eve")]) == []


def test_a_field_named_system_with_a_word_in_it_is_data() -> None:
    assert in_rows([{"system": name} for name in ("linux", "darwin", "windows")]) == []


def test_few_personas_that_come_first_are_shared_and_behind_others_are_not() -> None:
    rows = [{"persona": f"You are {'Ann' if at % 2 else 'Bob'}.", "text": f"Text {at}."} for at in range(20)]
    assert in_rows(rows, "persona", "text") == []
    assert in_rows(rows, "text", "persona") == ["system_prompt"]


def test_a_long_text_with_a_name_put_into_it_is_found_if_it_comes_first() -> None:
    rows = [{"text": f"{LONG_TEXT}Your name is {who}. {LONG_TEXT}", "n": who} for who in ("Ann", "Robert", "Eve")]
    assert in_rows(rows, "text", "n") == ["system_prompt"]
    assert in_rows(rows, "n", "text") == []


def test_a_long_text_that_differs_only_at_its_end_is_fine() -> None:
    assert in_rows([{"text": f"{LONG_TEXT}Your name is {who}."} for who in ("Ann", "Robert", "Eve")]) == []


def test_long_texts_that_differ_a_lot_are_fine() -> None:
    assert (
        in_rows([{"text": LONG_TEXT[:100] + word * 200 + LONG_TEXT[:100]} for word in ("good ", "bad ", "ugly ")]) == []
    )


def test_values_that_differ_in_blanks_or_their_first_letter_are_found() -> None:
    for other in ("The lamp. ", "\nThe lamp.", "the lamp."):
        rows = [{"product": "The lamp.", "review": "a"}, {"product": other, "review": "b"}]
        (found,) = find_prefix_breaks("", "", (), rows, ("product", "review"))
        assert found.kind == "near_duplicate"
        assert "'product'" in found.message


def test_values_behind_a_difference_or_with_another_content_are_no_near_duplicates() -> None:
    rows = [{"product": "The lamp.", "review": "good"}, {"product": "The desk.", "review": "good "}]
    assert in_rows(rows, "product", "review") == []
    assert in_rows(rows, "review", "product") == ["near_duplicate"]
    assert in_rows([{"word": "US"}, {"word": "us"}, {"word": "u s"}]) == []


def test_an_ordinary_run_has_no_findings() -> None:
    lead = "Does the review fit the product? Answer yes or no.\n\n"
    rows = [{"product": PRODUCTS[at % 3], "review": f"Bought in 2024, number {at}."} for at in range(40)]
    assert find_prefix_breaks(LONG_TEXT, lead, [tool("search", "Finds pages.")], rows, ("product", "review")) == ()


def test_there_are_no_more_than_a_dozen_in_the_order_of_the_prompt() -> None:
    stamp = f"Today is 2026-10-01. Workspace {SESSION}."
    unordered = [{"a": 1, "b": 2}, {"b": 2, "a": 1}]
    rows = [{f"f{field}": unordered[at % 2] for field in range(20)} for at in range(3)]
    tools = [tool("a", stamp), tool("b", stamp)]
    system = f"x-session-id: {SESSION}\n{stamp}"
    found = kinds(
        find_prefix_breaks(system, stamp, tools, rows, tuple(rows[0]), unordered_tools=True, keeps_preamble=True)
    )
    assert len(found) == MAX_FINDINGS
    stamps = ["timestamp", "uuid"]
    assert found == ["session_header", *stamps, "tool_order", *stamps, *stamps, *["unordered"] * 4]
