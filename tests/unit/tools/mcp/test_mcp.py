"""One session with an MCP server serves all agents; a server may die, hang or lie, and leaves nothing behind.

With real servers, in processes of their own, over stdio and over HTTP on loopback."""

import asyncio
import os
import shlex
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
import pytest_asyncio
from tests.support.mcp_legacy_http import over_http
from tests.support.pictures import picture
from tests.support.process_table import children_of, gone, written

from batch_agent import Image, SpecError
from batch_agent.core.messages import ToolCall
from batch_agent.tools import Tool, ToolExecutor
from batch_agent.tools.mcp import MCP, MCPServerGone, MCPToolError
from batch_agent.tools.mcp.mcp_session import content_of

SUPPORT = Path(__file__).parents[3] / "support"
_SERVER = str(SUPPORT / "mcp_server.py")
_STDIO = [sys.executable, _SERVER, "stdio"]
_LEGACY = [sys.executable, str(SUPPORT / "mcp_legacy_server.py")]

Tools = dict[str, Tool]
shared = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def opened(server: MCP) -> AsyncIterator[Tools]:
    async with server.open() as tools:
        yield {tool.name: tool for tool in tools}


@asynccontextmanager
async def http_server(port_file: Path, port: int = 0) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    process = await asyncio.create_subprocess_exec(sys.executable, _SERVER, "http", str(port_file), str(port))
    try:
        yield process, int(await written(port_file))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stdio() -> AsyncIterator[Tools]:
    async with opened(MCP(_STDIO, env={"MCP_TEST": "seen"}, timeout=20.0)) as tools:
        yield tools


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Tools]:
    async with (
        http_server(tmp_path_factory.mktemp("http") / "port") as (_, port),
        opened(MCP(f"http://127.0.0.1:{port}/mcp")) as tools,
    ):
        yield tools


@pytest.fixture(params=["stdio", "http"])
def tools(request: pytest.FixtureRequest) -> Tools:
    """Of both kinds of server, in turn."""
    given: Tools = request.getfixturevalue(request.param)
    return given


@pytest.fixture
def quick_farewell(monkeypatch: pytest.MonkeyPatch) -> None:
    """For servers that do not answer to a farewell."""
    monkeypatch.setattr("batch_agent.tools.mcp.transports._CLOSE_SECONDS", 0.1)


@pytest.fixture
def quick_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """For servers that must be killed."""
    monkeypatch.setattr("batch_agent.tools.mcp.transports._EXIT_SECONDS", 0.1)
    monkeypatch.setattr("batch_agent.tools.mcp.transports._GRACE_SECONDS", 0.1)


@shared
async def test_every_page_of_tools_is_listed_with_names_that_servers_take(tools: Tools) -> None:
    assert list(tools)[:3] == ["echo", "whoami", "environment"]
    assert list(tools)[-1] == "mixed"
    assert "files_fork" in tools
    assert tools["echo"].description == "It can echo."
    assert tools["echo"].spec.parameters == {"type": "object", "properties": {"text": {"type": "string"}}}


@shared
async def test_what_a_server_says_about_a_tool_becomes_its_effect(stdio: Tools) -> None:
    said = {name: (tool.sharing.effect, tool.limits.retries) for name, tool in stdio.items()}
    assert said["echo"] == ("read", 1)
    assert said["forecast"] == ("write", 1)
    assert said["die"] == said["hang"] == ("write", 0)
    assert stdio["echo"].limits.timeout == 20.0


@shared
async def test_arguments_reach_the_server_whatever_they_are_called(tools: Tools) -> None:
    assert await tools["echo"].function(text="hällo") == "hällo"
    assert await tools["echo"].function(self="me") == "me"


@shared
async def test_twenty_calls_are_under_way_at_once_over_one_session(tools: Tools) -> None:
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(tools["meet"].function(room="a", people=20)) for _ in range(20)]
    assert {call.result() for call in calls} == {"met 20"}


@shared
async def test_a_command_sees_the_given_variables_and_none_of_our_secrets(stdio: Tools) -> None:
    assert await stdio["environment"].function(name="MCP_TEST") == "seen"
    assert await stdio["environment"].function(name="PYTEST_CURRENT_TEST") == "not set"


@shared
async def test_structured_content_is_given_as_json_unless_the_text_says_the_same(stdio: Tools) -> None:
    assert await stdio["forecast"].function() == '{"sky":"blue","degrees":20}'
    assert await stdio["both"].function() == 'A summary.\n{"a":1}'
    assert await stdio["both"].function(same=True) == '{"a": 1}'


@shared
async def test_content_that_is_not_text_is_described(stdio: Tools) -> None:
    assert (await stdio["mixed"].function()).splitlines() == [
        "Here:",
        "[image image/png, 3 bytes]",
        "[audio audio/wav, 3 bytes]",
        "[resource more: file:///more.txt]",
        "[resource file:///notes.txt]",
        "the notes",
        "[resource file:///data.bin, application/x-data]",
    ]


@shared
async def test_an_error_comes_in_the_servers_words(tools: Tools) -> None:
    with pytest.raises(MCPToolError, match=r"^the disk is full$"):
        await tools["fail"].function()
    with pytest.raises(MCPToolError):  # the server itself fails over an argument that it does not know
        await tools["whoami"].function(nonsense=1)


@shared
async def test_a_result_of_megabytes_arrives(tools: Tools) -> None:
    text = "word " * 600_000
    assert await tools["echo"].function(text=text) == text


@pytest.mark.slow
@pytest.mark.slow
async def test_a_result_without_an_end_fails_its_call_and_the_next_one_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_kill: None
) -> None:
    monkeypatch.setattr("batch_agent.tools.mcp.transports.MAX_MESSAGE_BYTES", 100_000)
    async with opened(MCP(_STDIO)) as tools:
        with pytest.raises(MCPServerGone, match="a line of more than 100000 bytes"):
            await tools["echo"].function(text="x" * 200_000)
        assert await tools["echo"].function(text="y") == "y"
    async with (
        http_server(tmp_path / "port") as (_, port),
        opened(MCP(f"http://127.0.0.1:{port}/mcp")) as tools,
    ):
        server = await tools["whoami"].function()
        with pytest.raises(MCPToolError, match="larger than 100,000 bytes"):
            await tools["echo"].function(text="x" * 200_000)
        assert await tools["echo"].function(text="y") == "y"
        assert await tools["whoami"].function() == server


@shared
async def test_arguments_that_do_not_fit_are_not_sent(stdio: Tools) -> None:
    executor = ToolExecutor(list(stdio.values()), timeout=20.0, max_tokens=1000)
    [result] = await executor.session("a").results([ToolCall("c", "echo", '{"text": 7}')])
    await executor.aclose()
    assert (result.content, result.is_error) == ('The arguments do not fit: text: 7 is not of type "string"', True)


@shared
async def test_cancelling_one_call_cancels_it_at_the_server_and_no_other(tools: Tools, tmp_path: Path) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        other = group.create_task(tools["meet"].function(room="b", people=2))
        hanging = group.create_task(tools["hang"].function(note=str(tmp_path / "note")))
        await written(tmp_path / "note")
        hanging.cancel()
        while await tools["cancelled"].function() == "none":
            await asyncio.sleep(0.01)
        assert not other.done()
        assert await tools["meet"].function(room="b", people=2) == "met 2"
    assert hanging.cancelled()
    assert other.result() == "met 2"


@shared
async def test_a_prefix_and_a_choice_of_tools() -> None:
    chosen = MCP(_LEGACY, prefix="my.", include=["echo", "whoami"], exclude=["whoami"])
    async with opened(chosen) as tools:
        assert list(tools) == ["my_echo"]
        assert await tools["my_echo"].function(text="x") == "x"
    others = "broken, die, echo, fork, half, hang, refuse, whoami"
    with pytest.raises(SpecError, match=f"has no tool 'ecco'; it has {others}"):
        async with opened(MCP(_LEGACY, include=["ecco"])):
            pass


@shared
async def test_a_tool_with_an_invalid_schema_can_be_left_out() -> None:
    with pytest.raises(SpecError, match=r"not a valid JSON schema.* exclude=\['odd'\] leaves it out"):
        async with opened(MCP(_LEGACY, env={"MCP_ODD_TOOL": "odd"})):
            pass
    async with opened(MCP(_LEGACY, env={"MCP_ODD_TOOL": "odd"}, exclude=["odd"])) as tools:
        assert "odd" not in tools


@shared
async def test_a_server_killed_in_mid_call_fails_that_call_and_the_next_starts_it_again(tmp_path: Path) -> None:
    async with opened(MCP(_LEGACY)) as tools:
        first = int(await tools["whoami"].function())
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(_raised(tools["hang"].function(note=str(tmp_path / "note")))) for _ in range(3)]
            await written(tmp_path / "note")
            os.kill(first, signal.SIGKILL)
        assert all("may or may not have been done" in str(call.result()) for call in calls)
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(tools["whoami"].function()) for _ in range(5)]
        [second] = {int(call.result()) for call in asked}
        assert second != first
    await gone(second)


@shared
async def test_a_server_that_dies_between_calls_is_not_noticed() -> None:
    async with opened(MCP(_LEGACY)) as tools:
        first = int(await tools["whoami"].function())
        os.kill(first, signal.SIGKILL)
        await gone(first)
        executor = ToolExecutor(list(tools.values()), timeout=60.0, max_tokens=1000)
        [result] = await executor.session("a").results([ToolCall("c", "whoami", "{}")])
        await executor.aclose()
        assert not result.is_error
        assert int(result.content) != first


@shared
async def test_a_server_that_keeps_dying_is_given_up() -> None:
    async with opened(MCP(_LEGACY)) as tools:
        for _ in range(4):
            with pytest.raises(MCPServerGone, match="went away while 'die'"):
                await tools["die"].function()
        with pytest.raises(MCPServerGone, match="ended for good"):
            await tools["echo"].function(text="x")


@shared
async def test_a_server_that_cannot_start_again_says_why(tmp_path: Path) -> None:
    once = tmp_path / "once.sh"
    once.write_text(
        f"mkdir '{tmp_path}/started' || {{ echo 'no second time' >&2; exit 1; }}\nexec {shlex.join(_LEGACY)}\n"
    )
    async with opened(MCP(["sh", str(once)])) as tools:
        with pytest.raises(MCPServerGone, match="went away"):
            await tools["die"].function()
        with pytest.raises(MCPServerGone, match=r"(?s)cannot be used: .*no second time"):
            await tools["echo"].function(text="x")


@pytest.mark.slow
@pytest.mark.slow
@shared
async def test_an_http_server_that_comes_back_is_reached_again(tmp_path: Path) -> None:
    async with (
        http_server(tmp_path / "first") as (process, port),
        opened(MCP(f"http://127.0.0.1:{port}/mcp")) as tools,
    ):
        with pytest.raises(MCPServerGone):
            await tools["die"].function()
        await process.wait()
        for _ in range(5):  # however often it is tried while it is down
            with pytest.raises(MCPServerGone):
                await tools["echo"].function(text="x")
        async with http_server(tmp_path / "second", port):
            assert await tools["echo"].function(text="x") == "x"


@shared
async def test_a_refusal_by_the_protocol_is_an_error_in_the_servers_words() -> None:
    async with opened(MCP(_LEGACY)) as tools:
        with pytest.raises(MCPToolError, match=r"^text is too long$"):
            await tools["broken"].function()


@shared
async def test_leaving_ends_the_server_and_what_it_started() -> None:
    before = children_of(os.getpid())
    async with opened(MCP(_LEGACY)) as tools:
        server, child = int(await tools["whoami"].function()), int(await tools["fork"].function())
        [supervisor] = children_of(os.getpid()) - before
        assert children_of(supervisor) == {server}
    await gone(server)
    await gone(child)


_KILLED = """
import asyncio, os, signal, sys
from batch_agent.tools.mcp import MCP

async def main():
    async with MCP(sys.argv[1:]).open() as tools:
        calls = {tool.name: tool.function for tool in tools}
        print(await calls["whoami"](), await calls["fork"](), await calls["fork"](away=True), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only the process group of the server is reached")
@shared
async def test_nothing_of_a_server_outlives_a_program_that_is_killed_outright() -> None:
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", _KILLED, *_LEGACY, stdout=subprocess.PIPE)
    said, _ = await program.communicate()
    assert program.returncode == -signal.SIGKILL
    server, child, strayed = map(int, said.split())
    for pid in (server, child, strayed):
        await gone(pid)


@shared
async def test_leaving_ends_a_process_that_has_left_the_group() -> None:
    async with opened(MCP(_LEGACY)) as tools:
        strayed = int(await tools["fork"].function(away=True))
    await gone(strayed)


@shared
async def test_stdout_noise_of_an_mcp_server_is_ignored(tmp_path: Path) -> None:
    chatty = tmp_path / "chatty.sh"
    chatty.write_text(f"echo 'Listening ...'; echo; printf '\\377\\376\\n'; exec {shlex.join(_LEGACY)}\n")
    async with opened(MCP(["sh", str(chatty)])) as tools:
        assert await tools["echo"].function(text="ü" * 100_000) == "ü" * 100_000


@shared
async def test_half_a_character_in_a_result_is_replaced() -> None:
    async with opened(MCP(_LEGACY)) as tools:
        assert await tools["half"].function() == "cut here: \ufffd"


@shared
async def test_an_error_with_the_code_of_a_closed_connection_does_not_end_the_server() -> None:
    async with opened(MCP(_LEGACY)) as tools:
        server = await tools["whoami"].function()
        for _ in range(5):
            with pytest.raises(MCPToolError, match="no such row"):
                await tools["refuse"].function()
        assert await tools["whoami"].function() == server


@shared
async def test_leaving_by_an_error_lets_it_pass_as_it_is() -> None:
    async def run() -> None:
        async with opened(MCP(_LEGACY)) as tools:
            raise LookupError(await tools["whoami"].function())

    with pytest.raises(LookupError) as raised:
        await run()
    await gone(int(str(raised.value)))


@shared
async def test_being_cancelled_ends_the_server_too() -> None:
    started: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        async with opened(MCP(_LEGACY)) as tools:
            started.set_result(int(await tools["whoami"].function()))
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        running = group.create_task(run())
        server = await started
        running.cancel()
    await gone(server)


@shared
async def test_being_cancelled_while_a_server_starts_does_not_wait_for_it(tmp_path: Path) -> None:
    silent = MCP(["sh", "-c", f"echo $$ > {tmp_path}/pid; cat > /dev/null"], start_timeout=3600.0)

    async def run() -> None:
        async with silent.open():
            raise AssertionError("it never speaks")

    async with asyncio.TaskGroup() as group:
        running = group.create_task(run())
        server = int(await written(tmp_path / "pid"))
        running.cancel()
    await gone(server)


@pytest.mark.slow
@shared
async def test_being_cancelled_again_while_it_closes_kills_what_will_not_go(tmp_path: Path) -> None:
    stays = tmp_path / "stays.sh"
    stays.write_text(f"trap '' TERM\necho $$ > {tmp_path}/pid\n{' '.join(_LEGACY)}\nwhile true; do sleep 600; done\n")
    started: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        async with opened(MCP(["sh", str(stays)])) as tools:
            started.set_result(int(await tools["whoami"].function()))
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        running = group.create_task(run())
        server = await started
        running.cancel()
        await gone(server)  # it has heard of it, while its parent will not listen
        running.cancel()
    await gone(int((tmp_path / "pid").read_text()))


@shared
async def test_being_cancelled_while_an_http_server_does_not_say_goodbye_ends_it() -> None:
    async def run(url: str) -> None:
        async with MCP(url).open():
            pass

    async with over_http() as served, asyncio.TaskGroup() as group:
        running = group.create_task(run(served.url))
        await served.farewell.wait()
        running.cancel()
    assert running.cancelled()


@shared
@pytest.mark.parametrize(
    ("script", "seconds", "says"),
    [
        ("echo $$ > {pid}; cat > /dev/null", 0.5, r"did not answer within 0\.5 s \(start_timeout\)"),
        ("echo $$ > {pid}; trap '' TERM; while true; do sleep 600; done", 0.5, "did not answer within"),
        ("echo $$ > {pid}; echo 'no licence' >&2; exit 1", 60.0, "It wrote: no licence"),
    ],
)
async def test_a_server_that_never_speaks_is_refused_and_killed(
    tmp_path: Path, quick_kill: None, script: str, seconds: float, says: str
) -> None:
    pid = tmp_path / "pid"
    before = children_of(os.getpid())
    with pytest.raises(SpecError, match=says):
        async with opened(MCP(["sh", "-c", script.replace("{pid}", str(pid))], start_timeout=seconds)):
            pass
    for left in children_of(os.getpid()) - before:
        await gone(left)
    if pid.exists() and pid.read_text().strip():  # a slow machine may not have come so far
        await gone(int(pid.read_text()))


@shared
async def test_an_mcp_server_that_cannot_be_opened_is_rejected_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _refused(MCP("no-such-command --flag"), "command 'no-such-command' is not installed")
    await _refused(MCP("./server.py", cwd=tmp_path), "is not installed")
    await _refused(MCP("http://127.0.0.1:9/mcp"), "'http://127.0.0.1:9/mcp' cannot be used")
    monkeypatch.setitem(sys.modules, "mcp", None)
    await _refused(MCP(_LEGACY), r"pip install 'batch-agent\[mcp\]'")


@pytest.mark.parametrize(
    ("server", "options", "says"),
    [
        ("", {}, "needs a command"),
        ([], {}, "needs a command"),
        ("http://host/mcp", {"env": {"A": "b"}}, "env and cwd have no effect"),
        ("npx server", {"headers": {"A": "b"}}, "headers have no effect"),
        ("npx server", {"include": "search"}, "collections of names"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(server: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        MCP(server, **options)


def test_a_command_is_split_as_a_shell_does_and_secrets_are_not_shown() -> None:
    server = MCP("npx -y 'a server' --key secret", env={"KEY": "secret"})
    assert server.command == ["npx", "-y", "a server", "--key", "secret"]
    assert repr(server) == "MCP('npx a server')"
    assert repr(MCP("env KEY=secret MODE=a npx -y server")) == "MCP('npx server')"
    assert repr(MCP("npx -y @organisation/server")) == "MCP('npx @organisation/server')"
    assert repr(MCP("db-server postgres://me:secret@host/db")) == "MCP('db-server postgres://***@host/db')"
    assert repr(MCP(["sh", "-c", "KEY=secret server"])) == "MCP('sh')"
    assert repr(MCP("https://me:secret@host/mcp?key=secret", headers={"Key": "secret"})) == "MCP('https://host/mcp')"


async def _raised(call: Any) -> MCPServerGone:
    with pytest.raises(MCPServerGone) as raised:
        await call
    return raised.value


async def _refused(server: MCP, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        async with server.open():
            pass


def test_an_image_that_models_take_is_given_as_such() -> None:
    whole = types.ImageContent(data=b64encode(picture()).decode(), mime_type="image/png")
    broken = [types.ImageContent(data=data, mime_type="image/png") for data in ("AAAA", "%", "iVBORw0KGgo=")]
    shown = types.CallToolResult(content=[types.TextContent(text="Here:"), whole, *broken])
    content = content_of(shown)
    assert isinstance(content, list)
    text, image = content
    assert isinstance(text, str)
    assert text.startswith("Here:\n[image image/png, ")
    assert image == Image(picture())
