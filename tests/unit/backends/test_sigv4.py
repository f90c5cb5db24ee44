"""Signatures and credentials for AWS."""

import logging
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from botocore.credentials import Credentials, RefreshableCredentials  # type: ignore[import-untyped]
from botocore.exceptions import CredentialRetrievalError  # type: ignore[import-untyped]
from tests.support.bedrock_server import KEY, SECRET, TOKEN, Heard, signature, use_keys
from yarl import URL

from batch_agent import BackendError, ErrorKind, SpecError
from batch_agent.backends.sigv4 import SigV4

PLACE = URL("https://bedrock-runtime.us-east-1.amazonaws.com/model/a%3A0/converse", encoded=True)


def expiring(soon: bool, renew: Callable[[], dict[str, str]]) -> RefreshableCredentials:
    ends = datetime.now(UTC) + timedelta(minutes=1 if soon else 120)
    return RefreshableCredentials("OLD", "old", "old", ends, renew, "test")


def renewed() -> dict[str, str]:
    ends = (datetime.now(UTC) + timedelta(hours=6)).isoformat()
    return {"access_key": KEY, "secret_key": SECRET, "token": TOKEN, "expiry_time": ends}


async def test_a_signature_equals_that_of_botocore() -> None:
    signer = SigV4(Credentials(KEY, SECRET, TOKEN), "bedrock", "us-east-1")
    signed = await signer.sign("POST", PLACE, b"{}")
    assert signed["X-Amz-Security-Token"] == TOKEN
    told = {name.lower(): value for name, value in signed.items()}
    told["host"] = "bedrock-runtime.us-east-1.amazonaws.com"
    heard = Heard("POST", "/model/a%3A0/converse", told, b"{}")
    assert signed["Authorization"].endswith(signature(heard, "bedrock", "us-east-1"))
    assert "SignedHeaders=content-type;host;x-amz-date;x-amz-security-token" in signed["Authorization"]


async def test_another_body_has_another_signature() -> None:
    signer = SigV4(Credentials(KEY, SECRET), "bedrock", "us-east-1")
    one, other = await signer.sign("POST", PLACE, b"{}"), await signer.sign("POST", PLACE, b"[]")
    assert one["Authorization"] != other["Authorization"]


async def test_credentials_that_expire_soon_are_renewed_in_a_thread() -> None:
    threads: list[threading.Thread] = []

    def renew() -> dict[str, str]:
        threads.append(threading.current_thread())
        return renewed()

    signer = SigV4(expiring(True, renew), "bedrock", "us-east-1")
    for _ in range(2):
        assert f"Credential={KEY}/" in (await signer.sign("POST", PLACE, b""))["Authorization"]
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


async def test_credentials_that_last_are_used_as_they_are() -> None:
    def renew() -> dict[str, str]:
        raise AssertionError("nobody asked for this")

    signer = SigV4(expiring(False, renew), "bedrock", "us-east-1")
    assert "Credential=OLD/" in (await signer.sign("POST", PLACE, b""))["Authorization"]


async def test_credentials_that_cannot_be_renewed_are_an_authentication_error() -> None:
    def renew() -> dict[str, str]:
        raise CredentialRetrievalError(provider="test", error_msg="the session has ended")

    with pytest.raises(BackendError, match="the session has ended") as raised:
        await SigV4(expiring(True, renew), "bedrock", "us-east-1").sign("POST", PLACE, b"")
    assert raised.value.kind is ErrorKind.AUTH
    assert SECRET not in str(raised.value)


async def test_credentials_come_from_a_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_keys(monkeypatch)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    file.write_text("[work]\naws_access_key_id = FROMFILE\naws_secret_access_key = hush\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_PROFILE", "work")
    signer = await SigV4.find("bedrock", "us-east-1")
    assert "Credential=FROMFILE/" in (await signer.sign("POST", PLACE, b""))["Authorization"]


async def test_a_missing_profile_is_a_spec_error(monkeypatch: pytest.MonkeyPatch) -> None:
    use_keys(monkeypatch)
    monkeypatch.setenv("AWS_PROFILE", "gone")
    with pytest.raises(SpecError, match=r"gone.*AWS_PROFILE"):
        await SigV4.find("bedrock", "us-east-1")


async def test_without_credentials_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    use_keys(monkeypatch)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    with pytest.raises(SpecError, match=r"AWS_ACCESS_KEY_ID.*AWS_BEARER_TOKEN_BEDROCK"):
        await SigV4.find("bedrock", "us-east-1")


async def test_an_access_key_without_its_secret_is_a_spec_error(monkeypatch: pytest.MonkeyPatch) -> None:
    use_keys(monkeypatch)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(SpecError, match="AWS_SECRET_ACCESS_KEY"):
        await SigV4.find("bedrock", "us-east-1")


async def test_without_botocore_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(SpecError, match=r"pip install 'batch-agent\[bedrock\]'"):
        await SigV4.find("bedrock", "us-east-1")


async def test_a_debug_log_contains_no_keys(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        signed = await SigV4(Credentials(KEY, SECRET, TOKEN), "bedrock", "us-east-1").sign("POST", PLACE, b"")
    assert TOKEN not in caplog.text
    assert SECRET not in caplog.text
    assert signed["Authorization"] not in caplog.text
