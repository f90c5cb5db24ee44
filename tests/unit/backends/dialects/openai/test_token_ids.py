"""Token ids in chat completions, as vLLM 0.32 and SGLang 0.5.23 return them."""

import json
from typing import Any

import pytest

from batch_agent.backends.dialects.openai.decoder import decode_reply
from batch_agent.backends.dialects.openai.encoder import OpenAIChat
from batch_agent.backends.flavors import SGLANG, VLLM
from batch_agent.core.errors import BackendError
from batch_agent.core.messages import Prompt, ToolSpec, User
from batch_agent.core.requests import (
    ContextHint,
    Finished,
    Request,
    Sampling,
    TokenRequest,
    packed_ids,
    unpacked_ids,
    unpacked_logprobs,
)

TOOL = ToolSpec("look", "", {"type": "object", "properties": {}})
LOGPROBS = {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": 0.0}]}
MESSAGE = {"role": "assistant", "content": "ab"}


def vllm_reply(**changes: Any) -> bytes:
    choice = {"message": MESSAGE, "finish_reason": "stop", "token_ids": [7, 8], "logprobs": LOGPROBS, **changes}
    return json.dumps(
        {"model": "m", "choices": [choice], "prompt_token_ids": [1, 2, 3], "system_fingerprint": "vllm-0.32"}
    ).encode()


def sglang_reply() -> bytes:
    ids = {"prompt_token_ids": [1, 2, 3], "response_token_ids": [7, 8]}
    choice = {"message": MESSAGE, "finish_reason": "stop", "logprobs": LOGPROBS, **ids}
    return json.dumps({"model": "m", "choices": [choice], "metadata": {"weight_version": "step-12"}}).encode()


@pytest.mark.parametrize(("body", "version"), [(vllm_reply(), "vllm-0.32"), (sglang_reply(), "step-12")])
def test_ids_log_probabilities_and_the_version_of_the_weights_are_read(body: bytes, version: str) -> None:
    finished = decode_reply(body)[-1]
    assert isinstance(finished, Finished)
    tokens = finished.tokens
    assert tokens is not None
    assert (unpacked_ids(tokens.prompt), unpacked_ids(tokens.sampled)) == ([1, 2, 3], [7, 8])
    assert unpacked_logprobs(tokens.logprobs) == [-0.5, 0.0]
    assert (tokens.finish, tokens.model, tokens.version) == ("stop", "m", version)


@pytest.mark.parametrize(
    "changes",
    [{"logprobs": None}, {"token_ids": [7]}, {"token_ids": None}, {"token_ids": ["7", 8]}, {"token_ids": [-1, 8]}],
)
def test_ids_that_do_not_fit_their_log_probabilities_are_an_error(changes: dict[str, Any]) -> None:
    with pytest.raises(BackendError, match="do not fit together"):
        decode_reply(vllm_reply(**changes))


@pytest.mark.parametrize("ids", [None, []])
def test_a_reply_without_ids_has_no_tokens(ids: Any) -> None:
    body = json.dumps({"choices": [{"message": MESSAGE, "token_ids": None}], "prompt_token_ids": ids}).encode()
    finished = decode_reply(body)[-1]
    assert isinstance(finished, Finished)
    assert finished.tokens is None


def request(prompt_ids: list[int] | None = None, **changes: Any) -> Request:
    changes = {"tokens": TokenRequest(packed_ids(prompt_ids or [])), "sampling": Sampling(), **changes}
    return Request(prompt=Prompt("", (TOOL,)), messages=(User("hi"),), model="m", **changes)


def body(flavor: Any, asked: Request) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(OpenAIChat(flavor.extensions).encode(asked))
    return found


@pytest.mark.parametrize("flavor", [VLLM, SGLANG])
def test_a_request_asks_for_ids_only_if_it_wants_them(flavor: Any) -> None:
    asked = body(flavor, request())
    assert (asked["return_token_ids"], asked["logprobs"]) == (True, True)
    assert asked.keys() - {"return_token_ids", "logprobs"} == body(flavor, request(tokens=None)).keys()


def test_a_prompt_of_ids_goes_where_the_server_takes_it() -> None:
    assert body(SGLANG, request([1, 2]))["input_ids"] == [1, 2]
    extra = {"kv_transfer_params": {"mine": 1}}
    asked = request([1, 2], sampling=Sampling(extra=extra), hint=ContextHint("a"))
    assert body(VLLM, asked)["kv_transfer_params"]["prompt_token_ids"] == [1, 2]
    assert body(VLLM, asked)["kv_transfer_params"]["mine"] == 1
    assert OpenAIChat(VLLM.extensions).encode(asked).count(b'"kv_transfer_params"') == 1


def test_a_prompt_is_rendered_with_its_tools_on_the_last_turn_too() -> None:
    last = request([1], may_call_tools=False, answer_schema={"type": "object"})
    rendering = json.loads(OpenAIChat(SGLANG.extensions).encode_rendering(last))
    assert rendering["add_generation_prompt"] is True
    assert rendering["tools"]
    assert not rendering.keys() & {"tool_choice", "response_format", "return_token_ids", "input_ids"}
