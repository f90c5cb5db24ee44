"""Files and batches as OpenAI shows them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Batch as OpenAIBatch
from openai.types import FileObject

from batch_agent.batch_api.api_error import ApiError
from batch_agent.batch_api.resources import (
    Batch,
    BatchProblem,
    RequestCounts,
    StoredFile,
    page_of,
    read_batch_request,
)

WANTED: dict[str, Any] = {
    "input_file_id": "file-1",
    "endpoint": "/v1/chat/completions",
    "completion_window": "24h",
}


def test_openais_client_reads_every_field() -> None:
    batch = Batch("batch_1", "/v1/chat/completions", "file-1", 5, {"a": "b"}, counts=RequestCounts(3, 2, 1))
    batch = batch.moved("in_progress", 6.9).moved("completed", 8)
    read = OpenAIBatch.model_validate(batch.as_json(), strict=True)
    assert (read.status, read.in_progress_at, read.completed_at, read.failed_at) == ("completed", 6, 8, None)
    assert read.to_dict(exclude_unset=True) == batch.as_json()
    file = StoredFile("file-1", "in.jsonl", "batch", 10, 5)
    assert FileObject.model_validate(file.as_json(), strict=True).to_dict() == file.as_json()


def test_problems_are_shown_as_a_list() -> None:
    problem = BatchProblem("invalid_json_line", "This line is not JSON.", None, 3)
    batch = Batch("b", "/v1/chat/completions", "f", 5, problems=[problem]).moved("failed", 6)
    read = OpenAIBatch.model_validate(batch.as_json())
    assert read.errors is not None
    assert read.errors.data is not None
    assert (read.errors.data[0].line, read.failed_at, batch.has_ended) == (3, 6, True)


def test_the_time_of_a_status_is_that_of_its_beginning() -> None:
    batch = Batch("b", "/v1/chat/completions", "f", 5).moved("in_progress", 6)
    assert batch.moved("in_progress", 9) == batch


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input_file_id": None}, "input_file_id"),
        ({"endpoint": "/v1/images"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
    ],
)
def test_a_request_that_is_not_valid_names_its_field(change: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_batch_request({**WANTED, **change}, ("/v1/chat/completions",))
    assert refused.value.body()["error"]["param"] == param


@given(st.integers(0, 30), st.integers(1, 40))
def test_the_pages_of_a_list_are_the_list(size: int, limit: int) -> None:
    files = [StoredFile(f"file-{number}", "", "batch", 0, 0) for number in range(size)]
    found: list[str] = []
    query = {"limit": str(limit)}
    while True:
        page = page_of(files, query)
        found += [each["id"] for each in page["data"]]
        if not page["has_more"]:
            break
        query["after"] = page["last_id"]
    assert found == [file.id for file in files]


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "x"}, {"limit": "101"}, {"after": "file-9"}])
def test_a_page_that_is_not_there_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(ApiError):
        page_of([StoredFile("file-1", "", "batch", 0, 0)], query)
