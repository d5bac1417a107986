"""The path of one request through the service: body, request, work, job, answer, bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response as HttpResponse

from adjudge.errors import BodyTooLarge, Detail, InvalidRequest, Unavailable
from adjudge.families.limits import check_counts, num_candidates
from adjudge.forest import count_rows
from adjudge.service.admitted import Admitted
from adjudge.service.aside import Aside
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
    from adjudge.scheduler import Job, Ran, Scheduler
    from adjudge.service.engines import Engines
    from adjudge.service.exchange import Exchange
    from adjudge.service.media import Body, BodyReader
    from adjudge.service.metrics import Metrics

NUM_THREADS = 2
LARGE_BYTES = 1 << 20
"""Work of a larger cost is done one at a time: it may take a gigabyte, and holds up no other."""
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
        self._aside = Aside(NUM_THREADS)
        self._large = Aside(1)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._cut = False

    def close(self) -> None:
        self._aside.close()
        self._large.close()

    def _aside_for(self, cost: int) -> Aside:
        return self._large if cost > LARGE_BYTES else self._aside

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
        with self._in_progress():
            async with self._admitted(exchange) as (admitted, body):
                size = len(body.json)
                asked = await admitted.step(size, self._understand, body, interpret)
                job = admitted.job
                try:
                    await self._submit(exchange, admitted, asked, size)
                    ran = await admitted.ran()
                except InvalidRequest as error:
                    raise InvalidRequest(*map(asked.respell, error.details)) from None
            exchange.timings["queue"] = ran.queue_seconds
            exchange.timings["run"] = ran.run_seconds
            if len(ran.logits) <= INLINE_PROMPTS:
                content = self._answer(asked, job, ran)
            else:
                answering = self._aside.submit(self._answer, asked, job, ran, urgent=True)
                content = await asyncio.wrap_future(answering)
            return HttpResponse(content, media_type="application/json")

    async def tokens(self, exchange: Exchange) -> HttpResponse:
        """POST /v1/systemone/tokens: what the request would cost. Runs nothing."""
        with self._in_progress():
            async with self._admitted(exchange) as (admitted, body):
                size = len(body.json)
                asked = await admitted.step(size, self._understand, body, self.systemone)
                counts = await admitted.step(_cost(asked.request, size), self._count, asked)
            return HttpResponse(msgspec.json.encode(counts), media_type="application/json")

    @property
    def busy(self) -> bool:
        """Whether a thread still works for some request, perhaps one that nobody waits for."""
        return self._aside.busy or self._large.busy

    def cut(self) -> int:
        """Answer every request in progress 503, whatever it waits for. Returns how many."""
        self._cut = True
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        return len(tasks)

    @contextmanager
    def _in_progress(self) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- every coroutine of a service runs in one
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self._cut:
                raise
            task.uncancel()
            raise Unavailable(
                "the server stopped before this request was done; ask another, or again"
            ) from None
        finally:
            self._tasks.discard(task)

    @asynccontextmanager
    async def _admitted(self, exchange: Exchange) -> AsyncIterator[tuple[Admitted, Body]]:
        """The body, and the job that is open while the request is prepared and run."""
        self._scheduler.check_open()
        deadline = exchange.deadline(self._config.deadline_ms)
        body = await self._reader.read(exchange, deadline)
        with (
            self._reader.kept(body),
            Admitted(exchange, self._scheduler, self._aside_for, deadline) as admitted,
        ):
            yield admitted, body

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

    async def _submit(
        self, exchange: Exchange, admitted: Admitted, asked: Asked, size: int
    ) -> None:
        cost, job = _cost(asked.request, size), admitted.job
        work, seconds = await admitted.step(cost, self._queue, job, asked)
        exchange.timings["tokenise"] = seconds
        exchange.facts["model"] = asked.door.card.name
        exchange.facts["questions"] = len(asked.request.questions)
        exchange.facts["prompts"] = job.num_prompts
        exchange.facts["prompt_tokens"] = work.prompt_tokens
        exchange.facts["unique_tokens"] = job.rows

    def _queue(self, job: Job, asked: Asked) -> tuple[Work, float]:
        """Compile and submit. Returns the work, and the seconds that compiling took."""
        began = monotonic()
        work = asked.door.compile(asked.request)
        seconds = monotonic() - began
        self._scheduler.submit(job, asked.door, work)
        return work, seconds

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
        served_as = self._engines.served_as(door)
        return {
            "model": door.card.name,
            "questions": {
                name: _question_counts(work, lengths, places)
                for name, places in work.compiled.questions.items()
            },
            "input_tokens": sum(lengths),
            "unique_tokens": count_rows(work.token_ids),
            "max_prompt_tokens": door.family.limits.max_prompt_tokens,
            **({} if served_as is None else {"x_served_as": served_as}),
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
