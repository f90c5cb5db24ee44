"""What the work of a coding agent changed."""

from typing import Literal

from .quick import dataclass

ChangeKind = Literal["added", "modified", "deleted"]


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file that is other than it was. Lines are not counted in a binary one, nor in one that is too large."""

    path: str
    """From the working folder on. Bytes that are no UTF-8 are shown as `\\xff`; the patch has them as they are."""
    kind: ChangeKind
    added: int = 0
    removed: int = 0


@dataclass(frozen=True, slots=True)
class Changes:
    """What an agent changed in its copy of the working folder."""

    files: tuple[FileChange, ...] = ()
    """Sorted by path."""
    patch: str = ""
    """As `git apply` takes it."""
    is_cut: bool = False
    """Something is missing in the patch, such as a file that is too large. What it has can be applied."""

    def __str__(self) -> str:
        if not self.files:
            return "no files changed"
        added, removed = sum(each.added for each in self.files), sum(each.removed for each in self.files)
        return f"{len(self.files)} file{'' if len(self.files) == 1 else 's'} changed, +{added} -{removed}"
