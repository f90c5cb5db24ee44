"""Reading files, confined to one folder."""

from pathlib import Path

from ..tool import Tool, make_tool

_MOST_BYTES = 2_000_000
_LOOKED_AT = 8_000


def read_file_tool(root: str | Path | None = None) -> Tool:
    """A `read_file` that sees only what lies below `root` (None: the working directory at the time of the call)."""

    def read_file(path: str) -> str:
        """Read a text file."""
        base = Path(root or ".").resolve()
        target = (base / path).resolve()
        if not target.is_relative_to(base):
            raise PermissionError(f"{path!r} is outside of the folder that may be read")
        if not target.is_file():
            raise FileNotFoundError(f"there is no file {path!r}")
        with target.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if b"\0" in data[:_LOOKED_AT]:
            return f"[a binary file of {target.stat().st_size} bytes]"
        text = data[:_MOST_BYTES].decode(errors="replace")
        return text + (f"\n[cut here: only the first {_MOST_BYTES} bytes are shown]" if len(data) > _MOST_BYTES else "")

    return make_tool(read_file, effect="read")


Tool.read_file = read_file_tool()
