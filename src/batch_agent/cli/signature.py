"""Signatures of what `batch-agent run` keeps beside a checkpoint. A checkpoint may come from somebody else, and its
command names modules to import, files to read and write, and a server to send a key to: `batch-agent resume` gives it
again without asking only if this user's own `batch-agent run` has written it."""

import hashlib
import hmac
import os
import secrets
import sys
from contextlib import suppress
from pathlib import Path

_BYTES = 32


def sign(data: bytes) -> str | None:
    """With the secret of this user, which is made if there is none; None where it cannot be kept."""
    with suppress(OSError, RuntimeError):  # RuntimeError: there is no home
        return _signature(_made() if (secret := _read()) is None else secret, data)
    return None


def is_own(data: bytes, signature: object) -> bool:
    """Whether this user's `sign` has made the signature of these data."""
    with suppress(OSError, RuntimeError):
        secret = _read()
        if secret is not None and isinstance(signature, str) and signature.isascii():
            return hmac.compare_digest(_signature(secret, data), signature)
    return False


def secret_file() -> Path:
    """Where the secret is kept. It may not exist yet."""
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


def _made() -> bytes:
    """Raises OSError. Of two processes that make it at once, one does; the other one takes that."""
    file = secret_file()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(secrets.token_bytes(_BYTES))
        with suppress(FileExistsError):
            os.link(draft, file)  # whole or not at all, and never in the place of another one
    finally:
        draft.unlink(missing_ok=True)
    secret = _read()
    if secret is None:
        raise OSError(f"{str(file)!r} is no secret of batch-agent.")
    return secret
