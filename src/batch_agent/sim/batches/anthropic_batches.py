"""Anthropic's Message Batches, in memory."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

from ...batch_api.resources import WINDOW_SECONDS
from ..request_errors import RequestError
from ..request_reader import Requests
from ..sim_config import BatchConfig
from .anthropic_messages import anthropic_error, read_message
from .armed_faults import ArmedFault, ArmedFaults, BatchFault
from .batch_work import BatchWork, MovableClock, Outcome, WorkLine
from .line_runner import Billing, LineRunner, prompt_tokens_of

_MAX_REQUESTS = 100_000
_MAX_PAGE = 1000


class _MessageJob(NamedTuple):
    work: BatchWork
    created: float
    queued_tokens: int


class AnthropicBatches:
    """Anthropic's Message Batches, in memory. Methods raise RequestError."""

    def __init__(
        self,
        config: BatchConfig,
        requests: Requests,
        runner: LineRunner,
        billing: Billing,
        clock: MovableClock,
        armed: ArmedFaults,
    ) -> None:
        self._config = config
        self._requests = requests
        self._runner = runner
        self._billing = billing
        self._clock = clock
        self._armed = armed
        self._jobs: dict[str, _MessageJob] = {}
        self._number = 0

    def create(self, body: Mapping[str, Any], host: str) -> tuple[dict[str, Any], ArmedFault | None]:
        """Creates a batch. Returns it with the fault of its response."""
        lines = _lines(body)
        fault = self._armed.take_for_batch()
        tokens = sum(prompt_tokens_of(self._read, line.body) for line in lines)
        self._refuse(fault, tokens)
        self._billing.submissions["anthropic"] += 1
        self._number += 1
        batch_id, now = f"msgbatch_{self._number:06d}", self._clock.now()
        work = BatchWork(lines, self._execute, now, self._config.seconds, fault)
        self._jobs[batch_id] = _MessageJob(work, now, tokens)
        return self._shown(batch_id, host), fault

    def retrieve(self, batch_id: str, host: str) -> dict[str, Any]:
        self._advanced(batch_id)
        return self._shown(batch_id, host)

    def cancel(self, batch_id: str, host: str) -> dict[str, Any]:
        self._advanced(batch_id).work.cancel(self._clock.now())
        return self._shown(batch_id, host)

    def delete(self, batch_id: str) -> dict[str, Any]:
        if not self._advanced(batch_id).work.has_ended:
            raise RequestError(f"Message batch {batch_id} cannot be deleted while it is in progress.")
        del self._jobs[batch_id]
        return {"id": batch_id, "type": "message_batch_deleted"}

    def results(self, batch_id: str) -> bytes:
        work = self._advanced(batch_id).work
        if not work.has_ended:
            raise RequestError(f"Message batch {batch_id} has not ended: it has no results yet.", 404)
        if work.is_lost:
            raise RequestError(f"The results of message batch {batch_id} do not exist.", 404)
        pairs = zip(work.lines, work.outcomes, strict=True)
        return b"".join(_result_line(line, outcome) for line, outcome in pairs if outcome.kind != "missing")

    def page(self, query: Mapping[str, str], host: str) -> dict[str, Any]:
        ids = list(reversed(self._jobs))
        limit = query.get("limit", "20")
        if not limit.isdigit() or not 1 <= int(limit) <= _MAX_PAGE:
            raise RequestError(f"limit: must be between 1 and {_MAX_PAGE}, got {limit!r}")
        for name in ("after_id", "before_id"):
            if (cursor := query.get(name)) and cursor not in self._jobs:
                raise RequestError(f"{name}: there is no message batch {cursor!r}")
        if after := query.get("after_id"):
            ids = ids[ids.index(after) + 1 :]
        if before := query.get("before_id"):
            ids = ids[: ids.index(before)][-int(limit) :]
        chosen = ids[: int(limit)]
        return {
            "data": [self.retrieve(batch_id, host) for batch_id in chosen],
            "first_id": chosen[0] if chosen else None,
            "last_id": chosen[-1] if chosen else None,
            "has_more": len(ids) > len(chosen),
        }

    def _read(self, body: dict[str, Any]) -> Any:
        return read_message(self._requests, body)

    def _execute(self, line: WorkLine) -> Outcome:
        return self._runner.run(self._read, anthropic_error, line)

    def _refuse(self, fault: ArmedFault | None, tokens: int) -> None:
        if fault and fault.kind is BatchFault.FAILED:
            raise RequestError("requests.0.params: simulated failure of validation")
        limit = self._config.enqueued_tokens
        queued = sum(self._advanced(batch_id).queued_tokens for batch_id in list(self._jobs))
        is_over = limit is not None and queued + tokens > limit
        if is_over or (fault and fault.kind is BatchFault.TOKEN_LIMIT):
            raise RequestError("The number of batch requests in the processing queue exceeds your limit.", 429)

    def _advanced(self, batch_id: str) -> _MessageJob:
        job = self._jobs.get(batch_id)
        if job is None:
            raise RequestError(f"Message batch {batch_id} does not exist.", 404)
        job.work.advance(self._clock.now())
        if job.work.has_ended:
            job = self._jobs[batch_id] = job._replace(queued_tokens=0)
        return job

    def _shown(self, batch_id: str, host: str) -> dict[str, Any]:
        job = self._jobs[batch_id]
        times = {start.phase: start.at for start in job.work.history}
        has_ended = job.work.has_ended
        cancelled_at = times.get("cancelling")
        # Like Anthropic's service, counts requests by outcome only after all have ended.
        kinds = [outcome.kind for outcome in job.work.outcomes] if has_ended else []
        return {
            "id": batch_id,
            "type": "message_batch",
            "processing_status": "ended" if has_ended else "canceling" if cancelled_at else "in_progress",
            "request_counts": {
                "processing": 0 if has_ended else len(job.work.lines),
                "succeeded": kinds.count("succeeded") + kinds.count("missing"),
                "errored": kinds.count("errored"),
                "canceled": kinds.count("cancelled"),
                "expired": kinds.count("expired"),
            },
            "created_at": _date(job.created),
            "expires_at": _date(job.created + WINDOW_SECONDS),
            "ended_at": _date(job.work.history[-1].at) if has_ended else None,
            "cancel_initiated_at": _date(cancelled_at) if cancelled_at else None,
            "archived_at": None,
            "results_url": f"http://{host}/v1/messages/batches/{batch_id}/results" if has_ended else None,
        }


def _lines(body: Mapping[str, Any]) -> list[WorkLine]:
    entries = body.get("requests")
    if not isinstance(entries, list) or not 1 <= len(entries) <= _MAX_REQUESTS:
        raise RequestError(f"requests: must be a list of 1 to {_MAX_REQUESTS:,} requests")
    lines = []
    for index, entry in enumerate(entries):
        match entry:
            case {"custom_id": str(custom_id), "params": dict(params)} if 1 <= len(custom_id) <= 64:
                lines.append(WorkLine(custom_id, params))
            case _:
                raise RequestError(f"requests.{index}: needs params, and a custom_id of 1 to 64 characters")
    if len({line.custom_id for line in lines}) < len(lines):
        raise RequestError("requests: custom_id must be unique within a batch")
    return lines


def _result_line(line: WorkLine, outcome: Outcome) -> bytes:
    match outcome.kind:
        case "succeeded":
            result: dict[str, Any] = {"type": "succeeded", "message": orjson.Fragment(outcome.body)}
        case "errored":
            error = outcome.body or anthropic_error(outcome.status, "simulated failure of a line")
            result = {"type": "errored", "error": orjson.Fragment(error)}
        case "cancelled":
            result = {"type": "canceled"}
        case _:
            result = {"type": "expired"}
    return orjson.dumps({"custom_id": line.custom_id, "result": result}) + b"\n"


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
