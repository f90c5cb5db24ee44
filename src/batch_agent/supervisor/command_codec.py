"""Encoding of a command for a supervisor: checked, with absolute paths, as bytes."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from .command import CannotStart, ProgramCommand
from .supervisor_process import encode


def encode_command(command: ProgramCommand, grace: float) -> bytes:
    """Raises CannotStart for a command that is known to fail."""
    if not command.argv:
        raise CannotStart("There is no program to start: the command is empty.")
    try:
        cwd = _folder(command.cwd)
        program = _program(command.argv[0], command.env, cwd)
        argv = [_encoded(argument) for argument in command.argv]
        env = [_variable(name, value) for name, value in command.env.items()]
        return encode(grace, _encoded(cwd), _encoded(program), argv, env)
    except ValueError as error:
        raise CannotStart(f"{command.argv[0]!r} cannot be started: {error}.") from error


def _folder(cwd: str | Path | None) -> str:
    try:
        folder = os.path.abspath(os.getcwd() if cwd is None else cwd)
    except FileNotFoundError:
        raise ValueError("the working directory no longer exists") from None
    if not os.path.isdir(folder):
        raise ValueError(f"its working directory {folder!r} does not exist")
    return folder


def _program(name: str, env: Mapping[str, str], cwd: str) -> str:
    if os.sep not in name:
        folders = [os.path.join(cwd, folder) for folder in env.get("PATH", os.defpath).split(os.pathsep)]
        found = shutil.which(name, path=os.pathsep.join(folders))
        if found is None:
            raise ValueError("it is not in its PATH; install it, or give its path")
        return found
    path = os.path.join(cwd, name)
    if not os.path.isfile(path):
        raise ValueError("there is no such file")
    if not os.access(path, os.X_OK):
        raise ValueError("it is not executable; run chmod +x on it")
    return path


def _variable(name: str, value: str) -> bytes:
    if not name or "=" in name:
        raise ValueError(f"{name!r} is not a valid name of an environment variable")
    if "\0" in value:
        raise ValueError(f"there is a NUL in the value of {name!r}")  # which may be a secret
    return _encoded(f"{name}={value}")


def _encoded(text: str) -> bytes:
    """Raises ValueError for text that cannot be an argument; UnicodeEncodeError is one."""
    if "\0" in text:
        raise ValueError(f"there is a NUL in {text[:80]!r}")
    return os.fsencode(text)
