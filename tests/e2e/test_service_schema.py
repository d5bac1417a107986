"""Schemathesis holds every route to /openapi.json: statuses, media types, bodies, headers."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.responses import JSONResponse, Response

from adjudge.service.app import Route
from adjudge.service.exchange import Exchange
from tests.fake_engine import CARD, FakeEngine
from tests.service_rig import Rig, running

NUM_EXAMPLES = 20
LEFT_OUT = "positive_data_acceptance,negative_data_rejection"
"""Unknown fields and headers are ignored by contract, and some rules (a noul's, the known models,
token limits) are no schema's to tell."""


def schemathesis(rig: Rig, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = [
        *(sys.executable, "-W", "error", "-m", "schemathesis.cli", "run"),
        *(f"{rig.url}/openapi.json", "--generation-deterministic", "--no-color"),
        *("--phases", "coverage,fuzzing", "--max-examples", str(NUM_EXAMPLES)),
        *("--exclude-checks", LEFT_OUT, *more),
    ]
    environment = os.environ | {"NO_PROXY": "127.0.0.1"}
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def test_every_route_keeps_to_its_schema(tmp_path: Path) -> None:
    bare = replace(CARD, name="fake/jev-vl", family="jev_vl", aliases=())
    more = {bare.name: FakeEngine(card=bare, record=False)}
    with running(FakeEngine(record=False), more=more, log_level="error") as rig:
        done = schemathesis(rig, tmp_path)
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr
        # All but the document itself.
        assert f"Tested: {len(rig.service.routes) - 1}" in done.stdout


async def other_body(exchange: Exchange) -> Response:
    return JSONResponse({"name": "adjudge", "version": 1})


async def other_status(exchange: Exchange) -> Response:
    return JSONResponse({"name": "adjudge", "version": "1"}, 418)


async def other_media(exchange: Exchange) -> Response:
    return Response("adjudge 1", media_type="text/plain")


@pytest.mark.parametrize("handler", [other_body, other_status, other_media])
def test_a_route_that_leaves_its_schema_is_noticed(handler: object, tmp_path: Path) -> None:
    with running() as rig:
        rig.service.routes["/version"] = Route("GET", handler, open=True)  # type: ignore[arg-type]
        done = schemathesis(rig, tmp_path, "--include-path", "/version")
    assert done.returncode == 1
    assert "GET /version" in done.stdout
