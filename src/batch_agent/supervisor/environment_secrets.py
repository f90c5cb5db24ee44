"""Detection of secrets among environment variables, by name and value."""

import re
from collections.abc import Mapping

_NAMES = re.compile(
    r"(AWS|AZURE)_.*"
    r"|(.*[^a-z])?(PASS|PAT|PWD|AUTH)"
    r"|.*(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|BEARER|COOKIE|JWT|WEBHOOK)S?([^a-z].*)?",
    re.IGNORECASE,
)
_HARMLESS = re.compile(r"PWD|OLDPWD|.*_PROXY", re.IGNORECASE)
"""The working directory and proxies, which programs need."""
_URL_WITH_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]*://[^/@\s]*:[^/@\s]+@", re.IGNORECASE)


def is_secret(name: str, value: str) -> bool:
    """Whether a variable is named like a secret, ignoring case, or is a URL with a password."""
    if _HARMLESS.fullmatch(name):
        return False
    return _NAMES.fullmatch(name) is not None or _URL_WITH_PASSWORD.match(value) is not None


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not is_secret(name, value)}
