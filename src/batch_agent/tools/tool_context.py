"""Context of a tool call: the agent that makes it, and a folder for the files that the tool makes."""

import re
import threading
from dataclasses import field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ..core.fast_dataclass import dataclass

ARTIFACTS = "artifacts"
"""Name of the folder below a checkpoint."""
_FILE_NAME = re.compile(r"[\w@%-]{1,120}")


class ArtifactFolders:
    """Folders of a run's agents, made when a tool asks for one: below the checkpoint, where they are found again when
    the run resumes; without a checkpoint, in a temporary folder that is not deleted."""

    def __init__(self, checkpoint_dir: Path | None = None) -> None:
        self._root = None if checkpoint_dir is None else checkpoint_dir.absolute() / ARTIFACTS
        self._lock = threading.Lock()

    def folder(self, agent: str) -> Path:
        """The folder of an agent, which exists on return. Raises OSError."""
        with self._lock:  # sync tools run in threads
            if self._root is None:
                import tempfile  # only for runs without a checkpoint whose tools make files

                self._root = Path(tempfile.mkdtemp(prefix="batch-agent-artifacts-"))
        folder = self._root / _folder_name(agent)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def files(self, agent: str) -> tuple[Path, ...]:
        """The files in the folder of an agent, sorted; empty if it has none."""
        if self._root is None:
            return ()
        folder = self._root / _folder_name(agent)
        return tuple(sorted(path for path in folder.rglob("*") if path.is_file())) if folder.is_dir() else ()


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The agent that calls a tool. A parameter of a tool with this annotation is filled in by the engine, and hidden
    from the model. Results of such a tool are of one agent: they are never shared or cached."""

    input: Any = None
    """Input of the agent. In another process than that of the inputs, JSON data."""
    key: str = ""
    """Key of the agent, as in its result."""
    index: int = 0
    """Index of the input."""
    turn: int = 1
    """Turn of the model that made the call, counted from 1."""
    run_id: str = ""
    """Identity of the run: the same when it resumes from its checkpoint, and different in every other run."""
    agent: str = ""
    """Key of the agent in the checkpoint."""
    folders: ArtifactFolders = field(default_factory=ArtifactFolders)

    @property
    def artifacts(self) -> Path:
        """Folder of this agent, for files that the tool makes. It is made on first use, and kept; `result.artifacts`
        has its files. Raises OSError."""
        return self.folders.folder(self.agent or self.key)


def _folder_name(agent: str) -> str:
    """Name of an agent's folder. Parts of a long input have keys such as KEY.part1 and use the folder of their
    agent."""
    key = agent.partition(".")[0]
    return key if _FILE_NAME.fullmatch(key) else blake2b(key.encode(errors="surrogatepass"), digest_size=16).hexdigest()
