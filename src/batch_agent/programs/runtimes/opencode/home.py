"""Home directory for OpenCode, separate from the user's: the user's configuration, plugins, keys and sessions do not
affect a run, nor does a run affect them. Commands run by agents still have the user's environment."""

import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

import orjson

from ....core.fast_dataclass import dataclass
from ..environment import user_environment
from .opencode_config import TEMP_DIR

MARK = "BATCH_AGENT_FOLDER"
"""Variable set for every process that an agent's command starts, to the directory where the command was started."""
_SETTINGS = {
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
_OPENCODE_VARIABLES = ("OPENCODE", "OPENCODE_PID", "OPENCODE_CONFIG_CONTENT", "OPENCODE_SERVER_PASSWORD", "AGENT")
"""Variables of OpenCode that commands do not need. With the password, a command could control other agents'
sessions."""


@dataclass(frozen=True, slots=True)
class OpenCodeHome:
    """Home directory for one OpenCode process at a time."""

    folder: Path
    base_environment: Mapping[str, str]
    """The environment of agents' commands."""

    @property
    def shell(self) -> Path:
        """OpenCode's `shell` setting. The model sees its name."""
        return self.folder / ("bash" if shutil.which("bash") else "sh")

    def environment(self, config: str) -> dict[str, str]:
        """The environment for OpenCode itself. It uses the user's download cache: downloads are large and the same for
        every run."""
        cache = self.base_environment.get("XDG_CACHE_HOME") or str(
            Path(self.base_environment.get("HOME", "~")).expanduser() / ".cache"
        )
        return {
            **self.base_environment,
            **self._own_variables(),
            "XDG_CACHE_HOME": cache,
            "OPENCODE_CONFIG_CONTENT": config,
        }

    def create(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.folder / "home", self.cwd, self.probe):
            folder.mkdir(parents=True, exist_ok=True)
        self.shell.write_text(self._shell_script())
        self.shell.chmod(0o700)
        self._models.write_text("{}")
        self._write_fake_plugins()

    @property
    def cwd(self) -> Path:
        """Directory in which a server for several agents is started."""
        return self.folder / "at"

    @property
    def probe(self) -> Path:
        """A stand-in for an agent's directory, to check the configuration."""
        return self.folder / "probe" / "project"

    @property
    def _models(self) -> Path:
        """An empty list of models. OpenCode's list of all known models costs 70 MB and two seconds of CPU per agent."""
        return self.folder / "models.json"

    def _write_fake_plugins(self) -> None:
        """Writes an empty plugin package, so that OpenCode does not install the real one: 90 MB that are not used."""
        folder = self.folder / "home" / "config" / "opencode"
        (folder / "node_modules").mkdir(parents=True, exist_ok=True)
        manifest = {"dependencies": {"@opencode-ai/plugin": "*"}}
        (folder / "package.json").write_bytes(orjson.dumps(manifest))
        (folder / "package-lock.json").write_bytes(orjson.dumps({"packages": {"": manifest}}))

    def _own_variables(self) -> dict[str, str]:
        home = self.folder / "home"
        return {
            **_SETTINGS,
            "HOME": str(home),
            "OPENCODE_MODELS_PATH": str(self._models),
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_DATA_HOME": str(home / "data"),
            "XDG_STATE_HOME": str(home / "state"),
            # Relative, because OpenCode shows it to the model and each agent has its own.
            "TMPDIR": str(TEMP_DIR),
        }

    def _shell_script(self) -> str:
        changed = {*self._own_variables(), "XDG_CACHE_HOME", *_OPENCODE_VARIABLES}
        back = [
            f"export {name}={shlex.quote(self.base_environment[name])}"
            for name in sorted(changed & self.base_environment.keys())
        ]
        unset = sorted(changed - self.base_environment.keys())
        shell = shutil.which(self.shell.name) or "/bin/sh"
        return "\n".join(
            [f"#!{shell}", f"unset {' '.join(unset)}", *back, f'export {MARK}="$PWD"', f'exec {shell} "$@"', ""]
        )


def make_home(folder: Path, extra: Mapping[str, str]) -> OpenCodeHome:
    """`extra`: variables added to the user's environment."""
    home = OpenCodeHome(folder, {**user_environment(os.environ), **extra})
    home.create()
    return home
