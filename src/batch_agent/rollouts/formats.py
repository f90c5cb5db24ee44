"""Rollouts in the formats of trainers: ATIF, TRL and verifiers. docs/rollouts.md lists the versions."""

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any, Literal

from ..core.json import loads
from ..core.messages import Assistant, Message, ToolCall, ToolResults, User
from ..core.requests import TurnTokens, unpacked_ids, unpacked_logprobs
from ..core.results import AgentResult
from ..version import __version__
from .rollout import Rollout, TokenSequence

RolloutFormat = Literal["atif", "trl", "verifiers"]
ATIF_VERSION = "ATIF-v1.7"
TRL_COLUMNS = (
    *("key", "index", "sample", "status", "thread", "first_turn", "turns", "prompt_ids", "completion_ids"),
    *("logprobs", "env_mask", "reward", "finish_reason", "model", "model_version", "breaks"),
)
"""In the order of the table."""


def rollout_rows(result: AgentResult, rollout: Rollout, format: RolloutFormat) -> Iterator[dict[str, Any]]:
    """Rows of an agent: one for ATIF and verifiers, one per sequence for TRL."""
    match format:
        case "atif":
            yield atif_trajectory(result, rollout)
        case "verifiers":
            yield verifiers_output(result, rollout)
        case "trl":
            for sequence in rollout.sequences():
                yield _trl_row(result, rollout, sequence)


def _trl_row(result: AgentResult, rollout: Rollout, sequence: TokenSequence) -> dict[str, Any]:
    """The keys that a `rollout_func` of TRL returns for each completion, and the origin of the completion."""
    last = rollout.threads[sequence.thread][sequence.first_turn + sequence.turns - 1]
    row = {
        "key": result.key,
        "index": result.index,
        "sample": result.sample,
        "status": result.status,
        "thread": sequence.thread,
        "first_turn": sequence.first_turn,
        "turns": sequence.turns,
        "prompt_ids": sequence.prompt_ids,
        "completion_ids": sequence.completion_ids,
        "logprobs": sequence.logprobs,
        "env_mask": sequence.mask,
        "reward": _reward(result),
        "finish_reason": last.finish,
        "model": last.model,
        "model_version": last.version,
        "breaks": len(rollout.breaks_of(sequence.thread)),
    }
    return {name: value for name, value in row.items() if value is not None}


def verifiers_output(result: AgentResult, rollout: Rollout) -> dict[str, Any]:
    """`RolloutOutput` of verifiers, with a trajectory step for each request."""
    messages = result.messages
    answers = next((at for at, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    is_truncated = any(turn.finish == "length" for turn in rollout.turns)
    return {
        "example_id": result.index,
        "prompt": messages[:answers],
        "completion": messages[answers:],
        "answer": "",
        "reward": _reward(result) or 0.0,
        "metrics": {name: float(value) for name, value in _scores(result).items()},
        "timing": {"total": result.timing.total},
        "is_completed": result.ok,
        "is_truncated": is_truncated,
        "stop_condition": result.finish,
        "error": None if result.error is None else {"error": result.error.kind.value, "message": result.error.message},
        "info": {"key": result.key, "sample": result.sample, "input": result.input, **_breaks(rollout)},
        "token_usage": {"input_tokens": result.usage.input, "output_tokens": result.usage.output},
        "trajectory": [
            _verifiers_step(turn, f"{result.key}/{thread}")
            for thread, turns in enumerate(rollout.threads)
            for turn in turns
        ],
    }


def _verifiers_step(turn: TurnTokens, trajectory: str) -> dict[str, Any]:
    prompt, sampled = unpacked_ids(turn.prompt), unpacked_ids(turn.sampled)
    is_truncated = turn.finish == "length"
    return {
        "prompt": [],
        "completion": [],
        "response": None,
        "tokens": {
            "prompt_ids": prompt,
            "prompt_mask": [0] * len(prompt),
            "completion_ids": sampled,
            "completion_mask": [1] * len(sampled),
            "completion_logprobs": unpacked_logprobs(turn.logprobs),
            "overlong_prompt": False,
            "is_truncated": is_truncated,
            "routed_experts": None,
        },
        "reward": None,
        "advantage": None,
        "is_truncated": is_truncated,
        "trajectory_id": trajectory,
        "extras": {"finish_reason": turn.finish, "model": turn.model, "model_version": turn.version},
    }


def atif_trajectory(result: AgentResult, rollout: Rollout) -> dict[str, Any]:
    """A trajectory of ATIF: the conversation, with the tokens of its request for each answer.

    A conversation may have fewer answers than there were requests, because an answer that does not fit is replaced.
    Answers then have the tokens of the last requests, and `extra` counts the others."""
    steps = list(_steps(result, rollout.turns))
    for number, step in enumerate(steps, 1):
        step["step_id"] = number
    shown = sum(step["source"] == "agent" for step in steps)
    usage, extra = result.usage, {"key": result.key, "index": result.index, "status": result.status, **_breaks(rollout)}
    if result.sample is not None:
        extra["sample"] = result.sample
    if scores := _scores(result):
        extra["scores"] = scores
    if hidden := len(rollout.records) - shown:
        extra["requests_not_shown"] = hidden
    return {
        "schema_version": ATIF_VERSION,
        "trajectory_id": result.key if result.sample is None else f"{result.key}~{result.sample}",
        "agent": {"name": "batch-agent", "version": __version__, "model_name": rollout.turns[-1].model},
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": usage.input,
            "total_completion_tokens": usage.output,
            "total_cached_tokens": usage.cached,
            "total_steps": len(steps),
            **({} if result.cost is None else {"total_cost_usd": result.cost}),
        },
        "extra": extra,
    }


def _steps(result: AgentResult, turns: Sequence[TurnTokens]) -> Iterator[dict[str, Any]]:
    if result.prompt is not None and result.prompt.system:
        yield {"step_id": 0, "source": "system", "message": result.prompt.system}
    messages = result.transcript
    answers = sum(isinstance(message, Assistant) for message in messages)
    tokens = chain(repeat(None, answers - len(turns)), turns[max(0, len(turns) - answers) :])
    for message, following in zip(messages, [*messages[1:], None], strict=True):
        match message:
            case User():
                yield {"step_id": 0, "source": "user", "message": message.text}
            case Assistant():
                yield _agent_step(message, following, next(tokens))
            case _:
                pass  # results are part of the step that called the tools


def _agent_step(message: Assistant, following: Message | None, tokens: TurnTokens | None) -> dict[str, Any]:
    step: dict[str, Any] = {"step_id": 0, "source": "agent", "message": message.text}
    if thoughts := "".join(thought.text for thought in message.thoughts):
        step["reasoning_content"] = thoughts
    if message.calls:
        step["tool_calls"] = [
            {"tool_call_id": call.id, "function_name": call.name, "arguments": _arguments(call)}
            for call in message.calls
        ]
    if message.calls and isinstance(following, ToolResults):
        step["observation"] = {
            "results": [{"source_call_id": each.call.id, "content": each.content} for each in following.results]
        }
    if tokens is not None:
        step |= {"model_name": tokens.model, "metrics": _metrics(tokens)}
    return step


def _metrics(tokens: TurnTokens) -> dict[str, Any]:
    prompt, sampled = unpacked_ids(tokens.prompt), unpacked_ids(tokens.sampled)
    return {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(sampled),
        "prompt_token_ids": prompt,
        "completion_token_ids": sampled,
        "logprobs": unpacked_logprobs(tokens.logprobs),
        "extra": {"finish_reason": tokens.finish, "model_version": tokens.version},
    }


def _arguments(call: ToolCall) -> dict[str, Any]:
    """The arguments as an object. Text that is not an object is kept under a separate name."""
    try:
        arguments = loads(call.arguments)
    except ValueError:
        arguments = None
    return arguments if isinstance(arguments, dict) else {"raw": call.arguments}


def _breaks(rollout: Rollout) -> dict[str, Any]:
    breaks = [
        {"thread": each.thread, "turn": each.turn, "position": each.position, "expected": each.expected}
        for each in rollout.breaks
    ]
    return {"breaks": breaks, **({"turns_without_tokens": rollout.missing} if rollout.missing else {})}


def _reward(result: AgentResult) -> float | None:
    """The first score, as used in metrics."""
    return next(iter(_scores(result).values()), None)


def _scores(result: AgentResult) -> dict[str, float]:
    return {name: float(score) for name, score in result.scores.items() if isinstance(score, int | float)}
