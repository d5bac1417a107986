"""docs/families.md and `adjudge models` say what the families say of themselves."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from adjudge.cli import main
from adjudge.commands.families_page import BEGIN, END, PAGE, page
from adjudge.commands.family_rows import family_rows
from adjudge.families import FAMILIES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")


def test_the_page_is_up_to_date() -> None:
    assert page(TEXT) == TEXT, "run scripts/families"
    assert "docs/families.md" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_only_the_made_part_is_written() -> None:
    made = page(f"before\n{BEGIN}stale\n{END}after\n")
    assert made.startswith(f"before\n{BEGIN}| family |") and made.endswith(f"{END}after\n")
    assert "stale" not in made
    with pytest.raises(ValueError, match="families: begin"):
        page("no marks")


def test_every_family_has_a_section_and_a_way_to_obtain_it() -> None:
    for row in family_rows():
        section = TEXT.partition(f"\n## {row.name}\n")[2].partition("\n## ")[0]
        assert row.what in section and row.about.labels in section
        assert f"- empty text: {row.about.empty}\n" in section
        assert row.about.releases
        for release in row.about.releases:
            assert f"hf download {release.name} --revision {release.revision} " in section
            assert re.fullmatch("[0-9a-f]{40}", release.revision)
            assert (release.base is None) == (release.base_revision is None)


def test_models_lists_what_each_answers_and_its_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["families"]
    assert [family["family"] for family in listed] == list(FAMILIES)
    cua = listed[1]
    assert (cua["limits"]["answers"], cua["limits"]["max_options"]) == (["choice"], 26)
    assert cua["releases"][0]["base"] == "Qwen/Qwen3.5-4B"
    assert {family["family"]: family["adapter"] for family in listed}["jemm"] == "unmerged"
    assert main(["models"]) == 0
    shown = capsys.readouterr().out
    assert "1 to 26" in shown and "MaestroYan/JEMM" in shown and "4,096" in shown
