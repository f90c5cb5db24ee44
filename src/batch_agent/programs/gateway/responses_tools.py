"""Tools of OpenAI's responses API as functions, the only kind of tool that every model can call."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, Literal

from ...core.fast_dataclass import dataclass
from ...core.json import dumps
from ...core.messages import ToolCall, ToolSpec
from ...core.schema import JsonSchema
from . import request_fields as fields
from .gateway_error import GatewayError
from .json_text import as_object

Kind = Literal["function", "custom", "local_shell"]
Item = dict[str, Any]

_NO_PARAMETERS: JsonSchema = {"type": "object", "properties": {}}
_INPUT: JsonSchema = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input of the tool, as plain text."}},
    "required": ["input"],
    "additionalProperties": False,
}
_SHELL = "local_shell"
_SHELL_PARAMETERS: JsonSchema = {
    "type": "object",
    "properties": {
        "command": {"type": "array", "items": {"type": "string"}, "description": "The program and its arguments."},
        "working_directory": {"type": "string"},
        "timeout_ms": {"type": "integer"},
    },
    "required": ["command"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool of a request: its definition for the model, and its name for the program."""

    spec: ToolSpec
    kind: Kind
    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools of a request that the program runs itself. Tools that only OpenAI's servers run, such as web_search,
    are left out: nothing here could answer their calls, and programs send them with every request."""

    tools: tuple[OfferedTool, ...] = ()
    definitions: tuple[Mapping[str, Any], ...] = ()
    """Definitions as the program wrote them."""
    left_out: frozenset[str] = frozenset()
    """Types of the tools that are left out."""
    _by_model_name: Mapping[str, OfferedTool] = field(default_factory=dict)

    @property
    def specs(self) -> fields.Tools:
        return tuple(tool.spec for tool in self.tools)

    def model_name(self, kind: str, name: str, namespace: str | None = None) -> str:
        """The name under which the model calls the tool. Raises GatewayError."""
        for tool in self.tools:
            if tool.name == name and tool.kind == kind and (namespace is None or tool.namespace == namespace):
                return tool.spec.name
        raise GatewayError(f"tool_choice names {name[:80]!r}, which is not among the tools of this request.")

    def call_item(self, call: ToolCall, item_id: str, status: str) -> Item:
        """Converts the model's call to the program's kind of tool. A call of an unknown tool becomes a function
        call."""
        tool = self._by_model_name.get(call.name) or OfferedTool(ToolSpec(call.name, "", {}), "function", call.name)
        common: Item = {"id": item_id, "call_id": call.id, "status": status}
        if tool.kind == "local_shell":
            return {"type": "local_shell_call", **common, "action": _shell_action(call.arguments)}
        common |= {"name": tool.name} | ({} if tool.namespace is None else {"namespace": tool.namespace})
        if tool.kind == "custom":
            return {"type": "custom_tool_call", **common, "input": _custom_input(call.arguments)}
        return {"type": "function_call", **common, "arguments": call.arguments or "{}"}


def read_tools(body: Mapping[str, Any]) -> OfferedTools:
    """Reads the tools of a request, including those that its input adds. Raises GatewayError."""
    definitions = [*_definitions(body.get("tools"), "tools")]
    entries = body.get("input")
    for number, item in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(item, dict) and item.get("type") == "additional_tools":
            definitions += _definitions(item.get("tools"), f"input[{number}].tools")
    found: dict[str, OfferedTool] = {}
    used, left_out = list[Mapping[str, Any]](), set[str]()
    for where, definition in definitions:
        tools = list(_read(definition, where))
        if tools:
            used.append(definition)
        else:
            left_out.add(str(definition.get("type"))[:40])
        found |= {tool.spec.name: tool for tool in tools}
    return OfferedTools(tuple(found.values()), tuple(used), frozenset(left_out), found)


def function_name(name: str, namespace: Any) -> str:
    """The function name for the model, which knows no namespaces."""
    return f"{namespace}__{name}" if isinstance(namespace, str) and namespace else name


def custom_call(call_id: str, name: str, text: str) -> ToolCall:
    """The call of a custom tool, as the model made it."""
    return ToolCall(call_id, name, dumps({"input": text}).decode())


def shell_call(call_id: str, action: Any) -> ToolCall:
    known = action if isinstance(action, dict) else {}
    arguments = {name: known[name] for name in ("command", "working_directory", "timeout_ms") if known.get(name)}
    return ToolCall(call_id, _SHELL, dumps(arguments).decode())


def _definitions(tools: Any, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, tool in enumerate(fields.object_list(tools, where)):
        yield f"{where}[{number}]", tool


def _read(tool: Mapping[str, Any], where: str) -> Iterator[OfferedTool]:
    match tool.get("type"):
        case "function":
            yield _function(tool, where)
        case "custom":
            yield _custom(tool, where)
        case "local_shell":
            yield OfferedTool(ToolSpec(_SHELL, "Runs a command.", _SHELL_PARAMETERS), "local_shell", _SHELL)
        case "namespace":
            namespace = fields.name_in(tool, where)
            for at, inner in _definitions(tool.get("tools"), f"{where}.tools"):
                if inner.get("type") == "custom":
                    yield _custom(inner, at, namespace)
                else:
                    yield _function(inner, at, namespace)
        case str():
            return
        case _:
            raise GatewayError(f"{where}.type must be a string, such as 'function'.")


def _function(tool: Mapping[str, Any], where: str, namespace: str | None = None) -> OfferedTool:
    name, parameters = fields.name_in(tool, where), tool.get("parameters")
    spec = ToolSpec(
        function_name(name, namespace),
        fields.text(tool.get("description"), f"{where}.description"),
        _NO_PARAMETERS if parameters is None else fields.schema(parameters, f"{where}.parameters"),
    )
    return OfferedTool(spec, "function", name, namespace)


def _custom(tool: Mapping[str, Any], where: str, namespace: str | None = None) -> OfferedTool:
    """A tool with free text as input. Not every server can enforce its grammar, so the model gets to read it."""
    name, description = fields.name_in(tool, where), fields.text(tool.get("description"), f"{where}.description")
    match tool.get("format"):
        case {"type": "grammar", "syntax": str(syntax), "definition": str(grammar)}:
            description = f"{description}\n\nThe input must match this {syntax} grammar:\n{grammar}".strip()
    return OfferedTool(ToolSpec(function_name(name, namespace), description, _INPUT), "custom", name, namespace)


def _custom_input(arguments: str) -> str:
    """The text of a call; all of the arguments if the model did not write the text as an argument."""
    text = as_object(arguments).get("input")
    return text if isinstance(text, str) else arguments


def _shell_action(arguments: str) -> Item:
    values = as_object(arguments)
    command, timeout, folder = values.get("command"), values.get("timeout_ms"), values.get("working_directory")
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        command = ["bash", "-lc", command if isinstance(command, str) else arguments]
    return {
        "type": "exec",
        "command": command,
        "env": {},
        "timeout_ms": timeout if type(timeout) is int else None,
        "working_directory": folder if isinstance(folder, str) else None,
        "user": None,
    }
