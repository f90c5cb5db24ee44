"""HTTP/1.1 response parsers compared: our own and httptools (ADR 23).

    pip install httptools
    python -m benchmarks.response_parsers

Three parts. `responses`: one response, both parsers in turns in one process; no two heads are the same. `agents`: one
agent of a whole run, runs with one parser and the other in turns in one process; the server is another process.
`start`: the imports of a plain run, and httptools on top.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from batch_agent.backends.http import connection as line
from batch_agent.backends.http import h1_parser as http1
from benchmarks import httptools_parser, report
from benchmarks.check import CASES
from benchmarks.peers.adapters import batch_agent as adapter
from benchmarks.peers.call_count import Calls
from benchmarks.peers.runs import servers, work_of
from benchmarks.peers.work import Tally, Work
from benchmarks.rounds import median_of

PARSERS: dict[str, Any] = {"own": http1.ResponseParser, "httptools": httptools_parser.AnswerReader}
ROUNDS, REPEATS = 31, 400
AGENT_ROUNDS, FEW, MANY = 40, 50, 200
TOKENS, PACKET = 64, 16 * 1024
HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 16 Nov 2026 10:00:%02d GMT\r\nserver: uvicorn\r\ncontent-type: %b\r\n"
    b"x-request-id: %032x\r\n%b\r\n\r\n"
)
EVENT = b'data: {"id":"chatcmpl-%032x","object":"chat.completion.chunk","created":1794823200,"model":"m","choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}\n\n'  # noqa: E501


def one_shot(number: int) -> list[bytes]:
    """A complete answer of 1 KB in one packet."""
    body = b'{"choices": [{"message": {"content": "%b"}}]}' % (b"x" * 960)
    return [HEAD % (number % 60, b"application/json", number, b"content-length: %d" % len(body)) + body]


def streamed(number: int) -> list[bytes]:
    """A streamed answer, a packet for each token."""
    head = HEAD % (number % 60, b"text/event-stream", number, b"transfer-encoding: chunked")
    event = EVENT % number
    return [head, *[b"%x\r\n%b\r\n" % (len(event), event)] * TOKENS, b"0\r\n\r\n"]


def coalesced(number: int) -> list[bytes]:
    """The same, read in packets of 16 KiB, as a busy client does."""
    whole = b"".join(streamed(number))
    return [whole[at : at + PACKET] for at in range(0, len(whole), PACKET)]


RESPONSES: dict[str, Callable[[int], list[bytes]]] = {
    "one_shot": one_shot,
    "streamed": streamed,
    "coalesced": coalesced,
}


def parse(parser: Any, responses: Sequence[Sequence[bytes]]) -> None:
    for packets in responses:
        reader = parser()
        for packet in packets:
            reader.feed(packet)
        assert reader.is_complete
        assert reader.keep_alive


def per_response(make: Callable[[int], list[bytes]]) -> dict[str, dict[str, float]]:
    """Medians of rounds in turns. No two responses have the same head, as with real servers."""
    taken: dict[str, list[float]] = {name: [] for name in PARSERS}
    for turn in range(ROUNDS):
        responses = [make(turn * REPEATS + number) for number in range(REPEATS)]
        for name, parser in PARSERS.items():
            cpu = time.process_time()
            parse(parser, responses)
            taken[name].append((time.process_time() - cpu) / REPEATS * 1e6)
    return {
        name: {
            "us": round(statistics.median(taken[name]), 2),
            "calls": _calls(PARSERS[name], make),
        }
        for name in PARSERS
    }


def _calls(parser: Any, make: Callable[[int], list[bytes]]) -> float:
    responses = [make(10**6 + number) for number in range(REPEATS)]
    with Calls() as counted:
        parse(parser, responses)
    return round(counted.number / REPEATS, 1)


def agents(name: str) -> dict[str, dict[str, float]]:
    """Of one case of benchmarks/check.py. Calls are of one agent more; the rest of a run is in the CPU of both."""
    taken: dict[str, list[float]] = {parser: [] for parser in PARSERS}
    with servers(CASES[name]) as sims:
        few, many = (work_of(replace(CASES[name], agents=count), sims, "") for count in (FEW, MANY))
        calls = {parser: (_calls_of(parser, many) - _calls_of(parser, few)) / (MANY - FEW) for parser in PARSERS}
        for turn in range(AGENT_ROUNDS):
            for parser in list(PARSERS)[:: 1 if turn % 2 else -1]:
                taken[parser].append(run(parser, many) / MANY * 1e6)
    return {
        parser: {"us": round(statistics.median(taken[parser]), 1), "calls": round(calls[parser], 1)}
        for parser in PARSERS
    }


def _calls_of(parser: str, work: Work) -> int:
    run(parser, work)
    with Calls() as counted:
        run(parser, work)
    return counted.number


def run(parser: str, work: Work) -> float:
    """Seconds of CPU of one run with this parser under its connections."""
    vars(line)["ResponseParser"] = PARSERS[parser]
    cpu = time.process_time()
    asyncio.run(adapter.run(work, Tally(work)))
    return time.process_time() - cpu


def start() -> dict[str, float]:
    """Milliseconds of CPU, in fresh interpreters."""
    script = (
        "import time; from batch_agent import BatchAgent; import batch_agent.backends.http.connection_pool;"
        "own = time.process_time();"
        "import httptools; print(own * 1e3, (time.process_time() - own) * 1e3)"
    )
    rounds = []
    for _ in range(15):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        own, added = map(float, done.stdout.split())
        rounds.append({"own_ms": own, "httptools_adds_ms": added})
    return median_of(rounds)


def ratios(found: dict[str, dict[str, float]]) -> dict[str, float]:
    return {name: round(found["httptools"][name] / found["own"][name], 3) for name in found["own"]}


def main() -> None:
    numbers: dict[str, Any] = {"httptools": version("httptools"), "tokens": TOKENS, "start": start()}
    for part, found in (
        ("responses", {name: per_response(make) for name, make in RESPONSES.items()}),
        ("agents", {name: agents(name) for name in ("single", "tools", "streamed")}),
    ):
        numbers[part] = {name: {**each, "httptools_to_own": ratios(each)} for name, each in found.items()}
        print(part, json.dumps(numbers[part], indent=2), flush=True)
    print(report.write("response_parsers", numbers))


if __name__ == "__main__":
    main()
