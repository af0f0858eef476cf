"""Every Python block in README and docs runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ELSEWHERE = {"export.md"}  # its blocks need a model: tests/run/test_export.py runs them beside one
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


WITH_BLOCKS = [page for page in PAGES if blocks(page) and page.name not in ELSEWHERE]


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run_one_after_the_other(page, tmp_path):
    command = [sys.executable, "-c", "\n".join(blocks(page))]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
