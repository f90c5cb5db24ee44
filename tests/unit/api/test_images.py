"""Runs over images: how a field is known to be one, what is sent, what is kept, and what is refused."""

import io
import tracemalloc
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from PIL import Image as Pillow
from pydantic import BaseModel, ConfigDict
from tests.support.loopback_servers import Line, RawRequest, RawServer, raw_server
from tests.support.pictures import pdf, picture, saved
from tests.support.recording_proxy import generations, recording_proxy
from tests.support.redis_server import RedisServer, redis_server

from batch_agent import BatchAgent, Fields, Flow, Image, ProcessRuntime, SpecError, Tool, Usage, read_request_log
from batch_agent.core.errors import ErrorKind
from batch_agent.core.results import AgentResult
from batch_agent.sim import SimConfig, SimServer
from batch_agent.store.reader import CheckpointReader
from batch_agent.testing import ScriptedBackend, by_turn, call, say
from batch_agent.tools.builtin.files import read_file_tool

__all__ = ["redis_server"]
TASK = "What is in {photo}?"


class Row(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    photo: Image


@pytest.fixture(scope="module")
def sim() -> Iterator[str]:
    with SimServer(SimConfig(zero_latency=True)) as started:
        yield started.url


@pytest.fixture
async def server(sim: str) -> AsyncIterator[RawServer]:
    async with recording_proxy(sim) as proxy:
        yield proxy


@pytest.fixture
def png(tmp_path: Path) -> Path:
    return saved(tmp_path / "photos" / "a.png", picture())


def sent_images(body: dict[str, Any]) -> list[bytes]:
    contents = [message["content"] for message in body["messages"] if isinstance(message["content"], list)]
    urls = [part["image_url"]["url"] for content in contents for part in content if part["type"] == "image_url"]
    return [b64decode(url.partition(",")[2]) if url.startswith("data:") else url.encode() for url in urls]


async def run(server: RawServer | str, inputs: Any, **options: Any) -> list[AgentResult]:
    address = server if isinstance(server, str) else server.url
    chosen = {"task": TASK, "backend": address, "model": "sim", "max_tokens": 8, "progress": False, **options}
    return list(await BatchAgent.run(inputs=inputs, **chosen))


@pytest.mark.parametrize("kind", ["path", "Path", "bytes", "bytearray", "pillow", "model", "whole input", "option"])
async def test_an_image_in_any_form_goes_to_the_model(server: RawServer, png: Path, kind: str) -> None:
    value: Any = {
        "path": {"photo": Image(str(png))},
        "Path": {"photo": Image(png)},
        "bytes": {"photo": picture()},
        "bytearray": {"photo": bytearray(picture())},
        "pillow": {"photo": Pillow.open(io.BytesIO(picture()))},
        "model": Row(photo=Image(png)),
        "whole input": Image(png),
        "option": str(png),
    }[kind]
    [result] = await run(server, [value], images=["photo"] if kind == "option" else [])
    assert result.ok, result.error
    [body] = generations(server)
    content = body["messages"][-1]["content"]
    assert [part["type"] for part in content] == ["text", "image_url", "text"]
    assert (content[0]["text"], content[2]["text"]) == ("What is in ", "?")
    [image] = sent_images(body)
    assert Pillow.open(io.BytesIO(image)).size == (40, 30)


async def test_a_path_is_an_image_only_if_the_user_says_so(server: RawServer, png: Path) -> None:
    await run(server, [{"photo": str(png)}])
    assert generations(server)[0]["messages"][-1]["content"] == f"What is in {png}?"


async def test_several_images_stand_where_their_fields_stand(server: RawServer, png: Path) -> None:
    other = picture(color=9)
    row = {"pages": [Image(png), other], "item": {"logo": other}, "name": "x"}
    [result] = await run(server, [row], task="{name}: {pages} has {item.logo}")
    assert result.ok, result.error
    [body] = generations(server)
    assert sent_images(body) == [picture(), other, other]
    assert [part.get("text") for part in body["messages"][-1]["content"]] == ["x: ", None, None, " has ", None]


async def test_named_fields_and_shared_images_keep_their_places(server: RawServer, png: Path) -> None:
    rows = [{"photo": Image(png), "question": question} for question in ("one", "two")]
    results = await run(server, rows, task=Fields("Answer.", "photo", "question"))
    assert all(result.ok for result in results)
    contents = [body["messages"][-1]["content"] for body in generations(server)]  # images are read in threads
    assert sorted([part.get("text") for part in content] for content in contents) == [
        ["Answer.\n\nphoto: ", None, f"\nquestion: {question}\n"] for question in ("one", "two")
    ]


async def test_an_image_inside_of_other_data_is_an_error_that_says_what_to_do(server: RawServer, png: Path) -> None:
    _, result = await run(server, [{"item": 1}, {"item": {"photo": Image(png)}}], task="Look: {item}")
    assert result.error is not None
    assert result.error.kind is ErrorKind.BAD_INPUT
    assert "Name its own field, as in {item.photo}" in result.error.message
    assert len(generations(server)) == 1


async def test_a_file_that_cannot_be_read_fails_only_its_agent(server: RawServer, png: Path) -> None:
    results = await run(server, [Image(png), Image(png.with_name("gone.png")), Image(saved(png.with_name("b"), b"x"))])
    assert [result.ok for result in results] == [True, False, False]
    assert str(results[1].error).startswith("bad_input: Input 1: the image '")
    assert "gone.png' cannot be read: No such file or directory." in str(results[1].error)
    assert "is not an image: it begins with b'x'" in str(results[2].error)
    assert len(generations(server)) == 1


async def test_a_folder_of_images_is_a_list_of_inputs(server: RawServer, png: Path) -> None:
    saved(png.with_name("b.jpg"), picture(kind="JPEG"))
    results = await run(server, f"{png.parent}/*", task="{name}: {image}")
    assert [result.input["name"] for result in results] == ["a.png", "b.jpg"]
    assert [len(sent_images(body)) for body in generations(server)] == [1, 1]


async def test_a_resumed_run_sends_nothing_for_images_that_are_the_same(
    server: RawServer, png: Path, tmp_path: Path
) -> None:
    rows = [{"photo": Image(png)}, {"photo": picture(color=3)}, {"photo": Pillow.new("RGB", (3, 3))}]
    first = await run(server, rows, checkpoint_dir=tmp_path / "run")
    again = await run(server, rows, checkpoint_dir=tmp_path / "run")
    assert [each.key for each in again] == [each.key for each in first]
    assert len({each.key for each in first}) == len(generations(server)) == 3


async def test_a_changed_image_is_asked_about_again(server: RawServer, png: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"checkpoint_dir": tmp_path / "run", "images": ["photo"]}
    [first] = await run(server, [{"photo": str(png)}], **options)
    saved(png, picture(color=5))
    [second] = await run(server, [{"photo": str(png)}], **options)
    assert first.key != second.key
    assert [sent_images(body) for body in generations(server)] == [[picture()], [picture(color=5)]]


async def test_an_image_that_changes_before_it_is_sent_is_an_error_of_its_agent(server: RawServer, png: Path) -> None:
    @Tool.define
    def look() -> str:
        saved(png, picture(color=7))
        return "changed"

    [result] = await run(server, [Image(png)], tools=[look], max_tokens=99)
    assert result.error is not None
    assert result.error.kind is ErrorKind.BAD_INPUT
    assert "a.png' has changed since the agent read it" in result.error.message
    assert [sent_images(body) for body in generations(server)] == [[], [picture()]], "a trial of tools, and one turn"


async def test_facts_have_a_reference_and_no_bytes(server: RawServer, png: Path, tmp_path: Path) -> None:
    noise = Pillow.effect_noise((200, 200), 90)
    await run(server, [{"photo": Image(png)}, {"photo": noise}], checkpoint_dir=tmp_path / "run")
    with CheckpointReader(tmp_path / "run") as reader:
        facts = [facts[0] for _, facts in reader.histories()]
    images = [placed.image for fact in facts for placed in fact.images]  # type: ignore[union-attr]
    assert sorted((image.width, image.path, image.data) for image in images) == [(40, str(png), None), (200, "", None)]
    assert sum(file.stat().st_size for file in (tmp_path / "run").rglob("*") if file.name.endswith(".wal")) < 30_000


async def test_logs_and_previews_show_type_size_and_digest(server: RawServer, png: Path, tmp_path: Path) -> None:
    await run(server, [Image(png)], log_requests=tmp_path / "log.jsonl")
    [line] = [line for line in read_request_log(tmp_path / "log.jsonl") if line["agent"]]
    label = line["body"]["messages"][-1]["content"][1]["image_url"]["url"]
    assert label.startswith(f"<image, image/png, {len(picture())} bytes, blake2b ")
    preview = await BatchAgent.preview(task=TASK, inputs=[Image(png)], backend="anthropic://", model="claude-x")
    assert f"<image {png}, image/png, 40x30, {len(picture())} bytes, blake2b {label[-13:-1]}>" in str(preview)
    assert "base64,iVBOR" not in (tmp_path / "log.jsonl").read_text()


async def test_a_model_without_vision_is_refused_before_an_agent_starts(sim: str, png: Path) -> None:
    async with _text_only(sim) as server:
        with pytest.raises(
            SpecError, match=r"The task has images, but 'sim' on vllm takes none.*not a multimodal model"
        ):
            await run(f"vllm://{server.url.removeprefix('http://')}", [Image(png)])
        assert len(generations(server)) == 1, "the trial"
    for backend, model in {"openai://": "gpt-3.5-turbo", "bedrock://us-east-1": "amazon.nova-micro-v1:0"}.items():
        preview = await BatchAgent.preview(task=TASK, inputs=[Image(png)], backend=backend, model=model)
        assert "takes none. Use a model that reads images" in str(preview.requests[0].problem)


@asynccontextmanager
async def _text_only(upstream: str) -> AsyncIterator[RawServer]:
    """A server whose model takes no images, with the words of vLLM."""
    async with aiohttp.ClientSession() as session:

        async def forward(request: RawRequest, line: Line) -> None:
            if b"image_url" in request.body:
                error = {"error": {"message": "sim is not a multimodal model", "code": 400}}
                await line.reply(400, orjson.dumps(error))
                return
            async with session.request(request.method, upstream + request.path, data=request.body or None) as response:
                body, kind = await response.read(), response.headers["content-type"]
            await line.reply(response.status, body, f"content-type: {kind}\r\n")

        async with raw_server(forward) as started:
            yield started


@pytest.mark.parametrize(
    ("backend", "model", "data", "problem"),
    [
        ("bedrock://us-east-1", "anthropic.claude-x", picture() + bytes(4_000_000), "bytes, and bedrock takes at most"),
        ("anthropic://", "claude-x", picture(8001, 1), "8001x1 pixels, and anthropic takes at most 8,000 per side"),
    ],
    ids=["bytes", "pixels"],
)
async def test_an_image_beyond_the_limits_of_a_service_is_refused_by_name(
    tmp_path: Path, backend: str, model: str, data: bytes, problem: str
) -> None:
    inputs = [Image(saved(tmp_path / "wide.png", data))]
    preview = await BatchAgent.preview(task=TASK, inputs=inputs, backend=backend, model=model)
    assert "Input 0: '" in str(preview.requests[0].problem)
    assert "wide.png' has " in str(preview.requests[0].problem)
    assert problem in str(preview.requests[0].problem)


async def test_an_image_in_memory_is_not_for_other_processes(png: Path) -> None:
    options: dict[str, Any] = {"task": TASK, "backend": "anthropic://", "model": "m", "store": "redis://nowhere"}
    preview = await BatchAgent.preview(inputs=[Image(picture()), Image(png)], **options)
    assert "Save it to a file that all workers can read" in str(preview.requests[0].problem)
    assert preview.requests[1].problem is None


async def test_tools_return_images_and_the_checkpoint_keeps_them(tmp_path: Path, png: Path) -> None:
    @Tool.define(effect="read")
    def draw() -> Image:
        return Image(picture(color=8))

    script = by_turn(call("draw"), call("read_file", path="a.png"), say("done"))
    backend = ScriptedBackend(script, images=True)
    options: dict[str, Any] = {"task": "Draw.{it}", "backend": backend, "checkpoint_dir": tmp_path / "run"}
    [result] = await BatchAgent.run(inputs=["x"], tools=[draw, read_file_tool(png.parent)], progress=False, **options)
    images = [image for message in backend.requests[-1].messages for image in _images(message)]
    assert [Path(image.path).parent for image in images] == [tmp_path / "run" / "images"] * 2
    assert [Path(image.path).read_bytes() for image in images] == [picture(color=8), picture()]
    assert len(result.tool_calls) == 2


def _images(message: Any) -> list[Any]:
    return [image for result in getattr(message, "results", ()) for image in result.images]


async def test_a_model_that_takes_no_images_is_told_that_there_was_one(png: Path) -> None:
    backend = ScriptedBackend(by_turn(call("read_file", path="a.png"), say("done")))
    tools = [read_file_tool(png.parent)]
    await BatchAgent.run(task="Read.{it}", inputs=["x"], tools=tools, backend=backend, progress=False)
    [message] = [message for message in backend.requests[-1].messages if hasattr(message, "results")]
    assert "[images are not shown: the model is not known to take any]" in message.results[0].content
    assert _images(message) == []


async def test_pages_of_a_document_go_through_a_flow(server: RawServer, tmp_path: Path) -> None:
    document = saved(tmp_path / "a.pdf", pdf("one", "two"))
    rows = [{"page": Image(document, page=number, max_side=64)} for number in (1, 2)]
    flow = Flow(rows, backend=server.url, model="sim", max_tokens=8).map("read", "Read {page}")
    found = await flow.map("check", "Check {page}: {read}").run()
    assert len(found.items) == 2
    assert [len(sent_images(body)) for body in generations(server)] == [1] * 4


@pytest.mark.parametrize("names", ["photo", [""], [3], None])
async def test_a_list_of_image_fields_is_checked(names: Any) -> None:
    with pytest.raises(SpecError, match="images must be a list of fields of the task"):
        await run("http://127.0.0.1:9", ["a"], images=names)


async def test_an_unknown_image_field_is_named() -> None:
    with pytest.raises(SpecError, match=r"images=\['foto'\]: the task has no field \{foto\}"):
        await run("http://127.0.0.1:9", ["a"], images=["foto"])


async def test_workers_of_a_shared_run_read_the_file(server: RawServer, png: Path, redis_server: RedisServer) -> None:
    results = await run(server, [Image(png), Image(picture())], store=redis_server.url)
    assert [result.ok for result in results] == [True, False]
    assert "Save it to a file that all workers can read" in str(results[1].error)
    assert [sent_images(body) for body in generations(server)] == [[picture()]]


async def test_a_budget_reserves_the_most_tokens_that_an_image_can_have(png: Path) -> None:
    backend = ScriptedBackend(lambda _: say("x", Usage(50, 0, 1)), image_tokens=5_000)
    options: dict[str, Any] = {"task": TASK, "backend": backend, "max_tokens": 10, "progress": False}
    [result] = await BatchAgent.run(inputs=[Image(png)], max_total_tokens=4_000, **options)
    assert result.error is not None
    assert (result.error.kind, backend.requests) == (ErrorKind.BUDGET, [])
    results = await BatchAgent.run(inputs=[Image(png)], max_total_tokens=6_000, **options)
    assert (results.outputs, results[0].usage.input) == (["x"], 50)


async def test_a_budget_reserves_more_for_an_image_that_has_more_by_its_formula(tmp_path: Path) -> None:
    photo = Image(saved(tmp_path / "a.png", picture(1_600, 1_600)))  # nine crops of 258 tokens on Gemini
    backend = ScriptedBackend(lambda _: say("x", Usage(50, 0, 1)), image_tokens=1_000, model="gemini-2.5-pro")
    options: dict[str, Any] = {"task": TASK, "backend": backend, "max_tokens": 10, "progress": False}
    [result] = await BatchAgent.run(inputs=[photo], max_total_tokens=2_300, **options)
    assert result.error is not None
    assert (result.error.kind, backend.requests) == (ErrorKind.BUDGET, [])


async def test_a_text_beside_an_image_is_not_split(png: Path) -> None:
    row = {"photo": Image(png), "text": "word " * 5_000}
    backend = ScriptedBackend(lambda _: say("x"), context_tokens=1_000)
    options: dict[str, Any] = {"task": "{text} {photo}", "backend": backend, "oversized": "chunk", "progress": False}
    [result] = await BatchAgent.run(inputs=[row], **options)
    assert result.error is not None
    assert "It has images, so its text is not split" in result.error.message


async def test_programs_get_no_images(png: Path) -> None:
    runtime = ProcessRuntime(["true"])
    with pytest.raises(SpecError, match="which the programs of a runtime do not get"):
        await BatchAgent.run(
            task=TASK, inputs=[Image(png)], runtime=runtime, backend=ScriptedBackend(lambda _: say(""))
        )


async def test_a_checkpoint_is_replayed_with_its_images(server: RawServer, png: Path, tmp_path: Path) -> None:
    for at, (value, images) in enumerate([(Image(png), ()), ({"photo": str(png)}, ("photo",))]):
        await run(server, [value], checkpoint_dir=tmp_path / str(at), images=images)
        [result] = await BatchAgent.replay(tmp_path / str(at), task=TASK)
        assert result.ok, result.error
        [placed] = result.transcript[0].images  # type: ignore[union-attr]
        assert (placed.at, placed.image.path) == (11, str(png))


async def test_images_are_not_kept_in_memory(sim: str, tmp_path: Path) -> None:
    paths = [saved(tmp_path / f"{number}.png", picture(color=number) + bytes(300_000)) for number in range(20)]
    tracemalloc.start()
    try:
        results = await run(sim, (Image(path) for path in paths), max_inflight=2)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(result.ok for result in results)
    assert kept < 3_000_000, "the images have 6 MB"


async def test_results_name_the_images_of_their_inputs(sim: str, png: Path, tmp_path: Path) -> None:
    rows = [{"photo": Image(png)}, {"photo": picture()}, {"photo": [picture(), "text"]}]
    await run(sim, rows, out=tmp_path / "out.jsonl", task="{photo}")
    lines = map(orjson.loads, (tmp_path / "out.jsonl").read_bytes().splitlines())
    inputs = [line["input"]["photo"] for line in sorted(lines, key=lambda line: line["index"])]
    data = f"Image('{len(picture())} bytes, blake2b "
    assert inputs[0] == f"Image('{png}')"
    assert inputs[1].startswith(data)
    assert inputs[2][0].startswith(data)


async def test_the_upload_of_a_batch_has_the_images(
    server: RawServer, png: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    address = f"openai://{server.url.removeprefix('http://')}"
    await run(address, [Image(png)], lane="batch", checkpoint_dir=tmp_path / "run")  # the proxy passes on only JSON
    [upload] = [request.body for request in server.requests if request.path.endswith("/files")]
    assert b64encode(picture()) in upload


@pytest.mark.parametrize(
    "options", [{"models": ["sim"], "model": None}, {"fallback": ["sim"]}, {"samples": 2}], ids=str
)
async def test_named_fields_are_images_in_every_kind_of_run(
    server: RawServer, png: Path, options: dict[str, Any]
) -> None:
    results = await run(server, [str(png)], images=["photo"], **options)
    assert all(result.ok for result in results)
    sent = [sent_images(body) for body in generations(server) if body["max_tokens"] > 1]
    assert sent == [[png.read_bytes()]] * len(results)


@pytest.mark.parametrize("level", ["stage", "flow"])
async def test_named_fields_are_images_in_later_stages_of_a_flow(server: RawServer, png: Path, level: str) -> None:
    options: dict[str, Any] = {"backend": server.url, "model": "sim", "max_tokens": 8}
    images: dict[str, Any] = {"images": ["photo"]}
    flow = (
        Flow([{"name": "a", "photo": str(png)}], **options, **(images if level == "flow" else {}))
        .map("first", "Say {name}")
        .map("second", "What is in {photo}?", **(images if level == "stage" else {}))
    )
    done = await flow.run()
    assert [item.error for item in done.items] == [None]
    assert [sent_images(body) for body in generations(server) if body["max_tokens"] > 1] == [[], [png.read_bytes()]]


async def test_a_forecast_counts_the_tokens_of_images(sim: str, tmp_path: Path) -> None:
    photos = [saved(tmp_path / f"{side}.png", picture(side, side)) for side in (280, 560)]
    options: dict[str, Any] = {"task": TASK, "backend": sim, "model": "sim", "max_tokens": 8}
    without = await BatchAgent.plan(inputs=["", ""], **options)
    for samples in (1, 2):
        planned = await BatchAgent.plan(inputs=list(map(str, photos)), images=["photo"], samples=samples, **options)
        tokens = 280 * 280 // 750 + 560 * 560 // 750
        assert planned.usage.input - samples * without.usage.input == pytest.approx(samples * tokens, abs=30 * samples)
        assert any("Images" in line for line in planned.basis)


async def test_a_canary_corrects_the_estimate_of_images(sim: str, tmp_path: Path) -> None:
    photos = [str(saved(tmp_path / f"{number}.png", picture(280, 280, color=number))) for number in range(4)]
    options: dict[str, Any] = {"task": TASK, "backend": sim, "model": "sim", "max_tokens": 8, "images": ["photo"]}
    planned = await BatchAgent.plan(inputs=photos, canary=2, **options)
    results = await BatchAgent.run(inputs=photos, **options)
    assert planned.usage.input == pytest.approx(results.usage.input, rel=0.05)
