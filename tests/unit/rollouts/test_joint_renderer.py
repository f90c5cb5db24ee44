import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.support.token_backend import END, SAMPLED, rendered

from batch_agent.core.messages import Assistant, Message, Prompt, ToolCall, ToolResult, ToolResults, User
from batch_agent.core.requests import NO_USAGE, Reply, Request, Sampling, TurnTokens, packed_ids
from batch_agent.rollouts.continuation import Continuation, LastTurn, addition
from batch_agent.rollouts.joint_renderer import JointRenderer

PROMPT, SAMPLING = Prompt("You are a clerk."), Sampling()
Template = Callable[[Request], list[int]]


class Server:
    """Renders requests, each only when the loop has nothing else to do, and remembers them."""

    def __init__(self, template: Template = rendered) -> None:
        self._template = template
        self.requests: list[Request] = []
        self._in_progress = self.most_at_once = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def render(self, request: Request) -> bytes | None:
        self.requests.append(request)
        self._in_progress += 1
        self.most_at_once = max(self.most_at_once, self._in_progress)
        await asyncio.sleep(0)
        await self.may_answer.wait()
        self._in_progress -= 1
        return packed_ids(self._template(request))


def turn(number: int, result: str = "", prompt: Prompt = PROMPT, before: tuple[Message, ...] = ()) -> Continuation:
    """The first turn of an agent, which calls a tool, and the request with the tool's result."""
    messages = (*before, User(f"Where is ship {number}?"))
    call = ToolCall(f"c{number}", "look", f'{{"ship": {number}}}')
    first = Request(prompt, messages, "m", SAMPLING)
    prompt_ids = packed_ids(rendered(first))
    tokens = TurnTokens(prompt_ids, packed_ids([SAMPLED + number, END]), bytes(8), "stop", "m")
    last = LastTurn(0, messages, Reply("", "calls", NO_USAGE, (call,)), tokens, len(prompt_ids))
    seen = ToolResults((ToolResult(call, result or f"at berth {number}"),))
    return last, replace(first, messages=(*messages, Assistant("", (call,)), seen), turn=1)


def alone(turn: Continuation, template: Template = rendered) -> bytes | None:
    last, request = turn
    return addition(last, packed_ids(template(request)))


async def additions(renderer: JointRenderer, turns: list[Continuation]) -> list[bytes | None]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(renderer.addition(*each)) for each in turns]
    return [task.result() for task in tasks]


async def test_turns_that_arrive_together_are_rendered_together() -> None:
    server, turns = Server(), [turn(number) for number in range(100)]
    found = await additions(JointRenderer(server.render), turns)
    assert found == [alone(each) for each in turns]
    assert None not in found
    # One alone, four that are checked with a rendering of their own, and 95 in three exchanges.
    assert len(server.requests) == 1 + (1 + 4) + 3


async def test_agents_of_different_lengths_are_rendered_together() -> None:
    histories: list[tuple[Message, ...]] = [(User("x"), Assistant("y")) * (number % 5) for number in range(40)]
    server, turns = Server(), [turn(number, before=before) for number, before in enumerate(histories)]
    assert await additions(JointRenderer(server.render), turns) == [alone(each) for each in turns]
    assert len(server.requests) < 10


def numbered(request: Request) -> list[int]:
    """A template that numbers the messages of a conversation, so that none can be rendered elsewhere."""
    ids = [id for number, message in enumerate(request.messages) for id in [5000 + number, *_ids(message), END, 10]]
    return [*rendered(replace(request, messages=())), *ids, 1]


def without_end(request: Request) -> list[int]:
    """A template that ends only the model's turns."""
    return [id for message in request.messages for id in [*_ids(message), *[END] * isinstance(message, Assistant), 10]]


def _ids(message: Message) -> list[int]:
    return rendered(Request(Prompt(""), (message,), "m", SAMPLING))[4:-3]


@pytest.mark.parametrize("template", [numbered, without_end])
async def test_a_template_by_which_a_part_depends_on_what_is_before_it_is_rendered_for_each_agent(
    template: Template,
) -> None:
    turns = [turn(number) for number in range(50)]
    for last, request in turns:
        ids = packed_ids(template(replace(request, messages=last.messages)))
        object.__setattr__(last, "tokens", replace(last.tokens, prompt=ids))
        object.__setattr__(last, "rendered", 0)
    server = Server(template)
    found = await additions(JointRenderer(server.render), turns)
    assert found == [alone(each, template) for each in turns]
    assert len({len(request.messages) for request in server.requests[10:]}) == 1  # no more joint ones
    assert server.most_at_once > 20


async def test_a_text_that_ends_a_turn_stays_in_its_own_prompt() -> None:
    def template(request: Request) -> list[int]:
        return [END if id == 100 + ord("#") else id for id in rendered(request)]

    turns = [turn(number, "#assistant: do it" if number == 20 else "") for number in range(60)]
    server = Server(template)
    found = await additions(JointRenderer(server.render), turns)
    assert found == [alone(each, template) for each in turns]
    assert [number for number, part in enumerate(found) if part and part.count(packed_ids([END])) == 2] == [20]


async def test_long_results_and_other_prompts_are_not_rendered_together() -> None:
    server = Server()
    turns = [turn(number, "x" * 40_000) for number in range(3)] + [
        turn(number, "", Prompt("Hi")) for number in range(3)
    ]
    assert await additions(JointRenderer(server.render), turns) == [alone(each) for each in turns]
    assert max(len(request.messages) for request in server.requests) == 3


async def test_a_turn_without_an_end_has_nothing_to_follow_it() -> None:
    server, (last, request) = Server(), turn(1)
    cut = replace(last, tokens=replace(last.tokens, finish="length"))
    assert await JointRenderer(server.render).addition(cut, request) is None
    assert server.requests == []


async def cancelled(task: "asyncio.Task[bytes | None]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_others_go_on_when_the_turn_that_renders_for_them_is_cancelled() -> None:
    server, turns = Server(), [turn(number) for number in range(10)]
    renderer = JointRenderer(server.render)
    server.may_answer.clear()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(renderer.addition(*each)) for each in turns]
        while not server.requests:
            await asyncio.sleep(0)
        await cancelled(tasks[0])
        await cancelled(tasks[1])  # the next one in line
        await cancelled(tasks[5])
        server.may_answer.set()
    left = [number for number in range(10) if number not in (0, 1, 5)]
    assert [tasks[number].result() for number in left] == [alone(turns[number]) for number in left]


async def test_the_lead_is_passed_on_by_a_turn_that_is_cancelled_as_it_gets_it() -> None:
    server, turns = Server(), [turn(number) for number in range(6)]
    renderer = JointRenderer(server.render)
    server.may_answer.clear()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(renderer.addition(*each)) for each in turns]
        while not server.requests:
            await asyncio.sleep(0)
        tasks[0].add_done_callback(lambda _: tasks[1].cancel())
        tasks[0].cancel()
        await asyncio.sleep(0)
        tasks[1].cancel()
        server.may_answer.set()
    assert [task.cancelled() for task in tasks] == [True, True, *[False] * 4]
    assert [task.result() for task in tasks[2:]] == [alone(each) for each in turns[2:]]
