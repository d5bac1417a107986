"""Requests to token ids: a family and a tokenizer together, under the limits in force."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adjudge.config import EngineConfig
from adjudge.engine_door import Work
from adjudge.errors import CheckpointError, UsageError
from adjudge.families import Compiled, Family, Limits, ModelCard, family_class, family_for
from adjudge.families.limits import check_tokens
from adjudge.tokenizer import Tokenizer
from adjudge.wire import Request, request_from

if TYPE_CHECKING:
    from adjudge.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Compiler:
    """Thread-safe; holds no weights and touches no device."""

    family: Family
    tokenizer: Tokenizer
    wider_pass_tokens: int | None = None
    """The longest prompt but for `max_batch_tokens`, where that is less."""

    @classmethod
    def of(cls, card: ModelCard, tokenizer_path: Path | None, config: EngineConfig) -> Compiler:
        """For a checkpoint. A prompt never exceeds one pass, whatever the card allows.

        Raises CheckpointError.
        """
        if tokenizer_path is None:
            raise CheckpointError(f"{card.name}: there is no tokenizer.json; every model needs one")
        tokenizer = Tokenizer.load(tokenizer_path)
        own: Limits = family_class(card.family).limits_for(card)
        most = config.max_prompt_tokens or own.max_prompt_tokens
        limits = replace(own, max_prompt_tokens=min(most, config.max_batch_tokens))
        wider = most if most > config.max_batch_tokens else None
        return cls(family_for(card, tokenizer, limits), tokenizer, wider)

    @classmethod
    def of_checkpoint(cls, checkpoint: Checkpoint, config: EngineConfig) -> Compiler:
        """For an opened checkpoint, whose embedding must have a row for each of the tokenizer's
        ids; it may have more. Raises CheckpointError."""
        path = checkpoint.tokenizer_path
        made = cls.of(checkpoint.card, path, config)
        rows, last_id = checkpoint.text_config.vocab_size, made.tokenizer.last_id
        if path is not None and last_id >= rows:
            raise CheckpointError(
                f"{path}: {made.tokenizer.vocab_size:,} ids up to {last_id:,}, but vocab_size in "
                f"{path.with_name('config.json')} is {rows:,}; the two do not belong together"
            )
        return made

    def compile(self, request: Request | Mapping[str, Any]) -> Work:
        """The request's prompts and their token ids. Raises RequestError."""
        if not isinstance(request, Request):
            request = request_from(request, aliases=self.family.limits.aliases)
        compiled = self.family.compile(request)
        self._check_sizes(compiled)
        segments = self.tokenizer.encode_segments(compiled.prompts)
        token_ids = [np.concatenate(parts) for parts in segments]
        check_tokens(
            compiled,
            list(map(len, token_ids)),
            self.family.limits,
            wider_pass_tokens=self.wider_pass_tokens,
        )
        state_tokens = [
            sum(map(len, parts[: prompt.num_state_segments]))
            for prompt, parts in zip(compiled.prompts, segments, strict=True)
        ]
        return Work(compiled, token_ids, state_tokens)

    def _check_sizes(self, compiled: Compiled) -> None:
        """Refuse a prompt that is too long however it is tokenised and however wide a pass is,
        before that costs memory: some hundred bytes a token. Raises UsageError."""
        limit = self.family.limits.max_prompt_tokens
        most = self.wider_pass_tokens or limit
        for prompt in compiled.prompts:
            texts = [segment for segment in prompt.segments if isinstance(segment, str)]
            if sum(map(len, texts)) <= most:
                continue
            fewest = sum(map(self.tokenizer.fewest_tokens, texts))
            if fewest > most:
                raise UsageError(
                    f"question {prompt.question!r} makes a prompt of at least {fewest} tokens; the "
                    f"limit is {limit}. Shorten the state, the instructions or the option"
                )
