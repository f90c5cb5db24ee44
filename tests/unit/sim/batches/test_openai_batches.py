"""OpenAI's files and batches, through OpenAI's own client."""

import openai
import pytest
from openai import OpenAI

from batch_agent.sim import BatchConfig, SimConfig, SimServer

from .conftest import CHAT, SECONDS, chat_line, read_lines, submit, upload


def test_an_uploaded_file_can_be_read_listed_and_deleted(client: OpenAI) -> None:
    file = upload(client, chat_line("a"))
    assert client.files.retrieve(file.id) == file
    assert (file.purpose, file.filename, file.bytes) == (
        "batch",
        "requests.jsonl",
        len(client.files.content(file.id).read()),
    )
    assert [each.id for each in client.files.list(purpose="batch")] == [file.id]
    assert list(client.files.list(purpose="assistants")) == []
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.content(file.id)


def test_a_file_may_contain_any_bytes(client: OpenAI) -> None:
    content = b"\r\n--x\r\n\r\n\x00\xff--\r\n"
    file = client.files.create(file=("odd.bin", content), purpose="batch")
    assert client.files.content(file.id).read() == content


def test_a_batch_goes_through_its_statuses_as_the_clock_goes_on(client: OpenAI, sim: SimServer) -> None:
    batch = submit(client, *(chat_line(f"line-{number}") for number in range(10)))
    statuses = [batch.status]
    for seconds in (SECONDS / 2, SECONDS * 0.46, SECONDS * 0.05):
        sim.advance(seconds)
        batch = client.batches.retrieve(batch.id)
        statuses.append(batch.status)
    assert statuses == ["validating", "in_progress", "finalizing", "completed"]
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (10, 10, 0)
    assert batch.completed_at is not None
    assert batch.completed_at - batch.created_at in (SECONDS, SECONDS + 1)
    assert batch.error_file_id is None


def test_a_line_gets_the_answer_that_the_same_request_gets_alone(client: OpenAI, sim: SimServer) -> None:
    batch = submit(client, chat_line("a", "one"), chat_line("b", "two"))
    sim.advance(SECONDS)
    output = read_lines(client, client.batches.retrieve(batch.id).output_file_id)
    for custom_id, text in (("a", "one"), ("b", "two")):
        alone = client.chat.completions.create(model="sim", messages=[{"role": "user", "content": text}], max_tokens=8)
        answer = output[custom_id]["response"]
        assert answer["status_code"] == 200
        assert answer["body"]["choices"][0]["message"]["content"] == alone.choices[0].message.content


def test_only_lines_that_succeed_are_billed_and_only_when_they_are_done(client: OpenAI, sim: SimServer) -> None:
    submit(client, chat_line("good"), chat_line("bad", '[[sim: {"fault": "500"}]]'), chat_line("far", model="other"))
    assert sim.billed("batch")["requests"] == 0
    sim.advance(SECONDS)
    batch = next(iter(client.batches.list()))
    assert sim.billed("batch") == {"requests": 1, "prompt_tokens": 9, "completion_tokens": 8}
    assert sim.metrics()["sim:batch_submissions_total"] == 1
    errors = read_lines(client, batch.error_file_id)
    assert {name: line["response"]["status_code"] for name, line in errors.items()} == {"bad": 500, "far": 404}
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 2)


def test_a_cancelled_batch_keeps_the_lines_that_were_done(client: OpenAI, sim: SimServer) -> None:
    batch = submit(client, *(chat_line(f"line-{number}") for number in range(10)))
    sim.advance(SECONDS / 2)
    assert client.batches.cancel(batch.id).status == "cancelling"
    sim.advance(SECONDS / 10)
    batch = client.batches.retrieve(batch.id)
    assert batch.status == "cancelled"
    done, rest = read_lines(client, batch.output_file_id), read_lines(client, batch.error_file_id)
    assert (len(done), len(rest)) == (5, 5)
    assert {line["error"]["code"] for line in rest.values()} == {"batch_cancelled"}
    assert sim.billed("batch")["requests"] == 5
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)


def test_metadata_comes_back_and_lists_are_paged(client: OpenAI) -> None:
    file = upload(client, chat_line("a"))
    for number in range(5):
        client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"wave": str(number)}
        )
    first = client.batches.list(limit=2)
    assert first.has_more
    assert [each.metadata for each in first] == [{"wave": str(number)} for number in (4, 3, 2, 1, 0)]
    after = client.batches.list(after=first.data[0].id, limit=1)
    assert after.data[0].metadata == {"wave": "3"}


@pytest.mark.parametrize(
    ("lines", "code", "line"),
    [
        ([chat_line("a"), chat_line("a")], "duplicate_custom_id", 2),
        ([{**chat_line("a"), "url": "/v1/completions"}], "invalid_url", 1),
        ([{**chat_line("a"), "method": "GET"}], "invalid_method", 1),
        ([{"custom_id": "a"}], "missing_required_parameter", 1),
        ([], "empty_file", None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_is_not_valid_fails_the_batch(
    client: OpenAI, lines: list[dict[str, str]], code: str, line: int
) -> None:
    batch = client.batches.retrieve(submit(client, *lines).id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert (batch.errors.data[0].code, batch.errors.data[0].line) == (code, line)


def test_a_request_for_a_batch_that_cannot_be_is_refused(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.batches.create(input_file_id="file-none", endpoint=CHAT, completion_window="24h")
    with pytest.raises(openai.BadRequestError, match="Supported values"):
        client.batches.create(input_file_id="file-none", endpoint="/v1/embeddings", completion_window="24h")
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve("batch_none")


def test_an_expired_batch_has_the_lines_that_were_done_and_says_which_were_not(client: OpenAI, sim: SimServer) -> None:
    sim.arm("expired", share=0.4)
    batch = submit(client, *(chat_line(f"line-{number}") for number in range(5)))
    sim.advance(SECONDS)
    batch = client.batches.retrieve(batch.id)
    assert batch.status == "expired"
    assert sorted(read_lines(client, batch.output_file_id)) == ["line-0", "line-1", "line-2"]
    errors = read_lines(client, batch.error_file_id)
    assert {name: line["error"]["code"] for name, line in errors.items()} == dict.fromkeys(
        ("line-3", "line-4"), "batch_expired"
    )
    assert sim.billed("batch")["requests"] == 3


def test_a_batch_that_takes_longer_than_its_window_expires() -> None:
    with (
        SimServer(SimConfig(zero_latency=True, batches=BatchConfig(seconds=48 * 3600))) as sim,
        OpenAI(base_url=f"{sim.url}/v1", api_key="none") as client,
    ):
        batch = submit(client, *(chat_line(f"line-{number}") for number in range(10)))
        sim.advance(24 * 3600)
        batch = client.batches.retrieve(batch.id)
        assert (batch.status, batch.expired_at) == ("expired", batch.expires_at)
        assert len(read_lines(client, batch.output_file_id)) == 5


@pytest.mark.parametrize(("fault", "done", "failed"), [("errored", 2, 2), ("missing", 2, 0)])
def test_a_share_of_the_lines_can_fail_or_be_missing(
    client: OpenAI, sim: SimServer, fault: str, done: int, failed: int
) -> None:
    sim.arm(fault, share=0.5)
    batch = submit(client, *(chat_line(f"line-{number}") for number in range(4)))
    sim.advance(SECONDS)
    batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed"
    assert len(read_lines(client, batch.output_file_id)) == done
    assert len(read_lines(client, batch.error_file_id) if batch.error_file_id else {}) == failed
    assert sim.billed("batch")["requests"] == done


def test_a_batch_exists_although_its_answer_was_an_error(client: OpenAI, sim: SimServer) -> None:
    for fault, error in (
        ("error_after_create", openai.InternalServerError),
        ("lost_answer", openai.APIConnectionError),
    ):
        sim.arm(fault)
        with pytest.raises(error):
            submit(client, chat_line("a"))
    assert len(list(client.batches.list())) == 2
    assert sim.metrics()["sim:batch_submissions_total"] == 2


def test_the_results_of_a_batch_can_be_lost(client: OpenAI, sim: SimServer) -> None:
    sim.arm("lost_file")
    batch = submit(client, chat_line("a"))
    sim.advance(SECONDS)
    batch = client.batches.retrieve(batch.id)
    assert (batch.status, batch.output_file_id is None) == ("completed", False)
    with pytest.raises(openai.NotFoundError):
        client.files.content(batch.output_file_id or "")


def test_a_batch_beyond_the_queued_tokens_fails_until_others_have_ended() -> None:
    config = SimConfig(zero_latency=True, batches=BatchConfig(seconds=SECONDS, enqueued_tokens=15))
    with SimServer(config) as sim, OpenAI(base_url=f"{sim.url}/v1", api_key="none") as client:
        first, second = submit(client, chat_line("a")), submit(client, chat_line("b"))
        refused = client.batches.retrieve(second.id)
        assert refused.status == "failed"
        assert refused.errors is not None
        assert refused.errors.data is not None
        assert refused.errors.data[0].code == "token_limit_exceeded"
        sim.advance(SECONDS)
        assert client.batches.retrieve(submit(client, chat_line("b")).id).status == "validating"
        assert client.batches.retrieve(first.id).status == "completed"


def test_a_batch_of_text_completions_is_answered(client: OpenAI, sim: SimServer) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "sim", "prompt": "one"}}
    file = upload(client, line)
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    sim.advance(SECONDS)
    output = read_lines(client, client.batches.retrieve(batch.id).output_file_id)
    assert output["a"]["response"]["body"]["choices"][0]["text"]


def test_the_default_batch_ends_within_seconds_of_real_time() -> None:
    assert SimConfig().batches.seconds <= 5


def test_a_fault_that_does_not_exist_is_refused(sim: SimServer) -> None:
    with pytest.raises(ValueError, match="one of expired, errored"):
        sim.arm("storm")
