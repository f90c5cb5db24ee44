"""Names from the OpenTelemetry semantic conventions for generative AI (in development, since mid-2026 in the repository
open-telemetry/semantic-conventions-genai), and names of our own where there is no convention."""

from ...core.requests import FinishReason

OPERATION = "gen_ai.operation.name"
INVOKE_WORKFLOW = "invoke_workflow"
INVOKE_AGENT = "invoke_agent"
CHAT = "chat"
EXECUTE_TOOL = "execute_tool"

PROVIDER = "gen_ai.provider.name"
MODEL = "gen_ai.request.model"
WORKFLOW_NAME = "gen_ai.workflow.name"
AGENT_NAME = "gen_ai.agent.name"
AGENT_ID = "gen_ai.agent.id"
CONVERSATION = "gen_ai.conversation.id"
STREAM = "gen_ai.request.stream"
FINISH_REASONS = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
WRITTEN_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
FUNCTION = "function"
ERROR = "error.type"

RESPONSE_MODEL = "gen_ai.response.model"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL_DEFINITIONS = "gen_ai.tool.definitions"
CALL_ID = "gen_ai.tool.call.id"
CALL_ARGUMENTS = "gen_ai.tool.call.arguments"
CALL_RESULT = "gen_ai.tool.call.result"
OPENINFERENCE_KIND = "openinference.span.kind"
CHAIN = "CHAIN"
INPUT_VALUE = "input.value"
OUTPUT_VALUE = "output.value"
"""Only in traces with contents, like all names above from `gen_ai.response.model` on. The last ones come from
OpenInference: MLflow and Phoenix read the messages of the conventions, but neither knows `invoke_workflow`, and their
lists show these values."""

TOOL_FAILED = "tool_error"
"""Value of `error.type`. The tool's message is not exported."""
STOPPED = "stopped"
"""Value of `error.type`: the run ended before the agent."""
REASSIGNED = "reassigned"
"""Value of `error.type`: another worker continues the agent, in a span of its own."""

INDEX = "batch_agent.index"
TURN = "batch_agent.turn"
TURNS = "batch_agent.turns"
TOOL_CALLS = "batch_agent.tool_calls"
QUEUED = "batch_agent.queued"
ATTEMPTS = "batch_agent.attempts"
TOOL_SOURCE = "batch_agent.tool.source"
INPUTS = "batch_agent.inputs"
ANSWERED = "batch_agent.answered"
FAILED = "batch_agent.failed"
RESUMED = "batch_agent.resumed"
SECONDS = "batch_agent.seconds"

RETRY = "batch_agent.retry"
PAUSED = "batch_agent.paused"
PAUSE_ENDED = "batch_agent.pause_ended"
"""Names of span events."""

_PROVIDERS = {"bedrock": "aws.bedrock"}
_REASONS: dict[FinishReason, str] = {"calls": "tool_call"}


def provider(backend: str) -> str:
    """The provider name of a backend in the conventions; other backends keep their own names."""
    return _PROVIDERS.get(backend, backend)


def finish_reason(reason: FinishReason) -> str:
    return _REASONS.get(reason, reason)
