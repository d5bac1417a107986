"""The checkpoint's tokenizer: texts and prompts to token ids, exactly as the file says.

A text that spells a special token becomes that token; nothing is added, cut or padded. Prompts
are encoded segment by segment, each distinct segment once per call; a family cuts only where
that cannot change the ids (see `families.Prompt`). The ids of short segments are kept for later
calls: template text and the questions that a caller asks again and again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from adjudge.errors import CheckpointError
from adjudge.families import Prompt, Segment

NFC_SHRINKS = 4
"""NFC makes a text no more than so many times shorter, in bytes of UTF-8: the most of any Unicode
text is 3.5, for three characters that compose into U+0390."""
KEEPING = ("Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
"""What a split may do with what it splits at, without dropping it."""
KEPT_CHARACTERS = 200
"""Segments up to this length are kept."""
KEPT_SEGMENTS = 4096
"""When so many are kept, keeping starts anew."""


class Tokenizer:
    """Safe to use from several threads; encoding releases the interpreter lock."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        self._kept: dict[str, np.ndarray] = {}

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """From a checkpoint folder or its tokenizer.json. Raises CheckpointError."""
        file = Path(path)
        if file.is_dir():
            file = file / "tokenizer.json"
        if not file.is_file():
            raise CheckpointError(f"{file}: there is no such tokenizer file; every model needs one")
        try:
            inner = tokenizers.Tokenizer.from_file(str(file))
        except Exception as exc:  # the library raises bare Exception for every fault of a file
            raise CheckpointError(f"{file}: not a readable tokenizer: {exc}") from exc
        return cls(inner)

    @property
    def vocab_size(self) -> int:
        """Number of ids, special tokens included; the model may have more rows than that."""
        return self._inner.get_vocab_size(with_added_tokens=True)

    @property
    def last_id(self) -> int:
        """The largest id; ids need not be without gaps."""
        return self._extremes[0]

    def fewest_tokens(self, text: str) -> int:
        """At least so many tokens has the text, told from its size; 0 where nothing is known."""
        most_bytes = self._extremes[1]
        if most_bytes is None:
            return 0
        size = len(text) if text.isascii() else len(text.encode()) // NFC_SHRINKS
        return -(-size // most_bytes)

    @cached_property
    def _extremes(self) -> tuple[int, int | None]:
        """The largest id, and the most bytes of NFC text that become one token, or None where
        bytes may be dropped on the way. Together, since the library copies its vocabulary out."""
        inner, vocab = self._inner, self._inner.get_vocab(with_added_tokens=True)
        added = inner.get_added_tokens_decoder().values()
        keeps_all = (
            (inner.normalizer is None or isinstance(inner.normalizer, normalizers.NFC))
            and isinstance(inner.model, models.BPE)
            and inner.pre_tokenizer is not None
            and _keeps_all(json.loads(inner.pre_tokenizer.__getstate__()))
            and vocab.keys() >= set(pre_tokenizers.ByteLevel.alphabet())
            and not any(token.lstrip or token.rstrip for token in added)
        )
        # One character of a byte-level token is one byte; one of an added token is up to four.
        longest = [*map(len, vocab), *(len(token.content.encode()) for token in added)]
        return max(vocab.values(), default=-1), max(longest) if keeps_all else None

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token ids of each text: int32 [num_tokens]. Texts are independent of each other."""
        encodings = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]

    def encode_prompts(self, prompts: Sequence[Prompt]) -> list[np.ndarray]:
        """Token ids of each prompt, its segments' ids in order: int32 [num_tokens]."""
        return [np.concatenate([_NONE, *parts]) for parts in self.encode_segments(prompts)]

    def encode_segments(self, prompts: Sequence[Prompt]) -> list[list[np.ndarray]]:
        """Token ids of each prompt's segments: int32 [num_tokens]."""
        texts: dict[str, np.ndarray] = {}
        given: dict[int, np.ndarray] = {}  # by identity: hashing long rows costs more than arrays
        for prompt in prompts:
            for segment in prompt.segments:
                if isinstance(segment, str):
                    texts[segment] = _NONE
                elif id(segment) not in given:
                    given[id(segment)] = np.array(segment, dtype=np.int32)
        self._encode_segments(texts)

        def ids(segment: Segment) -> np.ndarray:
            return texts[segment] if isinstance(segment, str) else given[id(segment)]

        return [[*map(ids, prompt.segments)] for prompt in prompts]

    def _encode_segments(self, texts: dict[str, np.ndarray]) -> None:
        """Fill in the ids of each text, from those kept where they are."""
        kept = self._kept
        missing = []
        for text in texts:
            ids = kept.get(text)
            if ids is None:
                missing.append(text)
            else:
                texts[text] = ids
        if not missing:
            return
        for text, ids in zip(missing, self.encode_many(missing), strict=True):
            texts[text] = ids
            if len(text) <= KEPT_CHARACTERS:
                if len(kept) >= KEPT_SEGMENTS:
                    kept = self._kept = {}
                kept[text] = ids

    def id_of(self, text: str) -> int:
        """The id of a text that is exactly one token. Raises CheckpointError otherwise."""
        (ids,) = self.encode_many([text])
        if len(ids) != 1:
            raise CheckpointError(
                f"the label {text!r} is {len(ids)} tokens of this tokenizer, and must be one; "
                "the checkpoint and its tokenizer do not belong together"
            )
        return int(ids[0])


def _keeps_all(step: Mapping[str, Any]) -> bool:
    """Whether a step of pre-tokenising, as a tokenizer.json spells it, drops no character."""
    if step["type"] == "Sequence":
        return all(map(_keeps_all, step["pretokenizers"]))
    return step["type"] == "ByteLevel" or step.get("behavior") in KEEPING


_NONE = np.array([], dtype=np.int32)
