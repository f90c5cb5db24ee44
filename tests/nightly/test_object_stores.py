"""Object stores of Azure and Google on their emulators (Azurite, gcp-storage-emulator): inputs, out, checkpoints."""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from scripts.engines.environments import site_packages
from scripts.engines.layout import OBJECT_STORES
from tests.live.engines import azure_emulator, gcs_emulator
from tests.support.faulty_http_proxy import FaultyHttpProxy, ProxyFault

from batch_agent import BatchAgent, SpecError
from batch_agent.data import read_inputs
from batch_agent.objects import remote_checkpoint, remote_results
from batch_agent.testing import ScriptedBackend, say

ROWS = 100
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Public: every Azurite has it."""


@pytest.fixture(scope="module")
def clients() -> Iterator[None]:
    """adlfs and gcsfs, which are in an environment of their own."""
    folder = str(site_packages(OBJECT_STORES.folder))
    sys.path.append(folder)
    yield
    sys.path.remove(folder)


@pytest.fixture(scope="module", params=["az", "gs"])
def emulator(
    request: pytest.FixtureRequest, clients: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, FaultyHttpProxy]]:
    start = azure_emulator if request.param == "az" else gcs_emulator
    with start(tmp_path_factory.mktemp("store")) as port, FaultyHttpProxy(port).open() as proxy:
        yield request.param, proxy


@pytest.fixture
def bucket(
    emulator: tuple[str, FaultyHttpProxy], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[tuple[str, FaultyHttpProxy]]:
    """URL of a new bucket or container, and the way to its server."""
    scheme, proxy = emulator
    account = f"AccountName=devstoreaccount1;AccountKey={AZURE_KEY};BlobEndpoint={proxy.url}/devstoreaccount1;"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"DefaultEndpointsProtocol=http;{account}")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # asks by gRPC, which the emulator does not have
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
    name = f"bucket{os.urandom(4).hex()}"
    fsspec.filesystem(scheme).mkdir(name)
    yield f"{scheme}://{name}", proxy
    proxy.rule = lambda number: None


def files_of(url: str) -> Any:
    filesystem = fsspec.filesystem(url.partition("://")[0])
    filesystem.invalidate_cache()
    return filesystem


@pytest.mark.parametrize("fault", [None, "busy", "lost"])
async def test_a_run_reads_and_writes_a_bucket_and_faults_lose_and_double_nothing(
    bucket: tuple[str, FaultyHttpProxy], fault: ProxyFault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_results, "_PART_BYTES", 2000)
    monkeypatch.setattr(remote_checkpoint, "_INTERVAL", 0.05)
    url, proxy = bucket
    lines = b"".join(b'{"id": %d}\n' % number for number in range(ROWS))
    files_of(url).pipe_file(f"{url}/in/rows.jsonl", lines)
    backend, before = ScriptedBackend(lambda request: say("ok")), proxy.faults
    # Few: after each, Azure's client waits for 15 s or more.
    proxy.rule = lambda number: fault if number % 40 == 0 else None
    options: dict[str, Any] = {"task": "{id}", "backend": backend, "progress": False}
    options |= {"out": f"{url}/out/", "checkpoint_dir": f"{url}/checkpoint/"}
    await BatchAgent.run(inputs=f"{url}/in/*.jsonl", limit=ROWS // 2, **options)
    await BatchAgent.run(inputs=f"{url}/in/*.jsonl", **options)
    proxy.rule = lambda number: None
    assert len(backend.requests) == ROWS
    rows: list[dict[str, Any]] = list(read_inputs(f"{url}/out/*.jsonl"))  # type: ignore[arg-type]
    assert Counter(row["input"]["id"] for row in rows) == Counter(range(ROWS))
    manifest = json.loads(files_of(url).cat_file(f"{url}/out/_manifest.json"))
    assert (manifest["complete"], manifest["rows"]) == (True, ROWS)
    parts = {Path(name).name for name in files_of(url).glob(f"{url}/out/part-*")}
    assert {part["name"] for part in manifest["parts"]} == parts
    assert files_of(url).exists(f"{url}/checkpoint/report.html")
    assert (proxy.faults > before) == (fault is not None)


@pytest.mark.parametrize("option", ["out", "checkpoint_dir"])
async def test_a_missing_bucket_is_named_before_anything_is_sent(
    bucket: tuple[str, FaultyHttpProxy], option: str
) -> None:
    missing, backend = (
        f"{bucket[0].partition('://')[0]}://no-such-bucket/x/",
        ScriptedBackend(lambda request: say("ok")),
    )
    options: dict[str, Any] = {"inputs": [{"id": 1}], "task": "{id}", "backend": backend, option: missing}
    with pytest.raises(SpecError, match=r"Create the (bucket|container) 'no-such-bucket' first"):
        await BatchAgent.run(**options)
    assert backend.requests == []
