"""A layout that a family makes: several choices about one state, in the family's own prompts."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from adjudge.compiler import Compiler
from adjudge.config import EngineConfig
from adjudge.engine_door import TokenIds
from adjudge.errors import CheckpointError, ConfigError
from adjudge.families import FAMILIES
from adjudge.proof.writer import Writer

_SPELLING = re.compile(r"(\w+):(\d+)\+(\d+)x(\d+)")

LARGE_VOCABULARY = 10_000
"""Token ids above which a tokenizer counts as the released models', below as bytes."""
INSTRUCTIONS_TOKENS = 16
OPTION_TOKENS = (3, 10)
OPTION_BYTES = (8, 24)


@dataclass(frozen=True, slots=True)
class Asked:
    """`questions` choices of `options` options each, about a state of `state` tokens."""

    family: str
    state: int
    questions: int
    options: int

    @classmethod
    def of(cls, text: str) -> Asked:
        """From "FAMILY:state+questionsxoptions". Raises ConfigError."""
        found = _SPELLING.fullmatch(text)
        if found is None or "0" in found.groups() or found[1] not in FAMILIES:
            raise ConfigError(
                f"the layout is {text!r}; it takes FAMILY:STATE+QUESTIONSxOPTIONS with a family of "
                f"{', '.join(FAMILIES)}, for example decider:1024+12x8"
            )
        return cls(found[1], *map(int, found.groups()[1:]))

    @property
    def name(self) -> str:
        return f"{self.family}: {self.state:,} + {self.questions} × {self.options} options"

    def prompts(self, config: EngineConfig, seed: int) -> list[TokenIds]:
        """The prompts of one request, through the tokenizer of the configured model.

        The family need not be the model's: only its prompts are used. Raises ConfigError for a
        request that the family or the tokenizer does not take.
        """
        from adjudge.checkpoint.synthetic import card_of
        from adjudge.engine import open_model

        path = open_model(config).tokenizer_path
        if path is None:
            raise ConfigError("a layout of a family needs a model with a tokenizer")
        try:
            compiler = Compiler.of(card_of(self.family, path, name=self.family), path, config)
        except CheckpointError as error:
            raise ConfigError(f"{self.name}: {error.message}") from None
        large = compiler.tokenizer.vocab_size > LARGE_VOCABULARY
        writer = Writer("qwen" if large else "bytes", random.Random(seed))
        shortest, longest = OPTION_TOKENS if large else OPTION_BYTES
        asked = INSTRUCTIONS_TOKENS if large else 4 * INSTRUCTIONS_TOKENS
        questions = {
            f"question {i}": writer.question("choice", self.options, asked, longest, shortest)
            for i in range(self.questions)
        }
        request = {"state": writer.prose.state(self.state), "questions": questions}
        return list(compiler.compile(request).token_ids)
