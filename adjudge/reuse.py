"""A pass's items against the index of kept prefixes: what it need not compute, what it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adjudge.engine_door import Item
from adjudge.forest import Forest, branch
from adjudge.graft import Cutting, cut, graft
from adjudge.prefixes import Found, Kept, Prefixes, Salt, equal, path_of


@dataclass(frozen=True, slots=True)
class Keep:
    """A prefix to keep after the pass; see prefixes.Kept."""

    salt: Salt
    path: bytes
    cutting: Cutting


@dataclass(frozen=True, slots=True)
class Reuse:
    """A planned pass on kept prefixes.

    trunks: the entries that it reads; their states belong into slots first_slot …; hit_tokens:
    for each item, how many of its tokens lie in one; found: what the index said, at `version`.
    """

    items: Sequence[Item]
    forest: Forest
    trunks: tuple[Kept, ...]
    first_slot: int
    keeps: tuple[Keep, ...]
    hit_tokens: tuple[int, ...]
    found: Sequence[Found]
    version: int

    @property
    def touches_states(self) -> bool:
        """Whether the pass reads or keeps any state; if not it is like any other pass."""
        return bool(self.trunks or self.keeps)

    @property
    def reused_rows(self) -> int:
        return sum(trunk.num_tokens for trunk in self.trunks)

    def is_current(self, prefixes: Prefixes) -> bool:
        """Whether the index would still say the same: no entry is gone, none is new."""
        return self.version == prefixes.version or self.found == _find(self.items, prefixes)


def plan_on(items: Sequence[Item], prefixes: Prefixes) -> Reuse:
    """The forest of these items on the longest prefixes that are kept of them."""
    version = prefixes.version
    found = _find(items, prefixes)
    used, forest = found, _grafted(items, found)
    if len({item.salt for item in items}) > 1 and any(one.kept for one in found):
        # Equal prompts of two salts share rows of a pass, but not past trunks of their own.
        prompts, scopes = [item.token_ids for item in items], [item.scope for item in items]
        if forest.num_rows > branch(prompts, scopes).num_rows:
            used = [Found()] * len(items)
            forest = _grafted(items, used)
    trunks = tuple(dict.fromkeys(one.kept for one in used if one.kept is not None))
    first_slot = forest.num_states - len(trunks)
    wanted = _wanted(items, found, used, prefixes)
    forest, cuttings = cut(forest, [*wanted.values()])
    return Reuse(
        items=items,
        forest=forest,
        trunks=trunks,
        first_slot=first_slot,
        keeps=tuple(
            Keep(salt, path, cutting)
            for (salt, path), cutting in zip(wanted, cuttings, strict=True)
        ),
        hit_tokens=tuple(one.num_tokens for one in used),
        found=found,
        version=version,
    )


def _wanted(
    items: Sequence[Item], found: Sequence[Found], used: Sequence[Found], prefixes: Prefixes
) -> dict[tuple[Salt, bytes], tuple[int, int]]:
    """Salt and path of each prefix worth keeping that is not kept -> an item on it, and tokens."""
    wanted: dict[tuple[Salt, bytes], tuple[int, int]] = {}
    seen: dict[tuple[Salt, int], Item] = {}
    for place, (item, known, on) in enumerate(zip(items, found, used, strict=True)):
        for num_tokens in (item.keep_tokens, known.parts_at):
            head = item.token_ids[:num_tokens]
            before = seen.get((item.salt, num_tokens))
            if num_tokens <= on.num_tokens or (
                before is not None and equal(before.token_ids[:num_tokens], head)
            ):
                continue
            seen[item.salt, num_tokens] = item
            path = path_of(head, num_tokens)
            if not prefixes.holds(item.salt, path):
                wanted.setdefault((item.salt, path), (place, num_tokens))
    return wanted


def _find(items: Sequence[Item], prefixes: Prefixes) -> list[Found]:
    return prefixes.find([item.token_ids for item in items], [item.salt for item in items])


def _grafted(items: Sequence[Item], found: Sequence[Found]) -> Forest:
    kept = [one.kept for one in found]
    numbers = {trunk: n for n, trunk in enumerate(dict.fromkeys(k for k in kept if k is not None))}
    return graft(
        [item.token_ids for item in items],
        scopes=[item.scope for item in items],
        trunks=[-1 if trunk is None else numbers[trunk] for trunk in kept],
        trunk_tokens=[trunk.num_tokens for trunk in numbers],
    )
