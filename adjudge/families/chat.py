"""The chat turn that several families write, and whether a tokenizer reads it as one.

A tokenizer without the chat's special tokens spells them out, a token for each few letters: the
prompts are then others than those the model was trained on, and so are its answers.
"""

from __future__ import annotations

import re

from adjudge.errors import CheckpointError
from adjudge.families import Encoder, ModelCard

ANSWER_TURN = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
ANSWER_TURN_IDS = (248046, 198, 248045, 74455, 198, 248068, 271, 248069, 271)
"""In the released models' vocabulary."""

_SPECIAL = re.compile(r"<\|[a-z_]+\|>|</?think>")
_ROLE, _ROLE_ID = "assistant", ANSWER_TURN_IDS[3]


def check_chat(encoder: Encoder, card: ModelCard, template: str) -> None:
    """That each special token in `template` is one id of the tokenizer, alone and within it.

    A tokenizer whose plain text is that of the released models must read ANSWER_TURN as
    ANSWER_TURN_IDS too; others, such as bytes, number their tokens as they like. Raises
    CheckpointError naming the token.
    """
    spelled = _SPECIAL.findall(template)
    within, turn, role, *alone = encoder.encode_many([template, ANSWER_TURN, _ROLE, *spelled])
    for token, ids in zip(spelled, alone, strict=True):
        if len(ids) != 1:
            _refuse(card, f"reads the chat's special token {token!r} as {len(ids)} tokens, not one")
    wanted = {int(ids[0]): token for token, ids in zip(spelled, alone, strict=True)}
    if len(wanted) < len(set(spelled)):
        _refuse(card, f"reads two of the special tokens {', '.join(sorted(set(spelled)))} as one")
    if [wanted[one] for one in within.tolist() if one in wanted] != spelled:
        _refuse(card, f"does not find the special tokens in {template!r}")
    if role.tolist() == [_ROLE_ID] and tuple(turn.tolist()) != ANSWER_TURN_IDS:
        _refuse(
            card, f"reads {ANSWER_TURN!r} as {turn.tolist()}; it must be {list(ANSWER_TURN_IDS)}"
        )


def _refuse(card: ModelCard, what: str) -> None:
    raise CheckpointError(
        f"{card.name}: tokenizer.json {what}; the checkpoint and its tokenizer do not belong "
        "together"
    )
