"""The part of docs/families.md that is made from the families themselves:  scripts/families

Everything between the two marks is written anew; the rest of the page is not touched.
"""

from __future__ import annotations

import sys
from pathlib import Path

from adjudge.commands.family_rows import FamilyRow, family_rows
from adjudge.families.about import Release

PAGE = Path("docs") / "families.md"
BEGIN, END = "<!-- families: begin -->\n", "<!-- families: end -->\n"


def main() -> int:
    path = Path(__file__).parents[2] / PAGE
    path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def page(text: str) -> str:
    """The page's text with the made part made anew. Raises ValueError where a mark is missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has no {BEGIN.strip()} … {END.strip()}")
    rows = family_rows()
    return f"{before}{BEGIN}{_limits(rows)}\n{''.join(map(_section, rows))}{END}{after}"


def _limits(rows: list[FamilyRow]) -> str:
    lines = [
        "| family | answers | options | levels | questions | tokens a prompt | adapter |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| [`{row.name}`](#{row.name}) | {row.answers} | {row.options} | {row.levels} "
            f"| {row.limits.max_questions:,} | {row.limits.max_prompt_tokens:,} "
            f"| {row.about.adapter} |"
            for row in rows
        ),
    ]
    return "\n".join(lines) + "\n"


def _section(row: FamilyRow) -> str:
    about, limits = row.about, row.limits
    more = [
        f"{most:,} {what}"
        for most, what in (
            (limits.max_prompts, "prompts"),
            (limits.max_request_tokens, "prompt tokens"),
        )
        if most is not None
    ]
    facts = [
        ("prompts", about.prompts),
        ("labels", about.labels),
        ("empty text", about.empty),
        ("a request", f"at most {' and '.join(more)}" if more else ""),
        ("spellings", "`bool`, `question`, `options` and lists too" if limits.aliases else ""),
        ("files", about.folder),
    ]
    shown = "".join(f"- {name}: {text}\n" for name, text in facts if text)
    commands = "\n".join(map(_commands, about.releases))
    return f"## {row.name}\n\n{row.what}\n\n{shown}\n```\n{commands}```\n\n"


def _commands(release: Release) -> str:
    """How to obtain, serve and convert a release."""
    folder = release.name.rpartition("/")[2]
    lines, beside = [_download(release.name, release.revision)], ""
    if release.base is not None and release.base_revision is not None:
        lines.append(_download(release.base, release.base_revision))
        beside = f" --base {release.base.rpartition('/')[2]}"
    lines += [
        f"adjudge serve {folder}{beside}",
        f"adjudge convert {folder} {folder}-whole{beside}",
    ]
    return "".join(f"{line}\n" for line in lines)


def _download(name: str, revision: str) -> str:
    return f"hf download {name} --revision {revision} --local-dir {name.rpartition('/')[2]}"


if __name__ == "__main__":
    sys.exit(main())
