"""How Sphinx makes the site: `make docs`. The reference comes from the docstrings."""

import collections
import importlib.metadata
import importlib.util
import pathlib
import re
import sys

import jax
import jax.lax
from docutils import nodes
from typing_extensions import TypeAliasType

HERE = pathlib.Path(__file__).parent

project = "pfftjax"
author = "The pfftjax developers"
copyright = author
release = importlib.metadata.version("pfftjax")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_codeautolink",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"pfftjax {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}

# Docstrings name things in single backticks; what Sphinx knows becomes a link.
default_role = "py:obj"
add_module_names = False
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False

# Prompts, and what is printed, are not copied with a program.
copybutton_exclude = ".linenos, .gp, .go"
# The names of ours in a program lead to the reference; the programs of a page are one.
codeautolink_concat_default = True
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3


def _named_kinds_of_arrays():
    """Let signatures name the kinds of arrays that docs/reference.md explains.

    They are aliases, and Sphinx would print definitions of up to three lines. So it gets aliases
    that know their names, which the package finds in place of its own when it is imported.
    """
    name = "pfftjax._runtime.arrays"
    path = HERE.parent / f"{name.replace('.', '/')}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    table = (HERE / "reference.md").read_text()
    for kind in re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE):
        setattr(module, kind, TypeAliasType(kind, getattr(module, kind)))
    sys.modules[name] = module


def _familiar_names(app, what, name, obj, options, signature, returns):
    """Leave out modules that are JAX's own, and name functions as a program does: Sphinx does not
    understand a signature with "<function name>" in it.
    """

    def short(text):
        return re.sub(r"<function (\w+)[^>]*>", r"\1", text.replace("jaxlib._jax.Array", "Array"))

    return signature and short(signature), returns and short(returns)


def _kinds_without_a_module(app, doctree, docname):
    """Name kinds of arrays without this file, which is where Sphinx thinks that they are from."""
    for text in list(doctree.findall(nodes.Text)):
        if "__main__." in text:
            text.parent.replace(text, nodes.Text(re.sub(r"~?__main__\.", "", text)))


def _is_in_the_first_column(node):
    """Whether it is in a table, there."""
    while node is not None and not isinstance(node, nodes.entry):
        node = node.parent
    return node is not None and node.parent.index(node) == 0


def _links_to_the_reference(app, doctree, docname):
    """Let names in the text of a page lead to where the reference has them.

    These are all names with a module or a class before them. Without one they are functions and
    classes of which there is one, and which JAX does not have as well. In the first column of a
    page for those who come from another tool, names are that tool's.
    """
    objects = app.env.domains["py"].objects
    meant = collections.defaultdict(set)
    for full, its in objects.items():
        parts = full.split(".")
        for first in range(1, len(parts)):
            name = ".".join(parts[first:])
            is_of_its_own = its.objtype in ("class", "exception", "function")
            is_of_jax = hasattr(jax, name) or hasattr(jax.lax, name)
            if not its.aliased and ("." in name or (is_of_its_own and not is_of_jax)):
                meant[name].add(full)
    for literal in list(doctree.findall(nodes.literal)):
        name = re.fullmatch(r"(?:pfftjax\.)?([A-Za-z_][\w.]*)(?:\(.*\))?", literal.astext())
        found = meant.get(name[1], set()) if name else set()
        if docname.startswith("coming-from") and _is_in_the_first_column(literal):
            continue
        if len(found) != 1 or isinstance(literal.parent, (nodes.reference, nodes.title)):
            continue
        (full,) = found
        uri = app.builder.get_relative_uri(docname, objects[full].docname)
        link = nodes.reference("", "", literal.deepcopy(), internal=True, reftitle=full)
        link["refuri"] = f"{uri}#{objects[full].node_id}"
        literal.parent.replace(literal, link)


def _links_to_files(app, docname, source):
    """Let links lead to Markdown that is no page, and to the page that Sphinx does not make."""
    text = re.sub(r"\]\(((?:\.\./)+(?:examples|cpp)/[^)]*\.md)\)", r"](path:\1)", source[0])
    viewer = r"\[([^\]]+)\]\(((?:\.\./)*_static/viewer/index\.html)\)"
    source[0] = re.sub(viewer, r'<a href="\2">\1</a>', text)


def setup(app):
    """Called by Sphinx."""
    _named_kinds_of_arrays()
    app.connect("source-read", _links_to_files)
    app.connect("autodoc-process-signature", _familiar_names)
    app.connect("doctree-resolved", _kinds_without_a_module)
    app.connect("doctree-resolved", _links_to_the_reference)
