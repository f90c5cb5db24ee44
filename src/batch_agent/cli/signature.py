"""Signatures of this user, with a secret that is created on first use and is not in any checkpoint."""

import hashlib
import hmac
import os
import secrets
import sys
from contextlib import suppress
from pathlib import Path

_BYTES = 32


def sign(data: bytes) -> str | None:
    """Signs data with the secret of this user, which is created if needed; None if it cannot be stored."""
    with suppress(OSError, RuntimeError):  # RuntimeError: no home directory
        return _signature(_create() if (secret := _read()) is None else secret, data)
    return None


def is_own(data: bytes, signature: object) -> bool:
    """Whether this user's `sign` made the signature of this data."""
    with suppress(OSError, RuntimeError):
        secret = _read()
        if secret is not None and isinstance(signature, str) and signature.isascii():
            return hmac.compare_digest(_signature(secret, data), signature)
    return False


def secret_file() -> Path:
    """Path of the secret. It may not exist yet."""
    if sys.platform == "darwin":
        folder = Path.home() / "Library" / "Application Support"
    elif sys.platform == "win32":
        folder = Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    else:
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return folder / "batch-agent" / "checkpoint.key"


def _signature(secret: bytes, data: bytes) -> str:
    return hmac.new(secret, data, hashlib.sha256).hexdigest()


def _read() -> bytes | None:
    try:
        secret = secret_file().read_bytes()
    except FileNotFoundError:
        return None
    return secret if len(secret) == _BYTES else None


def _create() -> bytes:
    """Creates the secret. If two processes do so at once, both use the first one. Raises OSError."""
    file = secret_file()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(secrets.token_bytes(_BYTES))
        with suppress(FileExistsError):
            os.link(draft, file)  # atomic, and never replaces an existing secret
    finally:
        draft.unlink(missing_ok=True)
    secret = _read()
    if secret is None:
        raise OSError(f"{str(file)!r} is not a secret of batch-agent.")
    return secret
