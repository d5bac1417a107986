"""Keys, origins, what strangers may see, health, metrics, the document and the page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from adjudge.config import ServiceConfig
from adjudge.errors import ConfigError, DeviceError
from adjudge.scheduler import ExitCode, Fault
from adjudge.service.keys import load_keys
from tests.service_rig import CHOICE, NOUL, SCORE, Rig, running

BODY = {"state": "It rains.", "questions": {"q": NOUL}}
KEY = {"authorization": "Bearer key-1"}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running() as one:
        yield one


@pytest.fixture(scope="module")
def guarded() -> Iterator[Rig]:
    with running(api_key=("key-1", "key-2")) as one:
        yield one


@pytest.mark.parametrize(
    "headers",
    [KEY, {"authorization": "bearer  key-2"}, {"x-api-key": "key-2"}],
)
def test_a_good_key_is_accepted_as_bearer_or_header(guarded: Rig, headers: dict[str, str]) -> None:
    assert guarded.ask(BODY, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer key"},
        {"authorization": "Basic key-1"},
        {"x-api-key": b"k\xe9y"},
    ],
)
def test_without_a_good_key_it_is_401(guarded: Rig, headers: dict[str, Any]) -> None:
    reply = guarded.ask(BODY, headers=headers)
    assert reply.status_code == 401
    assert reply.json()["detail"]["error_type"] == "authentication_error"
    assert reply.headers["www-authenticate"] == "Bearer"


def test_nothing_is_read_or_decoded_before_the_key_is_checked(guarded: Rig) -> None:
    headers = {"content-encoding": "zstd", "content-type": "text/plain"}
    assert guarded.ask(b"not zstd at all", headers=headers).status_code == 401
    assert guarded.ask(b"not zstd at all", headers=KEY | headers).status_code == 415
    headers["content-type"] = "application/json"
    assert guarded.ask(b"not zstd at all", headers=KEY | headers).status_code == 400


def test_without_keys_any_authorization_is_ignored(rig: Rig) -> None:
    assert rig.ask(BODY, headers={"authorization": "Bearer whatever"}).status_code == 200


@pytest.mark.parametrize("path", ["/metrics", "/docs", "/openapi.json", "/v1/models"])
def test_strangers_do_not_see_what_a_key_guards(guarded: Rig, path: str) -> None:
    assert guarded.client.get(path).status_code == 401
    assert guarded.client.get(path, headers=KEY).status_code == 200


def test_strangers_see_the_status_only(guarded: Rig) -> None:
    assert guarded.client.get("/health").json() == {"status": "ready"}
    assert "engine" in guarded.client.get("/health", headers=KEY).json()
    assert guarded.client.get("/health/live").status_code == 200
    assert guarded.client.get("/health?deep=1").status_code == 401
    assert guarded.client.get("/health?deep=1", headers=KEY).json()["deep_ms"] > 0


def test_keys_come_from_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# a comment\n\n  key-3\n")
    with running(api_key_file=str(file)) as rig:
        assert rig.ask(BODY, headers={"x-api-key": "key-3"}).status_code == 200
        assert rig.ask(BODY, headers={"x-api-key": "# a comment"}).status_code == 401


def test_a_key_file_that_holds_nothing_usable_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    with pytest.raises(ConfigError, match="cannot be read"):
        load_keys(ServiceConfig(api_key_file=str(file)))
    file.write_text("# only this\n")
    with pytest.raises(ConfigError, match="holds no key"):
        load_keys(ServiceConfig(api_key_file=str(file)))
    with pytest.raises(ConfigError, match="printable"):
        load_keys(ServiceConfig(api_key=("two words",)))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_a_public_address_needs_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match="insecure"):
        load_keys(ServiceConfig(host=host))
    assert not load_keys(ServiceConfig(host=host, insecure=True))
    assert load_keys(ServiceConfig(host=host, api_key=("k",)))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_a_loopback_address_needs_none(host: str) -> None:
    assert not load_keys(ServiceConfig(host=host))


def test_a_page_of_another_site_cannot_post(rig: Rig) -> None:
    reply = rig.ask(BODY, headers={"origin": "https://elsewhere.example"})
    assert reply.status_code == 403
    assert reply.json()["detail"]["error_type"] == "authentication_error"
    assert rig.ask(BODY, headers={"origin": rig.url}).status_code == 200
    preflight = {"origin": "https://elsewhere.example", "access-control-request-method": "POST"}
    reply = rig.client.options("/v1/systemone", headers=preflight)
    assert reply.status_code == 405
    assert "access-control-allow-origin" not in reply.headers


def test_an_allowed_page_can() -> None:
    origin = "https://app.example"
    with running(cors_origin=(origin,)) as rig:
        preflight = {
            "origin": origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "content-type",
        }
        reply = rig.client.options("/v1/systemone", headers=preflight)
        assert reply.status_code == 200
        assert reply.headers["access-control-allow-origin"] == origin
        reply = rig.ask(BODY, headers={"origin": origin})
        assert reply.status_code == 200
        assert reply.headers["access-control-allow-origin"] == origin
        assert "x-request-id" in reply.headers["access-control-expose-headers"]
        assert rig.ask(BODY, headers={"origin": "https://other.example"}).status_code == 403


# -- health


def test_health_tells_facts_and_the_deep_check_runs_a_pass(rig: Rig) -> None:
    body = rig.client.get("/health").json()
    assert body["status"] == "ready"
    assert body["model"] == "fake/open-jev"
    assert body["engine"] == {"device": "none", "dtype": "float32"}
    passes = len(rig.engine.passes)
    assert rig.client.get("/health/ready?deep=1").status_code == 200
    assert len(rig.engine.passes) == passes + 1


def test_health_shows_facts_of_any_type(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    class Version(str):
        """As torch's version is: no plain string."""

    monkeypatch.setattr(rig.engine, "health", lambda: {"torch": Version("2.13"), "path": Path("x")})
    assert rig.client.get("/health").json()["engine"] == {"torch": "2.13", "path": "x"}


def test_draining_turns_readiness_off_and_serves_on() -> None:
    with running() as rig:
        rig.service.health.draining = True
        for path in ("/health", "/health/ready", "/health?deep=1"):
            reply = rig.client.get(path)
            assert reply.status_code == 503
            assert reply.json()["status"] == "draining"
        assert rig.client.get("/health/live").status_code == 200
        assert rig.ask(BODY).status_code == 200


def test_a_fault_turns_health_off_with_the_reason() -> None:
    with running() as rig:
        rig.scheduler.fail(Fault("the device is gone", ExitCode.DEVICE_UNSOUND))
        reply = rig.client.get("/health")
        assert reply.status_code == 503
        assert reply.json()["reason"] == "the device is gone"
        assert reply.json()["detail"]["error_type"] == "internal_error"
        assert rig.client.get("/health/live").status_code == 503
        reply = rig.ask(BODY)
        assert reply.status_code == 503
        assert "device is gone" in reply.json()["detail"]["message"]


def test_the_reason_stays_the_first_fault_when_the_engine_is_closed_by_it() -> None:
    with running() as rig:
        rig.scheduler.fail(Fault("a pass did not return", ExitCode.ENGINE_LOST))
        rig.engine.unsound = DeviceError("the engine is closed; load it again")
        reply = rig.client.get("/health")
        assert reply.status_code == 503
        assert reply.json()["reason"] == "a pass did not return"


def test_an_engine_that_says_it_is_unsound_is_not_ready() -> None:
    with running() as rig:
        rig.engine.unsound = DeviceError("memory errors")
        reply = rig.client.get("/health")
        assert reply.status_code == 503
        assert reply.json()["reason"] == "memory errors"


def test_a_failing_deep_check_is_503() -> None:
    with running() as rig:
        rig.engine.break_with = lambda items: RuntimeError()
        reply = rig.client.get("/health?deep=1")
        assert reply.status_code == 503
        assert "500" in reply.json()["reason"]


# -- metrics


def samples(rig: Rig) -> dict[str, float]:
    text = rig.client.get("/metrics").text
    return {
        sample.name + "".join(f"/{value}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith(("_bucket", "_created"))
    }


def test_metrics_count_what_was_asked_and_what_ran() -> None:
    with running() as rig:
        questions = {"n": NOUL, "c": CHOICE, "s": SCORE}
        usage = rig.ask(BODY | {"questions": questions}).json()["usage"]
        rig.ask(b"{")
        rig.client.get("/nope/secret")
        found = samples(rig)
        assert found["adjudge_requests_total//v1/systemone/200"] == 1
        assert found["adjudge_requests_total//v1/systemone/422"] == 1
        assert found["adjudge_requests_total/other/404"] == 1
        assert found["adjudge_rejections_total/InvalidRequest"] == 1
        assert found["adjudge_questions_total/noul"] == 1
        assert found["adjudge_questions_total/choice"] == 1
        assert found["adjudge_questions_total/score"] == 1
        assert found["adjudge_candidates_total"] == 6
        assert found["adjudge_prompt_tokens_total"] == usage["input_tokens"]
        rows = found["adjudge_unique_tokens_total"]
        assert 0 < rows < usage["input_tokens"]
        assert found["adjudge_batch_rows_total"] == rows
        assert found["adjudge_padding_rows_total"] == -rows % 64
        assert found["adjudge_passes_total"] == found["adjudge_run_seconds_count"] == 1
        assert found["adjudge_queue_seconds_count"] == 1
        assert found["adjudge_prefix_hit_tokens_total"] == 0
        assert found["adjudge_healthy"] == 1
        assert found["adjudge_pending_requests"] == found["adjudge_pending_tokens"] == 0


def test_metrics_and_logs_hold_no_text_of_a_request(caplog: pytest.LogCaptureFixture) -> None:
    secret = "zebra-in-pyjamas"
    with caplog.at_level("DEBUG"), running() as rig:
        noul = NOUL | {"instructions": secret}
        rig.ask({"state": secret, "questions": {secret: noul}, "model": "jev-latest"})
        rig.ask({"state": secret, "questions": {secret: {"type": secret}}, "model": secret})
        rig.ask({"state": secret, "questions": {"q": NOUL}, "model": secret})
        rig.ask(f'{{"{secret}": '.encode())
        rig.ask({"state": secret * 1000, "questions": {"q": NOUL}})
        rig.client.get(f"/{secret}", headers={"authorization": f"Bearer {secret}"})
        text = rig.client.get("/metrics").text
    assert secret not in text
    assert "POST /v1/systemone" in caplog.text
    lines = [line for line in caplog.text.splitlines() if "httpx" not in line]
    lines = [line for line in lines if "HTTP Request" not in line]
    assert secret not in "\n".join(lines)


# -- rates


def test_over_its_rate_a_key_is_429_before_its_body_is_read_and_others_are_not() -> None:
    body = {"state": "It rains.", "questions": {"q": NOUL}}
    slow = {"max_requests_per_s": 0.01}
    with running(api_key=("one", "other"), **slow) as rig:
        mine, others = ({"x-api-key": key} for key in ("one", "other"))
        assert rig.ask(body, headers={"x-api-key": "wrong"}).status_code == 401
        assert rig.ask(body, headers=mine).status_code == 200
        refused = rig.ask(b"{", headers=mine)
        assert refused.status_code == 429
        assert refused.json()["detail"]["error_type"] == "rate_limit_error"
        assert 99_000 < int(refused.headers["retry-after-ms"]) <= 100_000
        assert int(refused.headers["retry-after"]) == 100
        assert rig.client.get("/v1/models", headers=mine).status_code == 200
        assert rig.client.get("/health?deep=1", headers=mine).status_code == 200
        assert rig.ask(body, headers=others).status_code == 200
        text = rig.client.get("/metrics", headers=mine).text
        assert 'adjudge_rejections_total{reason="RateLimited"} 1.0' in text


def test_without_keys_an_address_has_the_rate() -> None:
    with running(max_requests_per_s=0.01) as rig:
        body = {"state": "It rains.", "questions": {"q": NOUL}}
        assert [rig.ask(body).status_code for _ in range(2)] == [200, 429]


# -- the document and the page


def test_the_document_is_openapi_31_and_every_route_is_in_it(rig: Rig) -> None:
    document = rig.client.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    assert set(document["paths"]) == set(rig.service.routes)
    for path, route in rig.service.routes.items():
        assert list(document["paths"][path]) == [route.method.lower()]
    names = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document)))
    assert names <= set(document["components"]["schemas"])


def test_the_page_runs_its_own_script_and_no_other(rig: Rig) -> None:
    reply = rig.client.get("/docs")
    assert "fake/open-jev" in reply.text
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert policy.count("'sha256-") == 2
    assert "http://" not in reply.text and "https://" not in reply.text


def test_the_version_is_the_packages(rig: Rig) -> None:
    import adjudge

    assert rig.client.get("/version").json()["version"] == adjudge.__version__
