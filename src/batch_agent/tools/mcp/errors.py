"""How calls of MCP servers fail."""


class MCPToolError(Exception):
    """The call failed, in the server's words."""


class MCPServerGone(Exception):
    """The server went away; the next call starts or reaches it again."""
