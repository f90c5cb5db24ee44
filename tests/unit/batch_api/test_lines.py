"""Lines of batch files."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent.batch_api.lines import InputLine, check_lines, expired_line, read_line, response_line
from batch_agent.batch_api.resources import BatchProblem

CHAT = "/v1/chat/completions"


def line(custom_id: str = "a", **fields: Any) -> bytes:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": {}, **fields}).encode()


def test_a_line_is_read_with_its_number_in_the_file() -> None:
    found = list(check_lines([line("a"), b"  \n", line("b")], CHAT))
    assert found == [InputLine(1, "a", CHAT, {}), InputLine(3, "b", CHAT, {})]


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"{", "invalid_json_line"),
        (b"[1]", "invalid_json_line"),
        (line(custom_id=4), "invalid_type"),  # type: ignore[arg-type]
        (line(body="text"), "invalid_type"),
        (line(url="/v1/embeddings"), "invalid_url"),
        (line(method="GET"), "invalid_method"),
        (b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}', "missing_required_parameter"),
    ],
)
def test_what_is_wrong_with_a_line_has_openais_code(raw: bytes, code: str) -> None:
    problem = read_line(raw, 7, CHAT)
    assert isinstance(problem, BatchProblem)
    assert (problem.code, problem.line) == (code, 7)


def test_lines_beyond_the_limit_are_one_problem_and_the_rest_is_not_read() -> None:
    found = list(check_lines((line(str(number)) for number in range(100)), CHAT, max_lines=3))
    assert [each.code for each in found if isinstance(each, BatchProblem)] == ["too_many_tasks"]
    assert len(found) == 5


def test_a_file_without_a_request_is_a_problem() -> None:
    (problem,) = check_lines([b"\n"], CHAT)
    assert isinstance(problem, BatchProblem)
    assert problem.code == "empty_file"


@given(st.binary(max_size=200))
def test_any_bytes_are_a_line_or_a_problem(raw: bytes) -> None:
    assert isinstance(read_line(raw, 1), InputLine | BatchProblem)


@given(st.text(), st.dictionaries(st.text(), st.integers(-(2**50), 2**50)))
def test_an_output_line_carries_its_body_and_ends_with_one_line_end(custom_id: str, body: dict[str, int]) -> None:
    written = response_line("id", custom_id, 200, "req", json.dumps(body).encode())
    assert written.count(b"\n") == 1
    assert json.loads(written) == {
        "id": "id",
        "custom_id": custom_id,
        "response": {"status_code": 200, "request_id": "req", "body": body},
        "error": None,
    }


def test_a_line_that_was_not_executed_has_an_error_and_no_response() -> None:
    written = json.loads(expired_line("id", "a"))
    assert written["response"] is None
    assert written["error"]["code"] == "batch_expired"
