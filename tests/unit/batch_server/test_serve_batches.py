"""The batch server, through OpenAI's own client."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import ClientSession, FormData
from openai import AsyncOpenAI
from openai.types import Batch, FileObject

from batch_agent.batch_server import batch_worker
from batch_agent.batch_server.batch_store import BatchStore
from batch_agent.batch_server.server import BatchServerConfig, serve_batches
from batch_agent.core.errors import SpecError, StoreError
from batch_agent.core.spec import BatchSpec
from batch_agent.schedule.retry import Backoff
from batch_agent.sim import SimConfig, SimServer
from batch_agent.tools import read_file_tool

from .conftest import CHAT, chat_line, jsonl, spec_of

SLOW = SimConfig(step_base_ms=20, step_us_per_seq=0, prefill_us_per_token=0, step_ns_per_kv_token=0)


@asynccontextmanager
async def serving(
    folder: Path,
    spec: BatchSpec,
    tools: Any = (),
    key: str = "none",
    notify: Callable[[str], None] = lambda _: None,
    **config: Any,
) -> AsyncIterator[AsyncOpenAI]:
    stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
    options = BatchServerConfig(folder, port=0, **config)
    task = asyncio.create_task(serve_batches(options, spec, tools, notify, port.set_result, stop))
    await asyncio.wait([task, port], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    client = AsyncOpenAI(base_url=f"http://127.0.0.1:{port.result()}/v1", api_key=key, max_retries=0)
    try:
        async with client:
            yield client
    finally:
        stop.set()
        await task


async def upload(client: AsyncOpenAI, *lines: dict[str, Any]) -> FileObject:
    return await client.files.create(file=("requests.jsonl", jsonl(*lines)), purpose="batch")


async def submit(client: AsyncOpenAI, *lines: dict[str, Any], **more: Any) -> Batch:
    file = await upload(client, *lines)
    return await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h", **more)


async def until(client: AsyncOpenAI, batch_id: str, is_done: Callable[[Batch], bool]) -> Batch:
    async with asyncio.timeout(60):
        while not is_done(batch := await client.batches.retrieve(batch_id)):
            await asyncio.sleep(0.02)
    return batch


async def ended(client: AsyncOpenAI, batch: Batch) -> Batch:
    return await until(client, batch.id, lambda each: each.status in ("completed", "failed", "expired", "cancelled"))


async def read_file(client: AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    if file_id is None:
        return {}
    lines = [json.loads(line) for line in (await client.files.content(file_id)).text.splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines)
    return found


async def test_the_session_of_a_user_of_openais_client(tmp_path: Path, sim: SimServer) -> None:
    lines = [chat_line(f"line-{number}", f'[[sim: {{"text": "answer {number}"}}]]') for number in range(20)]
    async with serving(tmp_path / "batches", spec_of(sim)) as client:
        batch = await submit(client, *lines, chat_line("bad", model="other"), metadata={"from": "test"})
        assert (batch.status, batch.metadata) == ("validating", {"from": "test"})
        batch = await ended(client, batch)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (21, 20, 1)
        output, errors = await read_file(client, batch.output_file_id), await read_file(client, batch.error_file_id)
        assert list(output) == [line["custom_id"] for line in lines], "the output is in the order of the input"
        assert output["line-7"]["response"]["body"]["choices"][0]["message"]["content"] == "answer 7"
        assert errors["bad"]["response"]["status_code"] == 404
        usages = [line["response"]["body"]["usage"] for line in output.values()]
        assert batch.usage is not None
        assert batch.usage.input_tokens == sum(usage["prompt_tokens"] for usage in usages) > 0
        assert batch.usage.output_tokens == sum(usage["completion_tokens"] for usage in usages) > 0
        assert batch.usage.total_tokens == sum(usage["total_tokens"] for usage in usages)
        assert batch.usage.input_tokens_details.cached_tokens < batch.usage.input_tokens
        last = batch
        assert [each.id async for each in client.models.list()] == ["sim"]
    async with serving(tmp_path / "batches", spec_of(sim)) as client:
        assert await client.batches.retrieve(last.id) == last


async def test_files_are_listed_read_and_deleted(tmp_path: Path, sim: SimServer) -> None:
    async with serving(tmp_path / "batches", spec_of(sim)) as client:
        files = [await upload(client, chat_line(str(number))) for number in range(3)]
        assert [each.id async for each in client.files.list(limit=2)] == [each.id for each in files[::-1]]
        assert await client.files.retrieve(files[0].id) == files[0]
        assert (await client.files.content(files[0].id)).content == jsonl(chat_line("0"))
        assert (await client.files.delete(files[0].id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.content(files[0].id)
    async with serving(tmp_path / "batches", spec_of(sim)) as client:
        assert [each.id async for each in client.files.list()] == [files[2].id, files[1].id]


async def test_batches_are_listed_newest_first_and_in_pages(tmp_path: Path, sim: SimServer) -> None:
    async with serving(tmp_path / "batches", spec_of(sim)) as client:
        ids = [(await submit(client, chat_line("a"))).id for _ in range(5)]
        assert [each.id async for each in client.batches.list(limit=2)] == ids[::-1]


async def test_an_invalid_file_fails_the_batch_and_nothing_is_sent(tmp_path: Path) -> None:
    with SimServer(SimConfig(zero_latency=True)) as sim:
        async with serving(tmp_path / "batches", spec_of(sim), max_lines=3) as client:
            batch = await ended(client, await submit(client, chat_line("a"), chat_line("a")))
            assert batch.status == "failed"
            assert batch.errors is not None
            assert batch.errors.data is not None
            assert [(each.code, each.line) for each in batch.errors.data] == [("duplicate_custom_id", 2)]
            too_many = await ended(client, await submit(client, *(chat_line(str(number)) for number in range(5))))
            assert too_many.errors is not None
            assert too_many.errors.data is not None
            assert too_many.errors.data[0].code == "too_many_tasks"
        assert sim.metrics()["sim:http_requests_total"] == 0


async def test_what_the_server_does_not_do_is_refused_in_openais_format(tmp_path: Path, sim: SimServer) -> None:
    async with serving(tmp_path / "batches", spec_of(sim), max_file_bytes=1000) as client:
        file = await upload(client, chat_line("a"))
        with pytest.raises(openai.BadRequestError, match="Supported values are: '/v1/chat/completions'"):
            await client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h")
        with pytest.raises(openai.NotFoundError, match="No such File object"):
            await client.batches.create(input_file_id="file-none", endpoint=CHAT, completion_window="24h")
        with pytest.raises(openai.BadRequestError, match="not one of"):
            await client.files.create(file=("a", b"x"), purpose="assistants")
        with pytest.raises(openai.APIStatusError, match="larger than 1,000 bytes") as refused:
            await client.files.create(file=("a", b"x" * 2000), purpose="batch")
        assert refused.value.status_code == 413
        with pytest.raises(openai.NotFoundError, match="This server has /v1/files"):
            await client.chat.completions.create(model="sim", messages=[{"role": "user", "content": "hi"}])
        with pytest.raises(openai.NotFoundError):
            await client.batches.cancel("batch_none")
        assert [each.id async for each in client.files.list()] == [file.id]
        assert [each.name for each in (tmp_path / "batches" / "files").iterdir()] == [file.id]


async def test_a_key_is_required_where_it_is_set(tmp_path: Path, sim: SimServer) -> None:
    async with serving(tmp_path / "batches", spec_of(sim), key="wrong", api_key="secret") as client:
        with pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
            await client.files.list()
        assert (await client.with_options(api_key="secret").files.list()).data == []
    with pytest.raises(SpecError, match="set an API key"):
        BatchServerConfig(tmp_path, "0.0.0.0")


async def test_a_page_of_another_site_cannot_use_the_server(tmp_path: Path, sim: SimServer) -> None:
    async with serving(tmp_path / "batches", spec_of(sim)) as client, ClientSession() as browser:
        async with browser.get(f"{client.base_url}files", headers={"Host": "evil.example"}) as rebound:
            assert rebound.status == 403
        plain = {"Content-Type": "text/plain"}
        async with browser.post(f"{client.base_url}batches", data=b"{}", headers=plain) as form:
            assert form.status == 400
        upload = FormData({"purpose": "batch"})
        upload.add_field("file", b"{}", filename="a.jsonl")
        origin = {"Origin": "https://evil.example"}
        async with browser.post(f"{client.base_url}files", data=upload, headers=origin) as form:
            assert form.status == 403
        assert (await client.files.list()).data == []


async def test_a_cancelled_batch_keeps_the_lines_that_were_answered(tmp_path: Path) -> None:
    with SimServer(SLOW) as sim:
        async with serving(tmp_path / "batches", spec_of(sim, max_inflight=2)) as client:
            batch = await submit(client, *(chat_line(f"line-{number}", max_tokens=4) for number in range(50)))
            await until(
                client, batch.id, lambda each: each.request_counts is not None and each.request_counts.completed > 3
            )
            with pytest.raises(openai.ConflictError, match="has not ended"):
                await client.files.delete(batch.input_file_id)
            twice = [client.batches.cancel(batch.id) for _ in range(2)]
            first, second = await asyncio.gather(*twice, return_exceptions=True)
            assert isinstance(first, Batch)
            assert first.status == "cancelling"
            assert isinstance(second, Batch | openai.ConflictError), "the second may come after the end"
            batch = await ended(client, batch)
            assert batch.status == "cancelled"
            output, errors = await read_file(client, batch.output_file_id), await read_file(client, batch.error_file_id)
            assert len(output) >= 4
            assert len(output) + len(errors) == 50
            assert {line["error"]["code"] for line in errors.values()} == {"batch_cancelled"}
            with pytest.raises(openai.ConflictError, match="Cannot cancel"):
                await client.batches.cancel(batch.id)


async def test_a_small_batch_does_not_wait_for_the_end_of_a_large_one(tmp_path: Path) -> None:
    with SimServer(SLOW) as sim:
        async with serving(tmp_path / "batches", spec_of(sim, max_inflight=2)) as client:
            large = await submit(client, *(chat_line(f"line-{number}", max_tokens=4) for number in range(200)))
            await until(client, large.id, lambda each: each.status == "in_progress")
            small = await ended(client, await submit(client, chat_line("a", max_tokens=4)))
            assert small.status == "completed"
            assert (await client.batches.retrieve(large.id)).status == "in_progress"
            await client.batches.cancel(large.id)
            await ended(client, large)


@pytest.mark.slow
async def test_a_server_that_is_stopped_finishes_what_is_in_flight_and_continues_later(tmp_path: Path) -> None:
    with SimServer(SLOW) as sim:
        spec = spec_of(sim, max_inflight=4)
        async with serving(tmp_path / "batches", spec) as client:
            batch = await submit(client, *(chat_line(f"line-{number}", max_tokens=4) for number in range(40)))
            await until(
                client, batch.id, lambda each: each.request_counts is not None and each.request_counts.completed > 3
            )
        assert 0 < sim.billed("standard")["requests"] < 40
        async with serving(tmp_path / "batches", spec) as client:
            batch = await ended(client, batch)
            assert batch.status == "completed"
            assert len(await read_file(client, batch.output_file_id)) == 40
        assert sim.billed("standard")["requests"] == 40, "no line was sent twice"


async def test_a_batch_whose_window_has_passed_expires(tmp_path: Path, sim: SimServer) -> None:
    with SimServer(SLOW) as slow:
        async with serving(tmp_path / "batches", spec_of(slow, max_inflight=2)) as client:
            batch = await submit(client, *(chat_line(f"line-{number}", max_tokens=4) for number in range(40)))
            await until(
                client, batch.id, lambda each: each.request_counts is not None and each.request_counts.completed > 3
            )
    store = BatchStore(tmp_path / "batches")
    store.open()
    kept = store.batches[batch.id]
    await store.put_batch(replace(kept, created_at=kept.created_at - 25 * 3600))
    await store.aclose()
    async with serving(tmp_path / "batches", spec_of(sim)) as client:
        batch = await ended(client, batch)
        assert batch.status == "expired"
        output, errors = await read_file(client, batch.output_file_id), await read_file(client, batch.error_file_id)
        assert len(output) >= 4
        assert len(output) + len(errors) == 40
        assert {line["error"]["code"] for line in errors.values()} == {"batch_expired"}


async def test_a_batch_waits_for_a_backend_that_refuses_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_worker, "_OUTAGE", Backoff(0.01, 0.01))
    notices: list[str] = []
    with SimServer(SimConfig(zero_latency=True)) as sim:
        async with serving(tmp_path / "batches", spec_of(sim), notify=notices.append) as client:
            line = chat_line("a", '[[sim: {"fault": "401", "times": 2}]]')
            batch = await ended(client, await submit(client, line))
            assert list(await read_file(client, batch.output_file_id)) == ["a"]
    assert [notice.partition(" ")[2][:50] for notice in notices] == [
        "waits 0.01 s: The backend rejects every request. H"
    ] * 2


async def test_a_server_stops_while_a_batch_waits_for_its_backend(tmp_path: Path) -> None:
    waiting = asyncio.Event()
    with SimServer(SimConfig(zero_latency=True)) as sim:
        spec = spec_of(sim)
        async with serving(tmp_path / "batches", spec, notify=lambda _: waiting.set(), grace=1e6) as client:
            batch = await submit(client, chat_line("a", '[[sim: {"fault": "401", "times": 1}]]'))
            await waiting.wait()
        async with serving(tmp_path / "batches", spec) as client:
            assert (await ended(client, batch)).status == "completed"


async def test_lines_may_name_the_tools_that_the_server_allows(tmp_path: Path, sim: SimServer) -> None:
    (tmp_path / "note.txt").write_text("42")
    tools = [{"type": "function", "function": {"name": "read_file"}}]
    script = '[[sim: [{"calls": [{"name": "read_file", "arguments": {"path": "note.txt"}}]}, {"text": "it is 42"}]]]'
    async with serving(tmp_path / "batches", spec_of(sim), [read_file_tool(tmp_path)]) as client:
        batch = await ended(client, await submit(client, chat_line("a", script, tools=tools)))
        line = (await read_file(client, batch.output_file_id))["a"]
        assert line["response"]["body"]["choices"][0]["message"]["content"] == "it is 42"


async def test_two_servers_cannot_use_one_folder(tmp_path: Path, sim: SimServer) -> None:
    async with serving(tmp_path / "batches", spec_of(sim)):
        with pytest.raises(StoreError, match="Another server uses"):
            async with serving(tmp_path / "batches", spec_of(sim)):
                pass


async def test_what_a_killed_upload_left_is_removed(tmp_path: Path, sim: SimServer) -> None:
    async with serving(tmp_path / "batches", spec_of(sim)) as client:
        file = await upload(client, chat_line("a"))
    contents = tmp_path / "batches" / "files"
    (contents / "file-half").write_bytes(b"{")
    async with serving(tmp_path / "batches", spec_of(sim)) as client:
        assert [each.name for each in contents.iterdir()] == [file.id]
        assert (await client.files.content(file.id)).content == jsonl(chat_line("a"))


async def test_a_disk_that_cannot_be_written_ends_the_server_with_the_reason(
    tmp_path: Path, sim: SimServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise StoreError("The disk is full.")

    monkeypatch.setattr(BatchStore, "record_line", full)
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    config, stop = BatchServerConfig(tmp_path / "batches", port=0), asyncio.Event()
    task = asyncio.create_task(serve_batches(config, spec_of(sim), (), print, port.set_result, stop))
    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{await port}/v1", api_key="none") as client:
        await submit(client, chat_line("a"))
    with pytest.raises(StoreError, match="The disk is full"):
        await asyncio.wait_for(task, 30)
