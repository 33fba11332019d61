"""Every relative link of the documents leads somewhere: to a file, and to a heading where it names one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
DOCUMENTS += sorted((ROOT / "docs").rglob("*.md"))

_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|\b(?:src|href)=[\"']([^\"']+)[\"']")
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)  # https:, mailto: and the like
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)


def links(text: str) -> list[str]:
    """The targets of links and images, without those that lead out of the repository."""
    found = (match[1] or match[2] for match in _LINK.finditer(_CODE.sub("", text)))
    return [target for target in found if not _ELSEWHERE.match(target)]


def anchors(text: str) -> set[str]:
    """The names that headings get when they are rendered."""
    headings = _HEADING.findall(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(document: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    file = document if not path else (document.parent / path).resolve()
    inside = file.exists() and file.is_relative_to(ROOT)
    return not inside or (bool(anchor) and file.suffix == ".md" and anchor not in anchors(file.read_text("utf-8")))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(document: Path) -> None:
    assert [target for target in links(document.read_text("utf-8")) if broken(document, target)] == []


def test_links_are_found_and_code_is_no_link() -> None:
    text = (
        "[a](docs/a.md) ![b](b.svg 'B') <img src=\"c.svg\"> [d](https://d.example) `[e](e.md)`\n```\n[f](f.md)\n```\n"
    )
    assert links(text) == ["docs/a.md", "b.svg", "c.svg"]


def test_a_link_to_nothing_is_broken() -> None:
    readme = ROOT / "README.md"
    assert broken(readme, "docs/nothing.md")
    assert broken(readme, "docs/routing.md#no-such-heading")
    assert not broken(readme, "docs/routing.md#the-breaker")
    assert broken(readme, "../outside.md")
