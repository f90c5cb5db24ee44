"""Token ids in requests and replies of vLLM and SGLang, which chat completions of OpenAI do not have."""

from collections.abc import Mapping
from typing import Any

from ....core.errors import BackendError, ErrorKind
from ....core.requests import TokenRequest, TurnTokens, packed_ids, packed_logprobs, unpacked_ids

PROMPT_IDS = "prompt_token_ids"
"""Field of a reply: of vLLM's itself, of SGLang's choices. vLLM also takes it in `kv_transfer_params`."""
_SAMPLED_IDS = ("token_ids", "response_token_ids")
"""Field of a choice, of vLLM and SGLang."""


def token_fields(wanted: TokenRequest, input_field: str) -> dict[str, Any]:
    """Fields of a request for ids. `input_field`: where the server takes a prompt of ids."""
    fields: dict[str, Any] = {"logprobs": True, "return_token_ids": True}
    if wanted.prompt_ids:
        ids = unpacked_ids(wanted.prompt_ids)
        fields[input_field] = ids if input_field == "input_ids" else {PROMPT_IDS: ids}
    return fields


def read_tokens(reply: Mapping[str, Any], choice: Mapping[str, Any]) -> TurnTokens:
    """The tokens of a reply that has ids. Raises BackendError if they do not fit together."""
    prompt = reply.get(PROMPT_IDS) or choice.get(PROMPT_IDS)
    sampled = next((choice[field] for field in _SAMPLED_IDS if choice.get(field) is not None), None)
    try:
        logprobs = [each["logprob"] for each in (choice.get("logprobs") or {}).get("content") or ()]
        if sampled is None or len(logprobs) != len(sampled):
            raise ValueError(f"{'no' if sampled is None else len(sampled)} ids, {len(logprobs)} log probabilities")
        ids = packed_ids(prompt or ()), packed_ids(sampled), packed_logprobs(logprobs)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise BackendError(ErrorKind.SERVER, f"The token ids of the reply do not fit together: {error}.") from error
    return TurnTokens(*ids, str(choice.get("finish_reason") or ""), str(reply.get("model") or ""), _version(reply))


def _version(reply: Mapping[str, Any]) -> str:
    """SGLang's version of the weights, or the fingerprint that vLLM has of them."""
    metadata = reply.get("metadata")
    version = metadata.get("weight_version") if isinstance(metadata, dict) else None
    return str(version or reply.get("system_fingerprint") or "")
