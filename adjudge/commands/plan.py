"""Show what a request becomes: its prompts, their tokens, and how many of them are computed once
for all. Reads the model folder's cards and tokenizer, no weights, and runs nothing."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any

from adjudge.commands.load import check_folder, with_model
from adjudge.commands.request import add_request_flags, read_request
from adjudge.commands.table import table
from adjudge.config import EngineConfig
from adjudge.origins import add_flags, resolve

if TYPE_CHECKING:
    from adjudge.engine_door import Work
    from adjudge.forest import Forest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("request", nargs="?", metavar="REQUEST", help="JSON file; - for stdin")
    parser.add_argument("--json", action="store_true", help="print JSON, with texts and token ids")
    add_request_flags(parser)
    add_flags(parser, ["engine"])


def run(arguments: argparse.Namespace) -> int:
    config = resolve(vars(arguments), os.environ).engine
    check_folder(config)
    request = read_request(arguments)
    work, forest = plan_request(with_model(config), request)
    print(_json(work, forest) if arguments.json else _text(work, forest))
    return 0


def plan_request(config: EngineConfig, request: dict[str, Any]) -> tuple[Work, Forest]:
    """The request compiled, tokenised and laid out, as the engine would run it alone."""
    from adjudge.engine import compiler
    from adjudge.forest import plan

    work = compiler(config).compile(request)
    return work, plan(work.token_ids)


def _totals(work: Work, forest: Forest) -> dict[str, int]:
    unique = forest.num_rows
    return {
        "prompts": len(work.token_ids),
        "prompt_tokens": work.prompt_tokens,
        "unique_tokens": unique,
        "saved_tokens": work.prompt_tokens - unique,
        "chunks": forest.num_chunks,
    }


def _text(work: Work, forest: Forest) -> str:
    rows = [
        (name, len(prompts), sum(len(work.token_ids[i]) for i in prompts))
        for name, prompts in work.compiled.questions.items()
    ]
    totals = "\n".join(
        f"{name.replace('_', ' ')}: {n:,}" for name, n in _totals(work, forest).items()
    )
    return f"{table(['question', 'prompts', 'tokens'], rows)}\n\n{totals}"


def _json(work: Work, forest: Forest) -> str:
    prompts = [
        {"question": prompt.question, "segments": prompt.segments, "token_ids": ids.tolist()}
        for prompt, ids in zip(work.compiled.prompts, work.token_ids, strict=True)
    ]
    return json.dumps({**_totals(work, forest), "sequences": prompts}, ensure_ascii=False)
