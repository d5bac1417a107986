"""The Dockerfile, compose file and systemd unit name files, flags and settings that exist."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from adjudge.commands import serve
from adjudge.config import ServiceConfig
from adjudge.origins import resolve
from adjudge.scheduler import ExitCode

ROOT = Path(__file__).parents[2]
DOCKERFILE = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
UNIT = (ROOT / "deploy" / "adjudge.service").read_text()
STOP_SECONDS = (ServiceConfig().ready_grace_ms + ServiceConfig().drain_ms) / 1000


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} (.*)$", DOCKERFILE, re.MULTILINE)


def accepted(words: list[str]) -> None:
    """`adjudge WORDS` is a serve command whose flags exist."""
    assert words[0] == "serve"
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    serve.add_arguments(parser)
    parser.parse_args(words[1:])


def known(variables: dict[str, str]) -> None:
    resolve({}, {name: text for name, text in variables.items() if name.startswith("ADJUDGE_")})


def test_what_the_image_copies_is_there_and_is_all_that_the_install_reads() -> None:
    copied = [source for line in instructions("COPY") for source in line.split()[:-1]]
    for source in copied:
        assert (ROOT / source).exists(), source
    project = (ROOT / "pyproject.toml").read_text()
    for key in ("readme", "license-files"):
        for name in re.findall(r'"([^"]+)"', re.search(rf"^{key} = (.*)$", project, re.M)[1]):
            assert name in copied
    used = re.findall(r"[\w./-]+\.(?:txt|toml)", " ".join(instructions("RUN")))
    assert set(used) - set(copied) <= {"/tmp/pins.txt"}


def test_the_images_commands_and_variables_are_known() -> None:
    assert [json.loads(line) for line in instructions("ENTRYPOINT")] == [["adjudge"]]
    commands = [json.loads(line) for line in instructions("CMD")]
    assert len(commands) == 2
    for words in commands:
        accepted(words)
    assignments = [word for line in instructions("ENV") for word in shlex.split(line)]
    known(dict(word.split("=", 1) for word in assignments))
    paths = re.findall(r"127\.0\.0\.1:(\d+)(/[\w/]+)", DOCKERFILE)
    assert paths == [("8000", "/health/ready")]
    assert instructions("EXPOSE") == ["8000"] == re.findall(r"ADJUDGE_PORT=(\d+)", DOCKERFILE)


def test_extras_of_the_image_are_the_projects() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    extras = re.findall(r'"\.\[(\w+)\]"', DOCKERFILE)
    assert len(extras) == 2
    for extra in extras:
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE)


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_service_of_the_compose_file_runs(name: str) -> None:
    service = COMPOSE["services"][name]
    stages = re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE)
    assert service["build"]["target"] in stages
    accepted(service["command"])
    known(service["environment"])
    mounted = [volume.split(":")[1] for volume in service["volumes"]]
    assert mounted == [service["command"][1]]
    for secret in service["secrets"]:
        assert secret in COMPOSE["secrets"]
        assert service["environment"]["ADJUDGE_API_KEY_FILE"] == f"/run/secrets/{secret}"
    assert int(service["stop_grace_period"].removesuffix("s")) > STOP_SECONDS
    assert "http://127.0.0.1:8000/health/ready" in service["healthcheck"]["test"][-1]


def test_the_unit_names_known_flags_settings_and_exit_codes() -> None:
    values = re.findall(r"^(\w+)=(.*)$", UNIT, re.MULTILINE)
    command = shlex.split(dict(values)["ExecStart"])
    assert Path(command[0]).name == "adjudge"
    accepted(command[1:])
    variables = [word for key, line in values if key == "Environment" for word in line.split()]
    known(dict(word.split("=", 1) for word in variables))
    assert dict(values)["RestartPreventExitStatus"] == str(int(ExitCode.REFUSED))
    assert int(dict(values)["TimeoutStopSec"]) > STOP_SECONDS
    (credential,) = re.findall(r"^LoadCredential=(\w+):", UNIT, re.MULTILINE)
    assert f"ADJUDGE_API_KEY_FILE=%d/{credential}" in variables


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_knows_every_key_of_the_unit(tmp_path: Path) -> None:
    file = tmp_path / "adjudge.service"
    file.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", UNIT, flags=re.MULTILINE))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
