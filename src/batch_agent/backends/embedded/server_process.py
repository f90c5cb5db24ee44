"""Child process that runs llama.cpp: `python server_process.py <json config>`.

It prints one line of JSON when it listens, and runs until its stdin closes (so it ends with its parent, even after
kill -9) or SIGTERM arrives. It does not import batch_agent: starting it must stay cheap.
"""

import json
import os
import signal
import sys
import urllib.request
from dataclasses import asdict, dataclass
from typing import Any

PROMPT_CACHE_MIB = 256  # prompts of agents that lost their slot; llama.cpp's own default is 8 GiB


@dataclass(frozen=True, slots=True)
class ChildConfig:
    """Options of the server.

    `context_tokens` is per slot. `jinja` runs the model's own chat template, which native tool calls need; without
    it llama.cpp's built-in template is used, which lets a model asked for JSON write nothing around it (with jinja
    it may open a Markdown fence first). `verbose` keeps llama.cpp's log coming.
    """

    model: str
    name: str
    slots: int
    context_tokens: int
    threads: int
    jinja: bool
    verbose: bool

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def main() -> None:
    # Ctrl-C reaches the whole terminal group; the parent still needs the model to finish cleanly.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    config = ChildConfig(**json.loads(sys.argv[1]))
    report_descriptor = os.dup(1)
    os.dup2(2, 1)  # only the report goes to stdout; llama.cpp's output goes to stderr
    try:
        server = _serve(config)
    except (ImportError, RuntimeError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    with os.fdopen(report_descriptor, "w") as report:
        print(json.dumps(_listening(server)), file=report)
    if not config.verbose:
        _silence()
    while os.read(0, 4096):
        pass
    os._exit(0)  # llama.cpp's own teardown waits for requests in flight


def _serve(config: ChildConfig) -> Any:
    from xllamacpp import CommonParams, Server

    params = CommonParams()
    params.model.path = config.model
    params.model_alias = {config.name}
    params.n_parallel = config.slots
    params.n_ctx = config.slots * config.context_tokens
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = config.threads
    params.n_threads_http = config.slots + 32  # a queued request holds a thread, and so does an idle connection
    params.cont_batching = params.cache_prompt = True
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.use_jinja = config.jinja
    params.warmup = params.ui = False
    params.verbosity = 3 if config.verbose else 1
    return Server(params)


def _listening(server: Any) -> dict[str, object]:
    url = server.listening_address
    with urllib.request.urlopen(f"{url}/slots", timeout=10) as reply:  # noqa: S310
        slots = json.load(reply)
    return {"url": url, "slots": len(slots), "context_tokens": min(slot["n_ctx"] for slot in slots)}


def _silence() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


if __name__ == "__main__":
    main()
