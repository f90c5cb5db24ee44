"""What MCP servers answer, as a text for a model."""

from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    import mcp_types


def as_text(result: "mcp_types.CallToolResult") -> str:
    """For the model. Structured content is left out where the text says the same, as servers are asked to do."""
    text = "\n".join(filter(None, map(_block, result.content)))
    if result.structured_content is None or _says(text, result.structured_content):
        return text
    return f"{text}\n{orjson.dumps(result.structured_content).decode()}".strip()


def _says(text: str, content: Any) -> bool:
    try:
        said = orjson.loads(text)
    except orjson.JSONDecodeError:
        said = text
    return content in (said, {"result": said}, {"result": text})


def _block(block: "mcp_types.ContentBlock") -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type} {block.mime_type}, {len(block.data) * 3 // 4} bytes]"
        case "resource_link":
            return f"[resource {block.name}: {block.uri}]"
        case "resource":
            held = block.resource
            shown = getattr(held, "text", None)
            return (
                f"[resource {held.uri}]\n{shown}" if shown is not None else f"[resource {held.uri}, {held.mime_type}]"
            )
