"""Token ids in requests and replies of vLLM and SGLang, which chat completions of OpenAI do not have."""

from collections.abc import Mapping
from typing import Any

from ....core.errors import BackendError, ErrorKind
from ....core.requests import TurnTokens, packed_ids, packed_logprobs

PROMPT_IDS = "prompt_token_ids"
"""Field of a reply: of vLLM's itself, of SGLang's choices. vLLM also takes it in `kv_transfer_params`."""
TOKEN_FIELDS = b',"logprobs":true,"return_token_ids":true'
"""Fields of a request for ids."""


def read_tokens(reply: Mapping[str, Any], choice: Mapping[str, Any]) -> TurnTokens:
    """The tokens of a reply that has ids. Raises BackendError if they do not fit together."""
    prompt = reply.get(PROMPT_IDS) or choice.get(PROMPT_IDS)
    sampled = choice.get("token_ids")
    if sampled is None:
        sampled = choice.get("response_token_ids")  # SGLang's
    try:
        logprobs = [each["logprob"] for each in (choice.get("logprobs") or {}).get("content") or ()]
        if sampled is None or len(logprobs) != len(sampled):
            raise ValueError(f"{'no' if sampled is None else len(sampled)} ids, {len(logprobs)} log probabilities")
        return TurnTokens(
            packed_ids(prompt or ()),
            packed_ids(sampled),
            packed_logprobs(logprobs),
            str(choice.get("finish_reason") or ""),
            str(reply.get("model") or ""),
            _version(reply),
        )
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise BackendError(ErrorKind.SERVER, f"The token ids of the reply do not fit together: {error}.") from error


def _version(reply: Mapping[str, Any]) -> str:
    """SGLang's version of the weights, or the fingerprint that vLLM has of them."""
    metadata = reply.get("metadata")
    version = metadata.get("weight_version") if isinstance(metadata, dict) else None
    return str(version or reply.get("system_fingerprint") or "")
