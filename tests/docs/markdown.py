"""The code blocks of a page, as its readers see them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"(?P<indent> *)(?P<marks>`{3,}|~{3,})(?P<info>.*)")
_TITLE = re.compile(r'title="([^"]+)"')
_NOTE = re.compile(r"<!-- (.+) -->")


@dataclass(frozen=True, slots=True)
class Block:
    """What stands between two fences. One with a `title` is a file, which the page's other blocks find."""

    line: int
    language: str
    title: str
    text: str
    note: str
    """A comment that stands right before it."""
    follows: bool
    """Whether nothing but blank lines stands between it and the block before."""

    @property
    def not_run(self) -> str:
        """Why it is not, if it is not."""
        return self.note.removeprefix("not run: ") if self.note.startswith("not run: ") else ""

    @property
    def is_exact(self) -> bool:
        """Whether the output that a console shows is the one that is printed, to the letter."""
        return self.note.startswith("exactly this")

    @property
    def status(self) -> int:
        """With which its commands end."""
        told = re.search(r"with status (\d+)", self.note)
        return int(told[1]) if told else 0


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(text: str) -> Iterator[Block]:
    lines = iter(enumerate(text.splitlines(), 1))
    before, follows = "", False
    for number, line in lines:
        fence = _FENCE.fullmatch(line)
        if fence is None:
            if line.strip():
                before, follows = line.strip(), False
            continue
        indent, closing = len(fence["indent"]), fence["marks"]
        inside = []
        for _, inner in lines:
            if inner.strip() == closing:
                break
            inside.append(inner[indent:])
        title, note = _TITLE.search(fence["info"]), _NOTE.fullmatch(before)
        language = fence["info"].split()[0] if fence["info"].strip() else ""
        yield Block(
            number,
            language,
            title[1] if title else "",
            "".join(f"{inner}\n" for inner in inside),
            note[1] if note else "",
            follows,
        )
        before, follows = "", True


def commands_of(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a shell block, each with what it is shown to print: of a console those behind `$`, of a script
    all lines."""
    text = block.text.replace("\\\n", " ")
    if block.language == "console":
        for command in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            line, _, shown = command.partition("\n")
            yield line, shown
    else:
        yield from ((line, "") for line in text.splitlines() if line.strip() and not line.startswith("#"))
