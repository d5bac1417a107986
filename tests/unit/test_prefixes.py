"""The index of kept prefixes: against a slow restatement; what it promises of bytes and salts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adjudge.engine_door import TokenIds
from adjudge.prefixes import Found, Kept, Prefixes, Salt, path_of


def ids(*runs: tuple[int, int]) -> TokenIds:
    """Runs of (token, count)."""
    return np.concatenate([np.full(count, token, np.int32) for token, count in runs])


def keep(
    prefixes: Prefixes, prefix: TokenIds, *, salt: Salt = None, num_bytes: int = 1
) -> Kept | None:
    if not prefixes.reserve(num_bytes, ()):
        return None
    kept = Kept(salt, path_of(prefix, len(prefix)), num_bytes, object())
    prefixes.add(kept)
    return kept


def find(prefixes: Prefixes, prompt: TokenIds, salt: Salt = None) -> Found:
    return prefixes.find([prompt], [salt])[0]


def test_the_longest_entry_that_is_shorter_than_the_prompt() -> None:
    prefixes = Prefixes(100)
    short, long = keep(prefixes, ids((1, 64))), keep(prefixes, ids((1, 128)))
    keep(prefixes, ids((2, 64)))
    assert find(prefixes, ids((1, 128), (5, 1))).kept is long
    assert find(prefixes, ids((1, 300))).kept is long
    assert find(prefixes, ids((1, 128))).kept is short, "its last row must be computed"
    assert find(prefixes, ids((1, 64))).kept is None
    assert find(prefixes, ids((1, 63), (2, 90))) == Found()
    assert find(prefixes, ids((3, 90))) == Found()


def test_where_a_prompt_parts_from_an_entry() -> None:
    prefixes = Prefixes(100)
    keep(prefixes, ids((1, 256)))
    assert find(prefixes, ids((1, 200), (2, 90))) == Found(None, 192)
    assert find(prefixes, ids((0, 1), (1, 200))) == Found()


@given(st.data())
def test_find_against_a_slow_restatement(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))

    def path(windows: int) -> TokenIds:
        """Few different windows, so that paths share some; tokens past one byte."""
        return np.repeat(rng.integers(254, 258, windows), 64).astype(np.int32)

    prefixes, entries = Prefixes(10**6), []
    for _ in range(data.draw(st.integers(1, 12))):
        prefix, salt = path(int(rng.integers(1, 5))), rng.choice(np.array([None, "a", "b"]))
        if not prefixes.holds(salt, path_of(prefix, len(prefix))):
            entries.append(keep(prefixes, prefix, salt=salt))
    prompts = [path(5)[: int(rng.integers(1, 320))] for _ in range(8)]
    salts: Sequence[Salt] = [*rng.choice(np.array([None, "a", "b", "c"]), 8)]
    for prompt, salt, found in zip(prompts, salts, prefixes.find(prompts, salts), strict=True):
        own = [np.frombuffer(e.path, ">u4") for e in entries if e is not None and e.salt == salt]
        longest, shared = 0, 0
        for entry in own:
            common = min(len(entry), len(prompt))
            differs = np.flatnonzero(entry[:common] != prompt[:common])
            common = int(differs[0]) if len(differs) else common
            shared = max(shared, common)
            if common == len(entry) < len(prompt):
                longest = max(longest, len(entry))
        assert (found.num_tokens, found.parts_at) == (longest, shared - shared % 64)
        if found.kept is not None:
            assert found.kept.salt == salt
            assert found.kept.path == path_of(prompt, longest)


def test_entries_of_two_salts_never_meet() -> None:
    prefixes = Prefixes(100)
    of_a = keep(prefixes, ids((1, 64)), salt="a")
    prompt = ids((1, 70))
    assert find(prefixes, prompt, "a").kept is of_a
    for salt in (None, "b", "", "A"):
        assert find(prefixes, prompt, salt) == Found()
    assert prefixes.holds("a", path_of(prompt, 64)) and not prefixes.holds(
        None, path_of(prompt, 64)
    )


def test_the_least_recently_used_goes_first_and_what_is_read_stays() -> None:
    prefixes = Prefixes(3)
    first, second, third = (keep(prefixes, ids((n, 64))) for n in range(3))
    assert first and second and third
    prefixes.use(first)
    version = prefixes.version
    keep(prefixes, ids((3, 64)))
    assert second.state is None and first.state is not None and third.state is not None
    assert prefixes.version > version and prefixes.num_evicted == 1
    version = prefixes.version
    assert prefixes.reserve(1, [third]) and prefixes.version > version
    assert first.state is None and third.state is not None


def test_room_that_cannot_be_made_evicts_nothing() -> None:
    prefixes = Prefixes(10)
    old, read = keep(prefixes, ids((1, 64)), num_bytes=4), keep(prefixes, ids((2, 64)), num_bytes=5)
    assert old and read
    assert not prefixes.reserve(6, [read]), "5 are read and 6 would be too many"
    assert not prefixes.reserve(11, ())
    assert old.state is not None and prefixes.num_bytes == 9
    assert prefixes.reserve(5, [read]) and old.state is None
    assert not prefixes.reserve(1, [read]), "reserved room counts"
    prefixes.release(5)
    assert prefixes.num_bytes == 5


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40), st.booleans()), max_size=40))
def test_the_budget_is_never_exceeded(steps: list[tuple[int, int, bool]]) -> None:
    prefixes, live = Prefixes(100), dict[bytes, Kept]()
    for number, num_bytes, filled in steps:
        path = path_of(ids((number, 64)), 64)
        if prefixes.holds(None, path):
            prefixes.use(live[path])
        elif prefixes.reserve(num_bytes, ()):
            assert prefixes.num_bytes <= 100
            if filled:
                live[path] = Kept(None, path, num_bytes, object())
                prefixes.add(live[path])
            else:
                prefixes.release(num_bytes)
        held = [kept for kept in live.values() if kept.state is not None]
        assert prefixes.num_bytes == sum(kept.num_bytes for kept in held) <= 100
        assert len(prefixes) == len(held)
    prefixes.clear()
    assert prefixes.num_bytes == len(prefixes) == 0
    assert all(kept.state is None for kept in live.values())
