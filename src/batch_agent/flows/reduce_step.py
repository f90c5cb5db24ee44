"""The step that makes one of many: an agent for all items or for those of each group, and for parts that do not fit one
prompt together."""

import heapq
import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from ..core.errors import ErrorKind, SpecError
from ..core.fast_dataclass import dataclass
from ..core.results import AgentError, AgentResult
from ..engine.context_window import ContextWindow
from ..plan.field_paths import find
from ..plan.merge_tree import Merge, MergeTree, TreeEntry
from .callbacks import Callbacks
from .compile import CompiledStage
from .item_order import ItemOrder, Position
from .nodes import FlowNode, ItemDropped, ItemExpanded, ItemExpected, NodeMessage, StageClosed
from .reduce_prompt import entry_of, error_entries, merged_text, results_text, to_json_text, too_long
from .result import Item
from .stage_runner import StageRunner, forward_failure
from .steps import Reduce

_UNKNOWN_ROOM = 12_000
"""Tokens for results where nobody knows the model's window: what any model of today can read."""
_LEAST_ROOM = 128
_NOTES = 96
"""Tokens of what is said beside the results."""
_BYTES_PER_TOKEN = 2.5


@dataclass(slots=True)
class _Group:
    """What is made into one."""

    number: int
    key: Hashable
    tree: MergeTree
    members: int = 0
    is_done: bool = False
    """Its answer was handed on, or that there is none."""


@dataclass(frozen=True, slots=True)
class _Arrived:
    """An item as it is shown."""

    entry: TreeEntry
    group: Hashable


class ReduceNode:
    """Keeps the order of items: groups, and what is merged with what, do not depend on who is done first."""

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
        self._places = ItemOrder(compiled.expansions)
        self._unplaced: list[tuple[Position, _Arrived | None]] = []
        self._in_turn: dict[int, _Arrived | None] = {}
        self._next = 0
        self._inputs: int | None = None
        self._groups: dict[Hashable, _Group] = {}
        self._merges: dict[int, tuple[_Group, Merge]] = {}
        self._is_counted = False
        self._is_closed = False

    async def open(self) -> None:
        """Raises SpecError if results have no room beside the task."""
        assert self.agents.resources is not None
        self._window = self.agents.resources.window
        if self._window is None:
            return
        self._room = self._window.room - math.ceil(await self._window.size(self._step.task)) - _NOTES
        if self._room < _LEAST_ROOM:
            raise SpecError(
                f"Stage {self._step.name!r}: beside its task and its answer the model's window of "
                f"{self._window.tokens:,} tokens has no room for results. Shorten the task, or lower max_tokens."
            )

    async def hear(self, news: NodeMessage) -> None:
        match news:
            case Item():
                self._place(news.position, await self._arrived(news))
            case ItemDropped(position):
                self._place(position, None)
            case ItemExpanded(position, count):
                self._places.expanded(position, count)
                self._place_more()
            case ItemExpected(inputs):
                self._inputs = inputs
                self._place_more()
            case StageClosed():
                self._is_closed = True
                self._close_groups()
                self._close_if_over()

    async def go(self) -> None:
        await self.agents.go(self._deliver)
        for group in self._groups.values():
            if not group.is_done:  # nothing came to it
                await self._then.hear(ItemDropped((group.number,)))
        await self._then.hear(ItemExpected(len(self._groups)))
        await self._then.hear(StageClosed())

    async def _arrived(self, item: Item) -> _Arrived:
        """Never fails: what cannot be shown, or belongs nowhere, is shown as an error."""
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
        return _Arrived(entry if problem is None else await self._excuse(item, problem), group)

    def _numbered(self, item: Item) -> Item:
        """Of a single input, items are numbered as their results are."""
        is_of_one = self._inputs == 1 and len(item.position) > 1
        return replace(item, position=item.position[1:]) if is_of_one else item

    def _reserve(self) -> None:
        """Room for what is given beside the results: of the longest, as much as half of the prompt holds."""
        if self._given is not None:
            return
        most = int(self._room / 2 * _BYTES_PER_TOKEN)
        self._given = {name: _cut(to_json_text(value()), most) for name, value in self._step.given.items()}
        self._room -= math.ceil(sum(len(text.encode()) for text in self._given.values()) / _BYTES_PER_TOKEN)

    async def _excuse(self, item: Item, problem: AgentError) -> TreeEntry:
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

    def _place(self, position: Position, arrived: _Arrived | None) -> None:
        heapq.heappush(self._unplaced, (position, arrived))
        self._place_more()

    def _place_more(self) -> None:
        """Who cannot be placed keeps those behind from it too."""
        while self._unplaced and (place := self._places.place(self._unplaced[0][0])) is not None:
            arrived = heapq.heappop(self._unplaced)[1]
            if self._step.group_by is None:
                self._join(self._group(None), place, arrived)
            else:
                self._in_turn[place] = arrived
        while self._next in self._in_turn:  # which group is the first, and who is the first of it, is a matter of order
            member = self._in_turn.pop(self._next)
            self._next += 1
            if member is not None:
                group = self._group(member.group)
                self._join(group, group.members, member)
        if self._step.group_by is None and self._inputs is not None and not self._is_counted:
            total = self._places.total(self._inputs)
            if total is not None:
                self._is_counted = True
                group = self._group(None)
                self._ask(group, group.tree.expect(total))

    def _group(self, key: Hashable) -> _Group:
        if key not in self._groups:
            self._groups[key] = _Group(len(self._groups), key, MergeTree(self._room))
        return self._groups[key]

    def _join(self, group: _Group, place: int, arrived: _Arrived | None) -> None:
        group.members += 1
        self._ask(group, group.tree.put(place, None if arrived is None else arrived.entry))

    def _close_groups(self) -> None:
        if self._step.group_by is not None:
            for group in self._groups.values():
                self._ask(group, group.tree.expect(group.members))

    def _ask(self, group: _Group, merges: Sequence[Merge]) -> None:
        if group.is_done:
            return
        for merge in merges:
            asked = self._asked(merge.leaves, results_text(merge), group.key)
            self._merges[self.agents.ask(asked)] = group, merge

    def _asked(self, count: int, results: str, key: Hashable) -> dict[str, Any]:
        """What the task can name."""
        by = self._step.group_by
        group = {} if by is None else {"group": key, **({by: key} if isinstance(by, str) else {})}
        return {"n": count, "results": results, **group, **(self._given or {})}

    async def _deliver(self, result: AgentResult) -> None:
        group, merge = self._merges[result.index]
        self.agents.keep((group.number,), result)
        if result.error is not None:
            await self._failed(group, merge, result.error)
        elif merge.is_last:
            group.is_done = True
            await self._then.hear(self._item(group, merge).with_fields(**{self._step.name: result.output}))
        else:
            text = merged_text(result.output, merge.leaves)
            self._ask(group, group.tree.merged(merge, text, await self._size(text)))
        del self._merges[result.index]  # only now: until its answer is in the tree, more may come of it
        self._close_if_over()

    async def _failed(self, group: _Group, merge: Merge, error: AgentError) -> None:
        if error.kind is ErrorKind.CONTEXT_OVERFLOW and (halves := group.tree.overflowed(merge)):
            self._ask(group, halves)
        elif not group.is_done:
            group.is_done = True
            await forward_failure(self.agents, self._item(group, merge), error, self._step.on_failure, self._then)

    def _item(self, group: _Group, merge: Merge) -> Item:
        """What comes of a group, so far. Of one that failed in part, nobody knows how many it has."""
        fields = self._asked(merge.leaves, "", group.key)
        for name in ("results", *self._step.given):
            del fields[name]
        if not merge.is_last:
            del fields["n"]
        return Item((group.number,), fields)

    def _close_if_over(self) -> None:
        if self._is_closed and not self._merges:
            self.agents.close()


def _cut(text: str, most: int) -> str:
    """To so many bytes, with a marker that says so."""
    data = text.encode()
    if len(data) <= most:
        return text
    return f"{data[:most].decode(errors='ignore')} ... [cut: {len(data) - most:,} of {len(data):,} bytes left out]"
