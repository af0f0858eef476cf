"""The site: every page is in its navigation, and what is built needs nothing from elsewhere."""

import inspect
import re
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="the site needs the extra docs")
DOCS = Path(__file__).parents[1] / "docs"
# What a browser fetches by itself; links that a reader may follow are none of it.
FETCHED = r"""<(?:script|img|iframe|source|audio|video)[^>]+src=["']?(?:https?:)?//
|<link[^>]+rel=["']?(?:stylesheet|icon|preload|preconnect)[^>]+href=["']?(?:https?:)?//
|@import\s|url\(["']?(?:https?:)?//"""


@pytest.fixture(scope="module")
def conf():
    return runpy.run_path(str(DOCS / "conf.py"))


def test_every_page_and_notebook_is_in_the_navigation(conf):
    index = conf["lead_to_the_site"]((DOCS / "index.md").read_text(encoding="utf-8"))
    listed = re.findall(r"^/?[\w/]+$", conf["navigation"](index), re.MULTILINE)
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    notebooks = {path.stem for path in (DOCS.parent / "examples" / "notebooks").glob("*.ipynb")}
    expected = pages | {f"/generated/notebooks/{name}" for name in notebooks}
    expected |= {f"/generated/{name}" for name in ("api/index", "contributing", "changelog")}
    assert sorted(listed) == sorted(expected)


def test_every_public_name_is_described(conf):
    for module in conf["ROOMS"]:
        page = conf["api_page"](module, "Heading")
        for name in set(import_module(module).__all__) - {"__version__"}:
            value = getattr(import_module(module), name)
            assert f"## {name}\n" in page
            assert isinstance(value, dict | tuple) or inspect.getdoc(value), f"{module}.{name}"


def test_a_notebook_becomes_a_page_and_links_to_others_lead_to_theirs(conf):
    folder = DOCS.parent / "examples" / "notebooks"
    for path in folder.glob("*.ipynb"):
        for target in re.findall(r"\]\((?!https?:)([^)]+)\)", conf["notebook_page"](path)):
            assert target.endswith(".md")
            assert (folder / target).with_suffix(".ipynb").is_file()
    page = conf["notebook_page"](folder / "04_own_training_loop.ipynb")
    assert page.startswith("# The default recipe in a training loop of your own\n")
    assert "```python\nLIKELIHOOD_WEIGHT = 0.3\n" in page


@pytest.mark.slow
def test_the_site_is_built_without_warnings_and_fetches_nothing(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", DOCS, tmp_path]
    result = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stderr
    pages = [*tmp_path.rglob("*.html"), *tmp_path.rglob("*.css")]
    assert len(pages) > 30
    for page in pages:
        found = re.search(FETCHED, page.read_text(encoding="utf-8"), re.VERBOSE)
        assert found is None, f"{page.name}: {found[0]}"
    assert "gmmseg.fit" in (tmp_path / "generated/api/gmmseg.html").read_text(encoding="utf-8")
    assert (tmp_path / "searchindex.js").stat().st_size > 10_000
