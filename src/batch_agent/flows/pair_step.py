"""Steps on pairs: equal items (dedupe), and items with the rows of another list (join).

Both wait for all items. Blocking proposes the pairs, which are counted before any of them is asked about."""

import asyncio
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..core.errors import ErrorKind
from ..core.events import Notice
from ..core.protocols.event_sink import EventSink
from ..core.results import AgentResult
from ..core.run_failure import RunStopped
from ..observe.text.text_format import plural
from ..plan.candidate_pairs import Pair, TooManyPairs, clusters, pairs_by_key, similar_pairs
from ..plan.field_paths import find
from .callbacks import Callbacks
from .map_step import fields_of
from .nodes import FlowNode, ItemDropped, ItemExpanded, NodeMessage, StageClosed
from .result import Item
from .stage_runner import StageRunner
from .steps import Dedupe, Join, Keep

SAME = "Do these two entries describe the same thing?\n\nA: {left}\n\nB: {right}"


class PairNode:
    """Asks about pairs of items, or of items and rows, and merges or joins the matching ones."""

    def __init__(
        self,
        step: Dedupe | Join,
        agents: StageRunner,
        then: FlowNode,
        callbacks: Callbacks,
        events: EventSink | None,
    ) -> None:
        self.agents = agents
        self._step = step
        self._then = then
        self._callbacks = callbacks
        self._events = events
        self._read: list[tuple[Item, str, Sequence[Hashable]]] = []
        """Items with their texts and keys; in a join, followed by the rows."""
        self._items = 0
        self._asked: dict[int, Pair] = {}
        self._matches: list[Pair] = []

    async def receive(self, message: NodeMessage) -> None:
        match message:
            case Item() if message.ok:
                await self._add(message)
            case Item() if isinstance(self._step, Join):
                await self._expand(message, [message])
            case ItemDropped(position) if isinstance(self._step, Join):
                await self._then.receive(ItemExpanded(position, 0))
            case StageClosed():
                await self._ask()
            case _:
                await self._then.receive(message)

    async def run(self) -> None:
        await self.agents.run(self._deliver)
        if isinstance(self._step, Join):
            await self._join(self._step)
        else:
            await self._merge()
        await self._then.receive(StageClosed())

    async def _add(self, item: Item) -> None:
        try:
            self._read.append(self._text_and_keys(item, self._step.pairing.on))
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            where = f"{'join' if isinstance(self._step, Join) else 'dedupe'}({self._step.name!r})"
            failed = item.failed(where, self._callbacks.raised(where, item, error))
            if isinstance(self._step, Join):
                await self._expand(failed, [failed])
            else:
                await self._then.receive(failed)

    def _row(self, row: Item, step: Join) -> tuple[Item, str, Sequence[Hashable]]:
        try:
            return self._text_and_keys(row, step.others_on)
        except Exception as error:
            raise RunStopped(
                ErrorKind.CALLBACK,
                f"join({step.name!r}): the text or the key of row {row.position[-1]} cannot be read: "
                f"{type(error).__name__}: {error}",
            ) from error

    def _text_and_keys(self, item: Item, on: str | Keep) -> tuple[Item, str, Sequence[Hashable]]:
        text, block = find(item, on) if isinstance(on, str) else on(item), self._step.pairing.block
        keys: Any = () if block is None else block(item)
        listed = tuple(keys) if isinstance(keys, list | tuple | set | frozenset) else (keys,)
        hash(listed)
        return item, str(text), listed

    async def _ask(self) -> None:
        """Asks about all pairs, except that equal texts match without a question. Raises RunStopped if there are too
        many pairs."""
        step = self._step
        self._read.sort(key=lambda read: read[0].position)
        self._items = len(self._read)
        if isinstance(step, Join):
            rows = [Item((-1, index), fields_of(row, _row_name(step))) for index, row in enumerate(step.others)]
            self._read += [self._row(row, step) for row in rows]
        texts = [text for _, text, _ in self._read]
        pairs = await asyncio.to_thread(self._pairs, texts)
        known = [pair for pair in pairs if texts[pair[0]] == texts[pair[1]]]
        self._matches += known
        if self._events is not None:
            count = plural(len(pairs) - len(known), "pair")
            self._events.emit(Notice(f"{step.name}: {count} to ask about, among {plural(self._items, 'item')}."))
        for left, right in sorted(set(pairs).difference(known)):
            self._asked[self.agents.submit({"left": texts[left], "right": texts[right]})] = left, right
        self.agents.close()

    def _pairs(self, texts: Sequence[str]) -> list[Pair]:
        pairing, split = self._step.pairing, self._items if isinstance(self._step, Join) else None
        try:
            if pairing.block is None:
                return similar_pairs(texts, pairing.similarity, pairing.max_pairs, split)
            return pairs_by_key([keys for *_, keys in self._read], pairing.max_pairs, split)
        except TooManyPairs:
            change = f"raise similarity= (now {pairing.similarity:g})" if pairing.block is None else "use finer keys"
            raise RunStopped(
                ErrorKind.BUDGET,
                f"Stage {self._step.name!r} would ask about more than max_pairs={pairing.max_pairs:,} pairs of "
                f"{plural(self._items, 'item')}. It has asked about none: {change}, or raise max_pairs=.",
            ) from None

    async def _deliver(self, result: AgentResult) -> None:
        left, right = self._asked[result.index]
        self.agents.record((left, right), result)
        if result.ok and result.output:
            self._matches.append((left, right))

    async def _merge(self) -> None:
        for group in clusters(self._items, self._matches):
            first, *others = (self._read[index][0] for index in group)
            same = [dict(item.fields) for item in others]
            await self._then.receive(first.with_fields(**{self._step.name: same}))
            for item in others:
                await self._then.receive(ItemDropped(item.position))

    async def _join(self, step: Join) -> None:
        found: dict[int, list[Any]] = {}
        for left, right in sorted(self._matches):
            found.setdefault(left, []).append(self._read[right][0].fields)
        for index, (item, _, _) in enumerate(self._read[: self._items]):
            matched = found.get(index) or ([None] if step.keeps_unmatched else [])
            await self._expand(item, [item.with_fields(**{step.name: row}) for row in matched])

    async def _expand(self, item: Item, items: Iterable[Item]) -> None:
        listed = list(items)
        await self._then.receive(ItemExpanded(item.position, len(listed)))
        for number, each in enumerate(listed):
            await self._then.receive(replace(each, position=(*item.position, number)))


def _row_name(step: Join) -> str:
    """The field for the rows that are plain text."""
    return step.others_on if isinstance(step.others_on, str) else "input"
