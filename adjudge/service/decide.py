"""The path of one request through the service: body, request, work, job, answer, bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.responses import Response as HttpResponse

from adjudge.errors import BodyTooLarge, Detail, InvalidRequest, RequestTimeout
from adjudge.families.limits import check_counts, num_candidates
from adjudge.forest import count_rows
from adjudge.scheduler import Cancelled, Job, Ran
from adjudge.wire import (
    Request,
    Response,
    decide_detail,
    decide_to,
    decode_json,
    encode_response,
    parse_decide,
)

if TYPE_CHECKING:
    from adjudge.config import ServiceConfig
    from adjudge.engine_door import Door, Work
    from adjudge.scheduler import Scheduler
    from adjudge.service.engines import Engines
    from adjudge.service.exchange import Exchange
    from adjudge.service.media import Body, BodyReader
    from adjudge.service.metrics import Metrics

T = TypeVar("T")

INLINE_BYTES = 16 << 10
"""Bodies up to this size are read and compiled on the event loop: a thread would cost more."""
INLINE_PROMPTS = 256
BYTES_PER_PROMPT = 64
"""What one more prompt costs to compile, in bytes of body."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as some route spells it, the engine it is for, and how that route spells the
    answer and a wrong field."""

    door: Door
    request: Request
    render: Callable[[Response], bytes]
    respell: Callable[[Detail], Detail] = lambda detail: detail


class Decider:
    """Answers decision requests with the loaded engines."""

    def __init__(
        self,
        engines: Engines,
        scheduler: Scheduler,
        reader: BodyReader,
        metrics: Metrics,
        config: ServiceConfig,
    ) -> None:
        self._engines = engines
        self._scheduler = scheduler
        self._reader = reader
        self._metrics = metrics
        self._config = config
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="adjudge-compile")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def systemone(self, body: bytes) -> Asked:
        """POST /v1/systemone, and OpenRouter's route with the same body."""
        key = self._config.metadata_key
        door, request = self._engines.read(decode_json(body))
        return Asked(door, request, lambda response: encode_response(response, metadata_key=key))

    def bare(self, body: bytes) -> Asked:
        """POST /v1/decide, JEV-VL's own body."""
        door, request = self._engines.claim_decide(parse_decide(body))
        return Asked(
            door,
            request,
            lambda response: msgspec.json.encode(decide_to(request, response)),
            decide_detail,
        )

    async def decide(self, exchange: Exchange, interpret: Callable[[bytes], Asked]) -> HttpResponse:
        """Answer one request. Raises AdjudgeError; Cancelled when the client left."""
        self._scheduler.check_open()
        seconds = exchange.deadline_seconds(self._config.deadline_ms)
        body = await self._reader.read(exchange)
        asked = await self._aside(len(body.json), self._understand, body, interpret)
        try:
            job = await self._run(exchange, asked, len(body.json), seconds)
        except InvalidRequest as error:
            raise InvalidRequest(*map(asked.respell, error.details)) from None
        ran = job.outcome
        assert isinstance(ran, Ran)  # noqa: S101 -- _run raises everything else
        exchange.timings["queue"] = ran.queue_seconds
        exchange.timings["run"] = ran.run_seconds
        cost = INLINE_BYTES * len(ran.logits) // INLINE_PROMPTS
        content = await self._aside(cost, self._answer, asked, job, ran)
        return HttpResponse(content, media_type="application/json")

    async def tokens(self, exchange: Exchange) -> HttpResponse:
        """POST /v1/systemone/tokens: what the request would cost. Runs nothing."""
        body = await self._reader.read(exchange)
        asked = await self._aside(len(body.json), self._understand, body, self.systemone)
        cost = _cost(asked.request, len(body.json))
        counts = await self._aside(cost, self._count, asked)
        return HttpResponse(msgspec.json.encode(counts), media_type="application/json")

    async def _aside(self, cost: int, work: Callable[..., T], *arguments: Any) -> T:
        """Do small work here and large work on a thread, so that nobody waits for it."""
        if cost <= INLINE_BYTES:
            return work(*arguments)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, work, *arguments)

    def _understand(self, body: Body, interpret: Callable[[bytes], Asked]) -> Asked:
        asked = interpret(body.json)
        limit = self._config.max_body_bytes or asked.door.family.limits.max_body_bytes
        if body.size > limit:
            raise BodyTooLarge(
                f"the body has {body.size} bytes once decoded; {asked.door.card.name} takes "
                f"{limit}. Send less, or split the request"
            )
        check_counts(asked.request, self._config.max_questions, self._config.max_candidates)
        _check_parts(asked.request, body)
        return asked

    async def _run(self, exchange: Exchange, asked: Asked, size: int, seconds: float | None) -> Job:
        """Compile, queue and wait. Raises what the job ended with unless it ran."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def on_resolved(job: Job) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_wake, waiter)

        scheduler = self._scheduler
        deadline = None if seconds is None else scheduler.clock() + seconds
        job = scheduler.open_job(on_resolved, deadline=deadline)
        watch = asyncio.ensure_future(self._watch(exchange, job))
        timer = (
            None if seconds is None else loop.call_later(seconds, scheduler.cancel, job, _late())
        )
        try:
            await self._aside(_cost(asked.request, size), self._submit, exchange, job, asked)
            await waiter
        finally:
            watch.cancel()
            if timer is not None:
                timer.cancel()
            scheduler.cancel(job)
        if not isinstance(job.outcome, Ran):
            # One error may end many jobs: without its traceback it keeps none of them alive.
            raise (job.outcome or Cancelled("the job was left")).with_traceback(None)
        return job

    def _submit(self, exchange: Exchange, job: Job, asked: Asked) -> None:
        began = monotonic()
        work = asked.door.compile(asked.request)
        exchange.timings["tokenise"] = monotonic() - began
        self._scheduler.submit(job, asked.door, work)
        exchange.facts["model"] = asked.door.card.name
        exchange.facts["questions"] = len(asked.request.questions)
        exchange.facts["prompts"] = job.num_prompts
        exchange.facts["prompt_tokens"] = work.prompt_tokens
        exchange.facts["unique_tokens"] = job.rows

    async def _watch(self, exchange: Exchange, job: Job) -> None:
        """Cancel the job as soon as the client is gone."""
        while (await exchange.receive())["type"] != "http.disconnect":
            pass
        self._scheduler.cancel(job)

    def _answer(self, asked: Asked, job: Job, ran: Ran) -> bytes:
        prompt_tokens = job.work.prompt_tokens
        metadata: dict[str, Any] = {
            "inference_seconds": ran.run_seconds,
            "prefix_cache": {
                "enabled": True,
                "scope": "batch" if self._config.share_across_requests else "request",
                "saved_tokens": prompt_tokens - job.rows,
                "hit_tokens": ran.hit_tokens,
            },
        }
        served_as = self._engines.served_as(asked.door)
        if served_as is not None:
            metadata["served_as"] = served_as
        response = asked.door.answer(job.work, ran.logits, metadata)
        self._metrics.answered(asked.request, ran, prompt_tokens, job.rows)
        return asked.render(response)

    def _count(self, asked: Asked) -> dict[str, Any]:
        door = asked.door
        work = door.compile(asked.request)
        lengths = [len(ids) for ids in work.token_ids]
        return {
            "model": door.card.name,
            "questions": {
                name: _question_counts(work, lengths, places)
                for name, places in work.compiled.questions.items()
            },
            "input_tokens": sum(lengths),
            "unique_tokens": count_rows(work.token_ids),
            "max_prompt_tokens": door.family.limits.max_prompt_tokens,
        }


def _question_counts(work: Work, lengths: list[int], places: range) -> dict[str, int]:
    return {
        "prompts": len(places),
        "input_tokens": sum(lengths[place] for place in places),
        "longest_prompt_tokens": max(lengths[place] for place in places),
        "unique_tokens": count_rows([work.token_ids[place] for place in places]),
    }


def _cost(request: Request, size: int) -> int:
    """What compiling a request costs, in bytes of a plain body."""
    return size + BYTES_PER_PROMPT * num_candidates(request)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _late() -> RequestTimeout:
    return RequestTimeout(
        "the request's deadline passed before its answer was there; send a later x-deadline-ms, or "
        "try again when fewer requests wait"
    )


def _check_parts(request: Request, body: Body) -> None:
    """Every part of a multipart body is claimed by exactly one asset, every claim has its part.

    Raises InvalidRequest.
    """
    details = []
    claimed: dict[str, str] = {}
    for name, asset in (request.assets or {}).items():
        if asset.part is None:
            continue
        loc = ("body", "assets", name, "part")
        if asset.part not in body.parts:
            msg = "the body has no part of this name; send the asset's bytes as one"
            details.append(Detail(loc=loc, msg=msg, type="part_missing"))
        elif asset.part in claimed:
            msg = "another asset has this part already; send the bytes once for each asset"
            details.append(Detail(loc=loc, msg=msg, type="part_repeated"))
        claimed[asset.part] = name
    if unclaimed := [part for part in body.parts if part not in claimed]:
        msg = f"{len(unclaimed)} part(s) of the body belong to no asset; name them in assets"
        details.append(Detail(loc=("body", "assets"), msg=msg, type="part_unclaimed"))
    if details:
        raise InvalidRequest(*details)
