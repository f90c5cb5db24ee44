"""Reduce step: an agent for all items or for each group, and further agents for parts if the results do not fit one
prompt."""

import heapq
import math
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..core.errors import ErrorKind, SpecError
from ..core.fast_dataclass import dataclass
from ..core.json import dumps_any, replace_surrogates
from ..core.results import AgentError, AgentResult
from ..engine.long_inputs.context_window import ContextWindow
from ..plan.field_paths import find
from ..plan.jsonable import to_jsonable
from ..plan.merge_tree import Merge, MergeTree, TreeEntry
from .callbacks import Callbacks, item_position
from .item_order import ItemOrder, Position
from .nodes import FlowNode, ItemDropped, ItemExpanded, ItemExpected, NodeMessage, StageClosed
from .result import Item
from .stage_compiler import CompiledStage
from .stage_runner import StageRunner, forward_failure
from .steps import Reduce


def to_json_text(value: Any) -> str:
    """A value as JSON. Raises ValueError for a recursive value, and any exception of an object's own conversion."""
    try:
        plain = to_jsonable(value)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return replace_surrogates(dumps_any(plain, to_jsonable))


_SHORT = 200
"""Maximum characters of a field that identifies an item, as opposed to being its content."""
_MAX_ERROR_CHARS = 1_000
_PARTIAL = (
    "[These are {count} of the results. Answer for these alone: the answers to all parts are merged afterwards.]\n\n"
)
_MERGED = "[Some entries stand for several results that were merged before; their field results says how many.]\n\n"


def entry_of(item: Item, answers: Sequence[str], hidden: Sequence[str] = ()) -> dict[str, Any]:
    """The default entry of an item: its identifying fields and its answers. `answers`: names of the answer fields; if
    empty, all fields are shown. `hidden`: fields to leave out."""
    entry: dict[str, Any] = {"status": "ok" if item.ok else "error", "index": _number(item)}
    others = _other_fields(item, answers, hidden)
    which = {name: item.fields[name] for name in others if not answers or _is_short(item.fields[name])}
    if which:
        entry["input"] = which
    outputs = {name: item.fields[name] for name in answers if name in item.fields}
    if outputs:
        entry["output"] = next(iter(outputs.values())) if len(answers) == 1 else outputs
    return entry if item.error is None else {**entry, "error": _error_fields(item.error)}


def error_entries(item: Item, error: AgentError, answers: Sequence[str], hidden: Sequence[str] = ()) -> list[str]:
    """Error entries for an item that cannot be shown, each shorter than the previous one."""
    entry = {"status": "error", "index": _number(item), "error": _error_fields(item.error or error)}
    texts = [to_json_text(entry)]
    with suppress(Exception):  # a user's object may raise anything
        which = {
            name: item.fields[name] for name in _other_fields(item, answers, hidden) if _is_short(item.fields[name])
        }
        texts.insert(0, to_json_text({**entry, "input": which}))
    return texts


def too_long(tokens: int) -> AgentError:
    """The error of a result that is too long for any prompt."""
    return AgentError(ErrorKind.CONTEXT_OVERFLOW, f"It is about {tokens:,} tokens long: too long to be shown here.")


def results_text(merge: Merge) -> str:
    """The entries of a merge as shown in the prompt."""
    notes = "" if merge.is_last else _PARTIAL.format(count=merge.leaves)
    if any(entry.is_merged for entry in merge.entries):
        notes += _MERGED
    return f"{notes}[\n" + ",\n".join([entry.value for entry in merge.entries]) + "\n]"


def merged_text(output: Any, leaves: int) -> str:
    return to_json_text({"status": "merged", "results": leaves, "output": output})


def _other_fields(item: Item, answers: Sequence[str], hidden: Sequence[str]) -> list[str]:
    return [name for name in item.fields if name not in answers and name not in hidden]


def _number(item: Item) -> int | str:
    return item.position[0] if len(item.position) == 1 else item_position(item)


def _error_fields(error: AgentError) -> Mapping[str, str]:
    message = error.message if len(error.message) <= _MAX_ERROR_CHARS else f"{error.message[:_MAX_ERROR_CHARS]} ..."
    return {"kind": error.kind.value, "message": message}


def _is_short(value: Any) -> bool:
    if value is None:
        return False
    return len(value if isinstance(value, str) else to_json_text(value)) <= _SHORT


_UNKNOWN_ROOM = 12_000
"""Tokens for results if the context window is unknown. Fits any current model."""
_MIN_ROOM = 128
_NOTES = 96
"""Tokens of the notes that accompany the results."""
_BYTES_PER_TOKEN = 2.5


@dataclass(slots=True)
class _Group:
    """Items that are reduced to one item."""

    number: int
    key: Hashable
    tree: MergeTree
    members: int = 0
    is_done: bool = False
    """Whether its answer or failure has been forwarded."""


@dataclass(frozen=True, slots=True)
class _Arrived:
    """An item's entry in the prompt, and its group."""

    entry: TreeEntry
    group: Hashable


class ReduceNode:
    """Reduces items in order: groups and merges do not depend on which items finish first."""

    def __init__(
        self, compiled: CompiledStage, step: Reduce, agents: StageRunner, then: FlowNode, callbacks: Callbacks
    ) -> None:
        self.agents = agents
        self._callbacks = callbacks
        self._compiled = compiled
        self._step = step
        self._then = then
        self._window: ContextWindow | None = None
        self._room = _UNKNOWN_ROOM
        self._given: dict[str, str] | None = None
        self._order = ItemOrder(compiled.expansions)
        self._unordered: list[tuple[Position, _Arrived | None]] = []
        self._in_turn: dict[int, _Arrived | None] = {}
        self._next = 0
        self._inputs: int | None = None
        self._groups: dict[Hashable, _Group] = {}
        self._merges: dict[int, tuple[_Group, Merge]] = {}
        self._is_counted = False
        self._is_closed = False

    async def open(self) -> None:
        """Raises SpecError if the task leaves no room for results."""
        assert self.agents.resources is not None
        self._window = self.agents.resources.window
        if self._window is None:
            return
        self._room = self._window.room - math.ceil(await self._window.size(self._step.task)) - _NOTES
        if self._room < _MIN_ROOM:
            raise SpecError(
                f"Stage {self._step.name!r}: its task and answer leave no room for results in the context window of "
                f"{self._window.tokens:,} tokens. Shorten the task, or lower max_tokens."
            )

    async def receive(self, message: NodeMessage) -> None:
        match message:
            case Item():
                self._add(message.position, await self._arrived(message))
            case ItemDropped(position):
                self._add(position, None)
            case ItemExpanded(position, count):
                self._order.expanded(position, count)
                self._advance()
            case ItemExpected(inputs):
                self._inputs = inputs
                self._advance()
            case StageClosed():
                self._is_closed = True
                self._close_groups()
                self._close_if_done()

    async def run(self) -> None:
        await self.agents.run(self._deliver)
        for group in self._groups.values():
            if not group.is_done:  # the group got no item
                await self._then.receive(ItemDropped((group.number,)))
        await self._then.receive(ItemExpected(len(self._groups)))
        await self._then.receive(StageClosed())

    async def _arrived(self, item: Item) -> _Arrived:
        """The entry of an item. Never raises: an item that cannot be shown or grouped becomes an error entry."""
        group: Hashable = None
        text, problem = "", None
        self._reserve()
        try:
            group = self._key(item)
            item = self._numbered(item)
            text = to_json_text(self._shown(item))
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            problem = self._callbacks.raised(f"reduce({self._step.name!r})", item, error)
        entry = await self._entry(text)
        if problem is None and entry.size > self._room:
            problem = too_long(entry.size)
        return _Arrived(entry if problem is None else await self._error_entry(item, problem), group)

    def _numbered(self, item: Item) -> Item:
        """Numbers the items of a single input like their results."""
        is_of_one = self._inputs == 1 and len(item.position) > 1
        return replace(item, position=item.position[1:]) if is_of_one else item

    def _reserve(self) -> None:
        """Reserves room for the step's own fields, each cut to half of the prompt."""
        if self._given is not None:
            return
        max_bytes = int(self._room / 2 * _BYTES_PER_TOKEN)
        self._given = {name: _cut(to_json_text(value()), max_bytes) for name, value in self._step.given.items()}
        self._room -= math.ceil(sum(len(text.encode()) for text in self._given.values()) / _BYTES_PER_TOKEN)

    async def _error_entry(self, item: Item, problem: AgentError) -> TreeEntry:
        texts = error_entries(item, problem, self._compiled.answers, self._compiled.hidden)
        entries = [await self._entry(text) for text in texts]
        return next((entry for entry in entries if entry.size <= self._room), entries[-1])

    async def _entry(self, text: str) -> TreeEntry:
        return TreeEntry(text, await self._size(text))

    def _key(self, item: Item) -> Hashable:
        by = self._step.group_by
        if by is None:
            return None
        key = find(item, by) if isinstance(by, str) else by(item)
        hash(key)
        return key

    def _shown(self, item: Item) -> Any:
        if self._step.shown is None or not item.ok:
            return entry_of(item, self._compiled.answers, self._compiled.hidden)
        return self._step.shown(item)

    async def _size(self, text: str) -> int:
        if self._window is None:
            return math.ceil(len(text.encode()) / _BYTES_PER_TOKEN)
        return math.ceil(1 + await self._window.size(text))

    def _add(self, position: Position, arrived: _Arrived | None) -> None:
        heapq.heappush(self._unordered, (position, arrived))
        self._advance()

    def _advance(self) -> None:
        """Adds arrived items to their groups, in order. An item whose index is unknown holds back the following
        ones."""
        while self._unordered and (index := self._order.index(self._unordered[0][0])) is not None:
            arrived = heapq.heappop(self._unordered)[1]
            if self._step.group_by is None:
                self._join(self._group(None), index, arrived)
            else:
                self._in_turn[index] = arrived
        while self._next in self._in_turn:  # the order of groups and of their members must not depend on timing
            member = self._in_turn.pop(self._next)
            self._next += 1
            if member is not None:
                group = self._group(member.group)
                self._join(group, group.members, member)
        if self._step.group_by is None and self._inputs is not None and not self._is_counted:
            total = self._order.total(self._inputs)
            if total is not None:
                self._is_counted = True
                group = self._group(None)
                self._submit(group, group.tree.expect(total))

    def _group(self, key: Hashable) -> _Group:
        if key not in self._groups:
            self._groups[key] = _Group(len(self._groups), key, MergeTree(self._room))
        return self._groups[key]

    def _join(self, group: _Group, index: int, arrived: _Arrived | None) -> None:
        group.members += 1
        self._submit(group, group.tree.put(index, None if arrived is None else arrived.entry))

    def _close_groups(self) -> None:
        if self._step.group_by is not None:
            for group in self._groups.values():
                self._submit(group, group.tree.expect(group.members))

    def _submit(self, group: _Group, merges: Sequence[Merge]) -> None:
        if group.is_done:
            return
        for merge in merges:
            inputs = self._task_fields(merge.leaves, results_text(merge), group.key)
            self._merges[self.agents.submit(inputs)] = group, merge

    def _task_fields(self, count: int, results: str, key: Hashable) -> dict[str, Any]:
        """The fields available to the task."""
        by = self._step.group_by
        group = {} if by is None else {"group": key, **({by: key} if isinstance(by, str) else {})}
        return {"n": count, "results": results, **group, **(self._given or {})}

    async def _deliver(self, result: AgentResult) -> None:
        group, merge = self._merges[result.index]
        self.agents.record((group.number,), result)
        if result.error is not None:
            await self._failed(group, merge, result.error)
        elif merge.is_last:
            group.is_done = True
            await self._then.receive(self._item(group, merge).with_fields(**{self._step.name: result.output}))
        else:
            text = merged_text(result.output, merge.leaves)
            self._submit(group, group.tree.merged(merge, text, await self._size(text)))
        del self._merges[result.index]  # not earlier: until its answer is in the tree, it may lead to further merges
        self._close_if_done()

    async def _failed(self, group: _Group, merge: Merge, error: AgentError) -> None:
        if error.kind is ErrorKind.CONTEXT_OVERFLOW and (halves := group.tree.overflowed(merge)):
            self._submit(group, halves)
        elif not group.is_done:
            group.is_done = True
            await forward_failure(self.agents, self._item(group, merge), error, self._step.on_failure, self._then)

    def _item(self, group: _Group, merge: Merge) -> Item:
        """The item of a group. After a failed partial merge, the number of its results is unknown."""
        fields = self._task_fields(merge.leaves, "", group.key)
        for name in ("results", *self._step.given):
            del fields[name]
        if not merge.is_last:
            del fields["n"]
        return Item((group.number,), fields)

    def _close_if_done(self) -> None:
        if self._is_closed and not self._merges:
            self.agents.close()


def _cut(text: str, max_bytes: int) -> str:
    """Truncates to this many bytes, with a marker."""
    data = text.encode()
    if len(data) <= max_bytes:
        return text
    cut, total = len(data) - max_bytes, len(data)
    return f"{data[:max_bytes].decode(errors='ignore')} ... [cut: {cut:,} of {total:,} bytes left out]"
