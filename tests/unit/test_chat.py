"""Which tokenizers a chat's template is refused with, and by what words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from adjudge.errors import CheckpointError
from adjudge.families import Encoder, family_for
from adjudge.families.chat import ANSWER_TURN, ANSWER_TURN_IDS
from adjudge.tokenizer import Tokenizer
from tests.family_cards import card_for

CHATS = ("open_jev", "jemm", "cua_s1")


@dataclass
class Changed:
    """A tokenizer that reads some texts as if they were spelled otherwise, or swaps two ids."""

    inner: Tokenizer
    spelled: tuple[str, str] = ("", "")
    swapped: tuple[int, int] | None = None

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        rows = self.inner.encode_many([text.replace(*self.spelled) for text in texts])
        if self.swapped is None:
            return rows
        a, b = self.swapped
        return [np.where(row == a, b, np.where(row == b, a, row)) for row in rows]


def refused(family: str, encoder: Encoder, inner: Tokenizer, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        family_for(card_for(family, inner), encoder)


@pytest.mark.parametrize("family", CHATS)
def test_a_special_token_is_one_id(byte_level: Tokenizer, qwen: Tokenizer, family: str) -> None:
    for inner in (byte_level, qwen):
        family_for(card_for(family, inner), inner)
        for token in ("<|im_start|>", "<|im_end|>", "<think>"):
            changed = Changed(inner, (token, f"{token[:-1]} >"))
            refused(family, changed, inner, f"{family}-Model: .*{token[2:-2]}.* not one")


def test_two_special_tokens_are_two_ids(byte_level: Tokenizer) -> None:
    changed = Changed(byte_level, ("<|im_end|>", "<|im_start|>"))
    refused("open_jev", changed, byte_level, "two of the special tokens")


def test_a_special_token_is_found_within_the_text(byte_level: Tokenizer) -> None:
    changed = Changed(byte_level, ("\n<|im_start|>assistant", "\n<|im_start |>assistant"))
    refused("open_jev", changed, byte_level, "does not find the special tokens")


@pytest.mark.parametrize("family", CHATS)
def test_the_released_vocabulary_has_its_known_ids(
    qwen: Tokenizer, byte_level: Tokenizer, family: str
) -> None:
    assert tuple(qwen.encode_many([ANSWER_TURN])[0].tolist()) == ANSWER_TURN_IDS
    swapped = ANSWER_TURN_IDS[0], ANSWER_TURN_IDS[2]
    refused(family, Changed(qwen, swapped=swapped), qwen, "it must be .248046, 198, 248045")
    own = byte_level.id_of("<|im_end|>"), byte_level.id_of("<|im_start|>")
    family_for(card_for(family, byte_level), Changed(byte_level, swapped=own))
