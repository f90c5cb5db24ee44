"""A home for OpenCode that is not the user's: nothing of the user's configuration, plugins, keys or sessions gets into
a run, nothing of a run gets there. Commands that agents run have the user's environment all the same."""

import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

import orjson

from ....core.fast_dataclass import dataclass
from ..environment import user_environment
from .config import SPARE

MARK = "BATCH_AGENT_FOLDER"
"""Whatever an agent's command starts has it in its environment: the folder where the command was started."""
_QUIET = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_SHARE": "1",
    "OPENCODE_DISABLE_EMBEDDED_WEB_UI": "1",
    "OPENCODE_EXPERIMENTAL_DISABLE_FILEWATCHER": "1",
    "OPENCODE_CLIENT": "batch-agent",
    "OPENCODE_PURE": "1",
}
_THEIRS = ("OPENCODE", "OPENCODE_PID", "OPENCODE_CONFIG_CONTENT", "OPENCODE_SERVER_PASSWORD", "AGENT")
"""What OpenCode has, or sets, that its commands do not need: with the password, they could speak for other agents."""


@dataclass(frozen=True, slots=True)
class OpenCodeHome:
    """One folder; several OpenCodes must not run in it at once."""

    folder: Path
    outside: Mapping[str, str]
    """The environment that commands have."""

    @property
    def shell(self) -> Path:
        """OpenCode's `shell`. Its name is told to the model."""
        return self.folder / ("bash" if shutil.which("bash") else "sh")

    def environment(self, config: str) -> dict[str, str]:
        """For OpenCode itself. Downloads are the user's: they are large, and the same for everybody."""
        cache = self.outside.get("XDG_CACHE_HOME") or str(Path(self.outside.get("HOME", "~")).expanduser() / ".cache")
        return {**self.outside, **self._own(), "XDG_CACHE_HOME": cache, "OPENCODE_CONFIG_CONTENT": config}

    def furnish(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for place in (self.folder / "home", self.at, self.probe):
            place.mkdir(parents=True, exist_ok=True)
        self.shell.write_text(self._script())
        self.shell.chmod(0o700)
        self._models.write_text("{}")
        self._pretend_plugins()

    @property
    def at(self) -> Path:
        """Where an OpenCode that works for several agents is started."""
        return self.folder / "at"

    @property
    def probe(self) -> Path:
        """An agent's folder without an agent."""
        return self.folder / "probe" / "project"

    @property
    def _models(self) -> Path:
        """In place of all models that there are, which take 70 MB and two seconds of CPU for each agent."""
        return self.folder / "models.json"

    def _pretend_plugins(self) -> None:
        """OpenCode would install a package for plugins, 90 MB that nobody uses, wherever its configuration is."""
        place = self.folder / "home" / "config" / "opencode"
        (place / "node_modules").mkdir(parents=True, exist_ok=True)
        wanted = {"dependencies": {"@opencode-ai/plugin": "*"}}
        (place / "package.json").write_bytes(orjson.dumps(wanted))
        (place / "package-lock.json").write_bytes(orjson.dumps({"packages": {"": wanted}}))

    def _own(self) -> dict[str, str]:
        home = self.folder / "home"
        return {
            **_QUIET,
            "HOME": str(home),
            "OPENCODE_MODELS_PATH": str(self._models),
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_DATA_HOME": str(home / "data"),
            "XDG_STATE_HOME": str(home / "state"),
            # Not a whole path: OpenCode tells it to the model, and each agent is to have a place of its own.
            "TMPDIR": str(SPARE),
        }

    def _script(self) -> str:
        changed = {*self._own(), "XDG_CACHE_HOME", *_THEIRS}
        back = [f"export {name}={shlex.quote(self.outside[name])}" for name in sorted(changed & self.outside.keys())]
        gone = sorted(changed - self.outside.keys())
        real = shutil.which(self.shell.name) or "/bin/sh"
        return "\n".join(
            [f"#!{real}", f"unset {' '.join(gone)}", *back, f'export {MARK}="$PWD"', f'exec {real} "$@"', ""]
        )


def make_home(folder: Path, extra: Mapping[str, str]) -> OpenCodeHome:
    """`extra` is added to what the user has in the environment."""
    home = OpenCodeHome(folder, {**user_environment(os.environ), **extra})
    home.furnish()
    return home
