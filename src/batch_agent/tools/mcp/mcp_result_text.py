"""Results of MCP calls as text for the model."""

from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    import mcp_types


def as_text(result: "mcp_types.CallToolResult") -> str:
    """Text of a result. Structured content is omitted if the text repeats it, as the specification asks servers to
    do."""
    text = "\n".join(filter(None, map(_block, result.content)))
    if result.structured_content is None or _repeats(text, result.structured_content):
        return text
    return f"{text}\n{orjson.dumps(result.structured_content).decode()}".strip()


def _repeats(text: str, content: Any) -> bool:
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError:
        parsed = text
    return content in (parsed, {"result": parsed}, {"result": text})


def _block(block: "mcp_types.ContentBlock") -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type} {block.mime_type}, {len(block.data) * 3 // 4} bytes]"
        case "resource_link":
            return f"[resource {block.name}: {block.uri}]"
        case "resource":
            resource = block.resource
            text = getattr(resource, "text", None)
            return (
                f"[resource {resource.uri}]\n{text}"
                if text is not None
                else f"[resource {resource.uri}, {resource.mime_type}]"
            )
