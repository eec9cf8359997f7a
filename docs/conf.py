"""How Sphinx makes the pages: `make docs`. The reference comes from the docstrings."""

import importlib.metadata
import re

project = "pfftjax"
author = "The pfftjax developers"
copyright = author
release = importlib.metadata.version("pfftjax")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"pfftjax {release}"
html_copy_source = False

# Docstrings name things in single backticks; what Sphinx knows becomes a link.
default_role = "py:obj"
add_module_names = False
autodoc_typehints = "none"
napoleon_numpy_docstring = False

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3


def _files_outside(app, docname, source):
    """Let links to Markdown that is no page lead to the file."""
    source[0] = re.sub(r"\]\(((?:\.\./)+(?:examples|cpp)/[^)]*\.md)\)", r"](path:\1)", source[0])


def setup(app):
    """Called by Sphinx."""
    app.connect("source-read", _files_outside)
