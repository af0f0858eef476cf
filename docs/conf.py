"""The site: `make docs` turns these Markdown pages, the notebooks and the docstrings into build/site.

The pages are plain Markdown and know nothing of the site. What only the site needs is made here, in
docs/generated (ignored by git): the notebooks as pages, a page of the API for each room, and the navigation,
which is read off the lists of index.md.
"""

import json
import re
from importlib import import_module
from pathlib import Path

from sphinx.application import Sphinx

import gmmseg

DOCS = Path(__file__).parent
ROOT = DOCS.parent
GENERATED = DOCS / "generated"
ROOMS = {
    "gmmseg": "The names to begin with",
    "gmmseg.mixture": "The method: mixtures and EM, on points and labels",
    "gmmseg.models": "Networks, heads, conversion",
    "gmmseg.data": "Data sets and transforms",
    "gmmseg.training": "What a training loop needs",
    "gmmseg.inference": "Predictions, thresholds, monitoring, export",
    "gmmseg.evaluation": "Metrics",
    "gmmseg.run": "The workflows behind the commands",
}
"""Module -> heading of its page."""

project = "gmmseg"
version = release = gmmseg.__version__
author = "The gmmseg authors"
copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["Thumbs.db"]
myst_heading_anchors = 4
default_role = "literal"  # what docstrings put between single backticks is code
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 90
add_module_names = False
toc_object_entries = False  # the headings of a page suffice
highlight_language = "none"  # commands and trees of folders; Python is named
html_theme = "furo"
html_title = f"gmmseg {version}"
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"top_of_page_buttons": []}
pygments_style = "friendly"
pygments_dark_style = "monokai"


def write(path: Path, text: str) -> None:
    """Write a generated page; one that has not changed keeps its date, so that Sphinx leaves it alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def notebook_page(path: Path) -> str:
    """The cells of a notebook one after the other, code in fences; links lead to the pages of others."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = (("".join(cell["source"]), cell["cell_type"]) for cell in cells)
    parts = [text if kind == "markdown" else f"```python\n{text}\n```" for text, kind in sources]
    place = f"*This page is the notebook `{path.relative_to(ROOT)}`: run it there.*"
    return "\n\n".join([parts[0], place, *parts[1:]]).replace(".ipynb)", ".md)") + "\n"


def api_page(module: str, heading: str) -> str:
    """A page with every public name of a module."""
    names = [name for name in import_module(module).__all__ if not name.startswith("__")]
    parts = [f"## {name}\n\n{described(module, name)}" for name in sorted(names, key=str.lower)]
    return "\n\n".join([f"# {module}\n\n{heading}.", *parts]) + "\n"


def described(module: str, name: str) -> str:
    """What Sphinx is to take from a docstring; of a constant, which has none, the words in it."""
    value = getattr(import_module(module), name)
    if isinstance(value, dict | tuple):
        return f"Holds {', '.join(f'`{key}`' for key in value)}."
    kind = "autoclass" if isinstance(value, type) else "autofunction"
    # A name that several rooms share is described in each of them, and indexed once.
    shared = module != "gmmseg" and (name in gmmseg.__all__ or module == "gmmseg.run")
    option = "   :no-index:\n" if shared else ""
    return f"```{{eval-rst}}\n.. {kind}:: {module}.{name}\n{option}```"


def api_index() -> str:
    rows = "\n".join(f"- [{module}]({module}.md): {heading}" for module, heading in ROOMS.items())
    return f"# Python API\n\nMade from the docstrings of version {version}.\n\n{rows}\n"


def write_generated(app: Sphinx) -> None:
    """Everything in docs/generated, before Sphinx looks for pages."""
    for path in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")):
        write(GENERATED / "notebooks" / f"{path.stem}.md", notebook_page(path))
    for module, heading in ROOMS.items():
        write(GENERATED / "api" / f"{module}.md", api_page(module, heading))
    write(GENERATED / "api" / "index.md", api_index())
    for name in ("CONTRIBUTING", "CHANGELOG"):
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
        write(GENERATED / f"{name.lower()}.md", re.sub(r"\]\((?:docs/)(?=[^)]+\.md)", "](../", text))


def lead_to_the_site(text: str) -> str:
    """Links to files outside docs/ as links to the pages made of them."""
    text = re.sub(r"\]\(\.\./examples/notebooks/(\w+)\.ipynb\)", r"](/generated/notebooks/\1.md)", text)
    text = re.sub(
        r"\]\(\.\./(CONTRIBUTING|CHANGELOG)\.md\)", lambda m: f"](/generated/{m[1].lower()}.md)", text
    )
    return text.replace("](../src/gmmseg/__init__.py)", "](/generated/api/index.md)")


def for_the_site(app: Sphinx, page: str, source: list[str]) -> None:
    """Links that lead to the site's own pages and, on index pages, the navigation."""
    if not page.startswith("generated/"):
        source[0] = lead_to_the_site(source[0])
    if Path(page).name == "index":
        source[0] += f"\n\n{navigation(source[0])}\n"


def navigation(index: str) -> str:
    """A hidden table of contents for each list of links on an index page: the sidebar of the site."""
    parts = re.split(r"^## (.+)$", index, flags=re.MULTILINE)
    sections = [("", parts[0]), *zip(parts[1::2], parts[2::2])]
    trees = []
    for caption, text in sections:
        pages = re.findall(r"\]\((?!https?:)([^)#]+)\.md\)", text)
        if pages:
            head = f":caption: {caption}\n" if caption else ""
            trees.append("```{toctree}\n:hidden:\n" + head + "\n" + "\n".join(pages) + "\n```")
    return "\n\n".join(trees)


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", write_generated)
    app.connect("source-read", for_the_site)
