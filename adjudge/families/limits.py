"""Limits and names, refused the same way by every family.

A rule about one field is 422 at that field; a total over a limit, or a model that is not
loaded, is 400. Every message says the limit, the actual value and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from adjudge.errors import Detail, InvalidRequest, UsageError
from adjudge.families import Compiled, Limits, ModelCard
from adjudge.wire import Choice, Question, Request, Score, kind_of

ALWAYS_ACCEPTED = ("jev-latest", "jev-preview")


def card_names(card: ModelCard) -> list[str]:
    """The names a checkpoint answers to: its own, its aliases, and the last part in lower case."""
    return [card.name, *card.aliases, card.name.rpartition("/")[2].lower()]


def check_request(request: Request, limits: Limits, names: Iterable[str]) -> None:
    """Model name, question types, counts and assets of a request for a text-only family.

    names: the model names accepted besides ALWAYS_ACCEPTED; an absent name is accepted.
    Raises UsageError or InvalidRequest (with every wrong field).
    """
    accepted = dict.fromkeys((*ALWAYS_ACCEPTED, *names))
    if request.model is not None and request.model not in accepted:
        raise UsageError(
            f"the model of this request is not loaded here; leave model out or send one of: "
            f"{', '.join(accepted)}"
        )
    check_counts(request, limits.max_questions, limits.max_candidates)
    details = [
        Detail(
            loc=("body", "assets", name),
            msg="the loaded model reads text only; leave the asset out",
            type="asset_unsupported",
        )
        for name in request.assets or ()
    ]
    for name, question in request.questions.items():
        details.extend(_question_details(name, question, limits))
    if details:
        raise InvalidRequest(*details)


def check_counts(request: Request, max_questions: int, max_candidates: int) -> None:
    """Questions, and candidates over all questions. Raises UsageError."""
    num_questions = len(request.questions)
    if num_questions > max_questions:
        raise UsageError(
            f"the request asks {num_questions} questions; the limit is {max_questions}. "
            "Split it into several requests"
        )
    candidates = num_candidates(request)
    if candidates > max_candidates:
        raise UsageError(
            f"the request has {candidates} candidates; the limit is {max_candidates}. "
            "Split it into several requests"
        )


def check_prompts(num_prompts: int, limits: Limits) -> None:
    """Sequences to be read for a request. Raises UsageError."""
    if limits.max_prompts is not None and num_prompts > limits.max_prompts:
        raise UsageError(
            f"the request makes {num_prompts} prompts; the limit is {limits.max_prompts}. "
            "Split it into several requests"
        )


def limit_facts(limits: Limits, own: Limits) -> dict[str, Any]:
    """What a client has to know of the limits in force, JSON-ready; counts of a question type that
    is not answered are null. own: the family's limits before any setting."""
    choice, score = "choice" in limits.answers, "score" in limits.answers
    return {
        "answers": limits.answers,
        "max_prompt_tokens": limits.max_prompt_tokens,
        "family_max_prompt_tokens": own.max_prompt_tokens,
        "max_questions": limits.max_questions,
        "max_candidates": limits.max_candidates,
        "min_options": limits.min_options if choice else None,
        "max_options": limits.max_options if choice else None,
        "min_levels": limits.min_levels if score else None,
        "max_levels": limits.max_levels if score else None,
        "max_prompts": limits.max_prompts,
        "max_request_tokens": limits.max_request_tokens,
        "max_body_bytes": limits.max_body_bytes,
    }


def num_candidates(request: Request) -> int:
    """Candidates over all questions; a noul counts as one."""
    return sum(map(_num_candidates, request.questions.values()))


def check_tokens(
    compiled: Compiled,
    prompt_tokens: Sequence[int],
    limits: Limits,
    *,
    wider_pass_tokens: int | None = None,
) -> None:
    """Refuses the whole request if a prompt, or their sum, is too long. Nothing is ever cut.

    prompt_tokens[i]: the token count of compiled.prompts[i]; wider_pass_tokens: the longest prompt
    accepted if one pass were as large, where it is not. Raises UsageError that names the question
    of the longest prompt.
    """
    longest = max(range(len(prompt_tokens)), key=prompt_tokens.__getitem__)
    if prompt_tokens[longest] > limits.max_prompt_tokens:
        wider = ""
        if wider_pass_tokens is not None and prompt_tokens[longest] <= wider_pass_tokens:
            wider = f", or load the model with --max-batch-tokens {wider_pass_tokens}"
        raise UsageError(
            f"question {compiled.prompts[longest].question!r} makes a prompt of "
            f"{prompt_tokens[longest]} tokens; the limit is {limits.max_prompt_tokens}. "
            f"Shorten the state, the instructions or the option{wider}"
        )
    total = sum(prompt_tokens)
    if limits.max_request_tokens is not None and total > limits.max_request_tokens:
        raise UsageError(
            f"the request makes {total} prompt tokens; the limit is {limits.max_request_tokens}. "
            "Split it into several requests"
        )


def _num_candidates(question: Question) -> int:
    return len(question.criteria) if isinstance(question, Choice | Score) else 1


def _question_details(name: str, question: Question, limits: Limits) -> list[Detail]:
    kind = kind_of(question)
    noun, least, most = {
        "choice": ("option", limits.min_options, limits.max_options),
        "score": ("level", limits.min_levels, limits.max_levels),
        "noul": ("", 1, 1),
    }[kind]
    if kind not in limits.answers:
        answered = ", ".join(limits.answers)
        msg = f"this model does not answer {kind} questions; it answers {answered}"
        return [Detail(loc=("body", "questions", name), msg=msg, type="type_unsupported")]
    count = _num_candidates(question)
    if least <= count <= most:
        return []
    there = f"there is 1 {noun}" if count == 1 else f"there are {count} {noun}s"
    taken = f"exactly {least}" if least == most else f"{least} to {most}"
    remedy = "Add to them" if count < least else "Split the question"
    if least == most:
        remedy = "Give that many"
    msg = f"{there}; this model takes {taken}. {remedy}"
    loc = ("body", "questions", name, kind, "criteria")
    return [
        Detail(loc=loc, msg=msg, type="too_short" if count < least else "too_long", input=count)
    ]
