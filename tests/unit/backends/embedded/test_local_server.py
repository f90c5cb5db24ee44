import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from pydantic import BaseModel
from scripts.engines.layout import RECIPES
from tests.support.pictures import picture
from tests.support.process_table import children_of

from batch_agent import Backend, BatchAgent, SpecError, Tool
from batch_agent.backends.connect import connect
from batch_agent.backends.embedded import EmbeddedModelError, LocalServer, add_schema_hints
from batch_agent.backends.embedded import local_server as server
from batch_agent.backends.embedded import server_process as child
from batch_agent.backends.embedded.dequantise import dequantise
from batch_agent.backends.embedded.weights import DEFAULT_MODEL

PARENT = """
import asyncio
from batch_agent.backends.embedded import LocalServer

async def main():
    server = await LocalServer.start(None, slots=1, notify=print)
    print(server._process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def nothing(message: str) -> None:
    raise AssertionError(message)


@pytest.fixture(autouse=True)
def quantised(monkeypatch: pytest.MonkeyPatch) -> None:
    """No conversion: these tests are about the process, not about speed."""
    monkeypatch.setenv("BATCH_AGENT_LOCAL_WEIGHTS", "quantized")
    monkeypatch.delenv("BATCH_AGENT_LOCAL_LOG", raising=False)


@pytest.fixture
async def running(real_weights: Path) -> AsyncIterator[LocalServer]:
    local = await LocalServer.start(None, slots=2, notify=nothing)
    async with contextlib.aclosing(local):
        yield local


@pytest.mark.slow
async def test_a_started_server_follows_the_schema_until_it_is_closed(running: LocalServer) -> None:
    assert (running.slots, running.context_tokens, running.model_name) == (2, 3072, DEFAULT_MODEL)
    answer_schema = {
        "type": "object",
        "properties": {"mood": {"enum": ["good", "bad"]}},
        "required": ["mood"],
        "additionalProperties": False,
    }
    body = {
        "messages": [{"role": "user", "content": "What a lovely day!"}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": add_schema_hints(answer_schema)},
        },
        "max_tokens": 20,
    }
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{running.url}/v1/chat/completions", json=body) as reply:
            answer = await reply.json()
        assert answer["choices"][0]["message"]["content"] in ('{"mood": "good"}', '{"mood": "bad"}')
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        await running.aclose()
        await running.aclose()
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(f"{running.url}/health")


@pytest.mark.slow
@pytest.mark.parametrize("has_jinja", [False, True])
async def test_agents_with_tools_and_a_schema_run_on_a_server_of_llama_cpp(real_weights: Path, has_jinja: bool) -> None:
    """It answers tools with an error 500 without --jinja, and with it leaves them out of the prompt without a word: the
    template of this model has no place for them. Either way agents write JSON actions."""
    asked: list[str] = []

    @Tool.define(effect="read")
    def population(city: str) -> int:
        """Population of a city."""
        asked.append(city)
        return 2_100_000

    path = real_weights if has_jinja else None
    async with contextlib.aclosing(await LocalServer.start(path, slots=2, notify=nothing)) as local:
        address = local.url.replace("http://", "llamacpp://")
        backend = await connect(Backend(address), None, uses_tools=True, notify=nothing)
        async with contextlib.aclosing(backend):
            traits = backend.traits
        results = await BatchAgent.run(
            task="How many people live in {x}? Use the tool.",
            inputs=[{"x": "Paris"}],
            tools=[population],
            output_schema=City,
            backend=address,
            max_tokens=60,
            max_turns=4,
            temperature=0,
        )
    assert (traits.name, traits.inflight, traits.context_tokens) == ("llama.cpp", 2, local.context_tokens)
    assert traits.native_tools is False
    assert [each.error for each in results] == [None]
    assert isinstance(results[0].output, City)
    assert asked


@pytest.mark.slow
async def test_a_template_with_tools_gets_native_calls_on_a_server_of_llama_cpp(real_weights: Path) -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVER_WITH_TOOLS, str(real_weights), str(RECIPES / "tools_chat_template.jinja")),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        async with asyncio.timeout(60):
            url = (await child.stdout.readline()).decode().strip()
        address = url.replace("http://", "llamacpp://")
        backend = await connect(Backend(address), None, uses_tools=True, notify=nothing)
        async with contextlib.aclosing(backend):
            assert backend.traits.native_tools is True
    finally:
        child.stdin.close()
        await child.wait()


class City(BaseModel):
    name: str
    inhabitants: int


SERVER_WITH_TOOLS = """
import os, sys
from xllamacpp import CommonParams, Server

report = os.dup(1)
os.dup2(2, 1)
params = CommonParams()
params.model.path = sys.argv[1]
params.n_parallel, params.n_ctx, params.verbosity = 1, 2048, 1
params.use_jinja, params.warmup, params.ui = True, False, False
params.chat_template = open(sys.argv[2]).read()
server = Server(params)
os.write(report, (server.listening_address + "\\n").encode())
os.read(0, 1)
os._exit(0)
"""


@pytest.mark.engines
async def test_llama_cpp_loads_the_converted_default_model(
    real_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Read at once: slices of a memmap, of which there are a million for the tokens, take ten times as long.
    monkeypatch.setattr("gguf.gguf_reader.np.memmap", lambda path, mode: np.fromfile(path, np.uint8))
    await asyncio.to_thread(dequantise, real_weights, tmp_path / "f32.gguf")
    async with contextlib.aclosing(await LocalServer.start(tmp_path / "f32.gguf", slots=1, notify=nothing)) as local:
        body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{local.url}/v1/chat/completions", json={**body, "max_tokens": 12}) as reply,
        ):
            answer = await reply.json()
    assert "Paris" in answer["choices"][0]["message"]["content"]


@pytest.mark.slow
async def test_ctrl_c_does_not_stop_the_server(running: LocalServer) -> None:
    os.kill(running._process.pid, signal.SIGINT)
    async with aiohttp.ClientSession() as session, session.get(f"{running.url}/health") as reply:
        assert reply.status == 200


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="waits on a process that is not its child, with a pidfd")
@pytest.mark.usefixtures("real_weights")
def test_the_server_dies_with_a_parent_killed_outright() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        server_process = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    gone, _, _ = select.select([server_process], [], [], 60.0)
    os.close(server_process)
    assert gone


async def test_a_file_llama_cpp_cannot_load_gives_its_reason(tmp_path: Path) -> None:
    model = tmp_path / "broken.gguf"
    model.write_bytes(b"GGUF" + b"\xff" * 100)
    with pytest.raises(EmbeddedModelError, match=r"exited with status 1(?s:.*)broken\.gguf"):
        await LocalServer.start(model, slots=1, notify=nothing)


async def test_without_xllamacpp_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(EmbeddedModelError, match=r"pip install 'batch-agent\[local\]'"):
        await LocalServer.start(None, slots=1, notify=nothing)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


def use_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    script = tmp_path / "fake_child.py"
    script.write_text(code)
    monkeypatch.setattr(child, "__file__", str(script))


async def test_a_server_that_never_gets_ready_is_stopped(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_child(monkeypatch, tmp_path, "import sys; sys.stdin.read()")
    monkeypatch.setattr(server, "START_TIMEOUT", 1.0)
    before = children_of(os.getpid())
    with pytest.raises(EmbeddedModelError, match="not ready after 1 s"):
        await LocalServer.start(model, slots=1, notify=nothing)
    assert children_of(os.getpid()) == before


async def test_a_server_that_ignores_sigterm_is_killed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_child(
        monkeypatch,
        tmp_path,
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        """print('{"url": "http://x", "slots": 1, "context_tokens": 8}', flush=True); time.sleep(60)""",
    )
    monkeypatch.setattr(server, "STOP_TIMEOUT", 0.1)
    local = await LocalServer.start(model, slots=1, notify=nothing)
    await local.aclose()
    assert local._process.returncode == -signal.SIGKILL


async def test_a_cancelled_start_leaves_no_process(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid_file = tmp_path / "pid"
    os.mkfifo(pid_file)
    use_child(
        monkeypatch, tmp_path, f"import os, sys; open({str(pid_file)!r}, 'w').write(str(os.getpid())); sys.stdin.read()"
    )
    start = asyncio.ensure_future(LocalServer.start(model, slots=1, notify=nothing))
    pid = int(await asyncio.to_thread(pid_file.read_text))
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
async def test_the_log_file_has_the_output_of_llama_cpp(
    real_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_AGENT_LOCAL_LOG", str(tmp_path / "llama.log"))
    async with contextlib.aclosing(await LocalServer.start(real_weights, slots=1, notify=nothing)) as local:
        assert local.model_name == "SmolLM2-135M-Instruct.Q4_1"
    assert "loading model" in (tmp_path / "llama.log").read_text()


@pytest.mark.slow
async def test_images_are_refused_before_an_agent_starts(running: LocalServer) -> None:
    """Neither the embedded model nor a server of llama.cpp without a projector takes images."""
    for backend in ("local://", f"llamacpp://{running.url.removeprefix('http://').removesuffix('/v1')}"):
        with pytest.raises(SpecError, match=r"The task has images, but .* takes none"):
            await BatchAgent.run(task="What is in {photo}?", inputs=[{"photo": picture()}], backend=backend)
