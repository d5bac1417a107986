"""Clients that exist, unchanged: the official Python SDK, and the public conformance suite."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator

import pytest
from jevcompat import runner
from typesafe_sdk import (
    AsyncTypeSafeClient,
    Choice,
    Image,
    Noul,
    Score,
    TypeSafeClient,
    TypeSafeUnprocessableEntityError,
)

from adjudge.wire import Request
from tests.service_rig import Rig, running

KEY = "sdk-key"
QUESTIONS = {
    "refund": Noul(instructions="Is the customer asking for money back?"),
    "team": Choice(instructions="Which team?", criteria={"Billing": "Payments", "Sales": None}),
    "anger": Score(instructions="How angry?", criteria=["Calm", "Cross", "Furious"]),
}
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(api_key=(KEY,)) as one:
        yield one


@pytest.mark.parametrize("key", [None, KEY])
def test_the_conformance_suite_finds_nothing(key: str | None) -> None:
    with running(api_key=(key,) if key else ()) as rig:
        report = runner.run(rig.url, key=key)
    failed = [result for result in report.results if result.status == "fail"]
    assert not failed, [finding for result in failed for finding in result.findings]
    assert report.verdict == "conformant"
    untested = {result.id for result in report.results if result.status == "skip"}
    assert untested == (
        {"auth.ignored-when-off"} if key else {"auth.bearer", "auth.missing", "auth.invalid"}
    )


def test_the_sdk_asks_plain_and_compressed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Request] = []
    compile_request = rig.engine.compile

    def noted(request: Request) -> object:
        seen.append(request)
        return compile_request(request)

    monkeypatch.setattr(rig.engine, "compile", noted)
    state = "I was charged twice. " * 100
    found = []
    for compression in (False, "zstd"):
        with TypeSafeClient(api_key=KEY, base_url=rig.url, compression=compression) as client:
            reply = client.system_one(state=state, questions=QUESTIONS)
            assert reply.request_id
            found.append((reply.nouls, reply.choices, reply.scores, reply.usage))
    assert found[0] == found[1]
    assert [request.state for request in seen] == [state, state]


def test_the_async_sdk_asks_too(rig: Rig) -> None:
    async def ask() -> object:
        async with AsyncTypeSafeClient(api_key=KEY, base_url=rig.url) as client:
            replies = [client.system_one(state="s", questions=QUESTIONS) for _ in range(8)]
            return [reply.answers for reply in await asyncio.gather(*replies)]

    answers = asyncio.run(ask())
    assert isinstance(answers, list)
    assert all(one == answers[0] for one in answers)


def test_the_sdk_lists_models(rig: Rig) -> None:
    with TypeSafeClient(api_key=KEY, base_url=rig.url) as client:
        names = [model.name for model in client.models.list().models]
    assert names[:2] == ["fake/open-jev", "jev-latest"]


@pytest.mark.parametrize("compression", [False, "zstd"])
def test_an_image_is_a_422_that_names_the_asset(rig: Rig, compression: object) -> None:
    with (
        TypeSafeClient(api_key=KEY, base_url=rig.url, compression=compression) as client,
        pytest.raises(TypeSafeUnprocessableEntityError) as refused,
    ):
        client.system_one(
            state={"photo": "see picture"}, questions=QUESTIONS, assets={"picture": Image(PIXEL)}
        )
    assert refused.value.body["detail"][0]["loc"] == ["body", "assets", "picture"]


def multipart(body: bytes, *names: str) -> bytes:
    parts = [("request", body), *((name, PIXEL) for name in names)]
    return (
        b"".join(
            b'--B\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
            % (name.encode(), content)
            for name, content in parts
        )
        + b"--B--\r\n"
    )


@pytest.mark.parametrize(
    "assets, parts, kind, place",
    [
        ('{"a": {"type": "image", "part": "p"}}', ("p",), "asset_unsupported", ["a"]),
        ('{"a": {"type": "image", "part": "q"}}', ("p",), "part_missing", ["a", "part"]),
        (
            '{"a": {"type": "image", "part": "p"}, "b": {"type": "image", "part": "p"}}',
            ("p",),
            "part_repeated",
            ["b", "part"],
        ),
        ("null", ("p",), "part_unclaimed", []),
    ],
)
def test_parts_and_assets_must_match(
    rig: Rig, assets: str, parts: tuple[str, ...], kind: str, place: list[str]
) -> None:
    question = '{"q": {"type": "noul", "instructions": "i"}}'
    body = f'{{"state": "s", "questions": {question}, "assets": {assets}}}'
    headers = {"content-type": "multipart/form-data; boundary=B", "x-api-key": KEY}
    reply = rig.ask(multipart(body.encode(), *parts), headers=headers)
    assert reply.status_code == 422
    detail = reply.json()["detail"][0]
    assert (detail["type"], detail["loc"]) == (kind, ["body", "assets", *place])
    plain = rig.ask(multipart(body.replace(f', "assets": {assets}', "").encode()), headers=headers)
    assert plain.status_code == 200
