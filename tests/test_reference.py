"""The documentation: everything public is in it, and its links lead somewhere."""

import re

import pytest

import pfftjax
from benchmarks import tables
from pfftjax._runtime.options import VARIABLES
from pfftjax._runtime.support import NEWEST_JAX
from tools.launcher import ROOT
from tools.links import dead_links, pages_of

DOCS = ROOT / "docs"
# These are parts of other objects, or functions that make them.
NOT_FOR_USERS = {"collectives": {"Pending"}}
# The modules that users name; those of fft, pencils and autodiff are pfftjax's own names.
MODULES = ("collectives", "io", "nufft", "observables", "pm", "sampling", "sharded", "spectral")
OURS = re.compile(
    rf"(?<![\w./])((?:pfftjax\.)?(?:{'|'.join(MODULES)})\.\w+|pfftjax\.\w+)(?![\w/])"
)


def _documented():
    """Full names of what the pages have `autofunction` and `autoclass` for."""
    names = set()
    for page in DOCS.rglob("*.md"):
        module = ""
        for directive, name in re.findall(
            r"^\.\. (currentmodule|autofunction|autoclass):: (\S+)", page.read_text(), re.MULTILINE
        ):
            if directive == "currentmodule":
                module = name
            else:
                names.add(name if name.startswith("pfftjax.") else f"{module}.{name}")
    return names


@pytest.mark.parametrize("module", ["", *MODULES])
def test_every_public_name_is_in_the_reference(module):
    path = f"pfftjax.{module}".rstrip(".")
    public = {
        name
        for name, value in vars(getattr(pfftjax, module) if module else pfftjax).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("pfftjax")
    }
    public -= NOT_FOR_USERS.get(module, set())
    assert public
    missing = sorted(public - {name.removeprefix(f"{path}.") for name in _documented()})
    assert not missing


def test_help_names_everything_public():
    """`help` lists no names that a package has imported."""
    public = [
        name
        for name, value in vars(pfftjax).items()
        if not name.startswith("_")
        and getattr(value, "__module__", value.__name__).startswith("pfftjax")
    ]
    assert len(public) > 40
    missing = [name for name in public if not re.search(rf"\b{name}\b", pfftjax.__doc__)]
    assert missing == []


def test_the_newest_jax_is_that_of_the_readme():
    newest = ".".join(map(str, NEWEST_JAX))
    assert re.search(rf"JAX \d[\d.]* to {re.escape(newest)},", (ROOT / "README.md").read_text())


def test_every_kind_of_array_is_explained():
    """Signatures on the site have these names (docs/conf.py)."""
    source = (ROOT / "pfftjax" / "_runtime" / "arrays.py").read_text()
    kinds = set(re.findall(r"^(\w+): TypeAlias = ", source, re.MULTILINE))
    table = (DOCS / "reference.md").read_text().partition("## Kinds of arrays")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == kinds - {"PyTree"}


CITED = re.compile(
    r"\b(?:de )?([A-Z][a-zäöüé]+)(?: et al\.|(?:, [A-Z]\w+)*,? & [A-Z]\w+)?(?:'s)? "
    r"\(?((?:19|20)\d\d)(?=[,;:)])"
)
# Words before a year that are no authors.
NO_AUTHORS = {"November", "October", "Planck", "Group"}


def test_every_paper_is_in_the_bibliography():
    """Docstrings, comments and pages cite by author and year."""
    listed = (DOCS / "bibliography.md").read_text()
    entries = {
        (name, year)
        for name, year in re.findall(
            r"^\| (?:(?:de|van) )?(\w+)[^|]*?\((\d{4})\)\.", listed, re.MULTILINE
        )
    }
    assert len(entries) > 30
    folders = ((ROOT / "pfftjax", "*.py"), (ROOT / "cpp", "*.[ch]*"), (ROOT / "examples", "*.py"))
    files = [path for folder, end in (*folders, (DOCS, "*.md")) for path in folder.rglob(end)]
    # In comments and docstrings a citation may go over two lines.
    joined = {path: re.sub(r"\s*\n\s*(?:#|//)?\s*", " ", path.read_text()) for path in files}
    built = DOCS / "_build"
    cited = {
        (name, year, path)
        for path, text in joined.items()
        if built not in path.parents and path.name != "bibliography.md"
        for name, year in CITED.findall(text)
        if name not in NO_AUTHORS
    }
    assert len({(name, year) for name, year, _ in cited}) > 25
    missing = {entry for entry in cited if entry[:2] not in entries}
    assert missing == set()


def test_errors_that_the_faq_quotes_are_raised():
    """Its texts are parts of those in the sources, whose literals go over several lines."""
    page = (DOCS / "sharp-bits.md").read_text()
    table = page.partition("## Texts of errors")[2].partition("\n## ")[0]
    texts = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    assert len(texts) > 5
    files = [*(ROOT / "pfftjax").rglob("*.py"), *(ROOT / "cpp").rglob("*.[ch]*")]
    joined = [re.sub(r'"\s*\n\s*f?"', "", path.read_text()) for path in files]
    for text in texts:
        assert any(text in source for source in joined), text


def _anchors(path):
    """Those that GitHub and MyST make of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


def test_links_lead_somewhere():
    """Those of Sphinx's pages too, which `make docs` does not know as files."""
    pages = [*ROOT.glob("*.md"), ROOT / "cpp" / "README.md", *DOCS.rglob("*.md")]
    for page in pages:
        text = page.read_text()
        cards = re.findall(r"^:link: (\S+)(\n:link-type: doc)?", text, re.MULTILINE)
        targets = [name + ".md" if is_page else name for name, is_page in cards]
        for target in [*targets, *re.findall(r"\]\((?!http)([^)\s]+)\)", text)]:
            name, _, anchor = target.partition("#")
            file = page.parent / name if name else page
            assert file.exists(), (page, target)
            assert not anchor or anchor in _anchors(file), (page, target)


def _is_public(path):
    value = pfftjax
    for name in path.removeprefix("pfftjax.").split("."):
        if name.startswith("_") or name == "internal" or not hasattr(value, name):
            return False
        value = getattr(value, name)
    return True


def test_names_in_pages_are_public():
    """Those of pfftjax in code, in sentences and tables; programs are run elsewhere."""
    pages = [ROOT / "README.md", *DOCS.glob("*.md"), *DOCS.glob("[a-z]*/*.md")]
    named = {
        (path, page)
        for page in pages
        for code in re.findall(r"`([^`\n]+)`", page.read_text())
        for path in OURS.findall(code)
        if not path.endswith((".py", ".cc"))
    }
    assert len({path for path, _ in named}) > 80
    assert {(path, page) for path, page in named if not _is_public(path)} == set()


# What users of other tools ask for first, in their words: the examples of mpi4py-fft and jax-fli,
# the cookbook of nbodykit, the README and the parameter files of FastPM.
ASKED_FIRST = {
    "mpi4py-fft": (
        "dtype=complex",
        "slab=True",
        "Subcomm",
        "axes=(1, 2)",
        "transforms=",
        "padding=",
        "newDistArray",
        "local_slice",
        "fftfreq",
        "redistribute",
        "write(",
    ),
    "nbodykit": (
        "BigFileCatalog",
        "ArrayCatalog",
        'cat["Velocity"]',
        "VelocityOffset",
        "interlaced=True",
        "compensated=True",
        "weight=",
        'mode="1d"',
        'mode="2d"',
        "poles=",
        "second=",
        "FOF(",
        "find_features",
        "LinearMesh",
        "FFTRecon",
        "TaskManager",
    ),
    "fastpm": (
        "`nc`",
        "boxsize",
        "time_step",
        "output_redshifts",
        "read_powerspectrum",
        "sigma8",
        "random_seed",
        "read_whitenoisek",
        "remove_cosmic_variance",
        "f_nl",
        "pm_nc_factor",
        "np_alloc_factor",
        "force_mode",
        "kernel_type",
        "write_powerspectrum",
        "write_snapshot",
        "write_fof",
        "lc_usmesh_tiles",
        "libfastpm",
    ),
    "jax-fli": (
        "field_sharding",
        "gaussian_initial_conditions",
        "lpt(",
        "nbody(",
        "BullFrog",
        "adjoint=",
        "paint_order",
        "OnionTiler",
        "born(",
        "power(",
        "`io`",
    ),
}


@pytest.mark.parametrize("tool", ASKED_FIRST)
def test_what_is_asked_first_is_found_within_two_clicks(tool):
    """The first leads from the first page to that of the tool, which says it or has a link."""
    name = f"coming-from-{tool}"
    sidebar = (DOCS / "index.md").read_text().partition(":caption: Coming from")[2]
    assert name in sidebar.partition("```")[0].split()
    assert f"docs/{name}.md" in (ROOT / "README.md").read_text()
    page = (DOCS / f"{name}.md").read_text()
    rows = re.findall(r"^\| (.*?) \| (.*?) \| .*\|$", page, re.MULTILINE)
    for word in ASKED_FIRST[tool]:
        answers = [answer for question, answer in rows if word in question]
        # What stands for it here is code, or a link, which a test above follows.
        assert any("`" in answer or "](" in answer for answer in answers), word


def test_dead_links_of_the_site_are_found(tmp_path):
    """As `make docs` looks for them."""
    (tmp_path / "a.html").write_text("<h1 id='top'></h1><a href='b.html#there'></a>")
    (tmp_path / "b.html").write_text("<p id='there'><a href='a.html#top'>a</a><img src='c.png'>")
    dead, count = dead_links(pages_of(tmp_path), tmp_path)
    assert (dead, count) == (["b.html: no file c.png"], 3)
    (tmp_path / "a.html").write_text("<a href='b.html#here'></a><a href='https://elsewhere'></a>")
    dead, _ = dead_links(pages_of(tmp_path), tmp_path)
    assert sorted(dead)[0] == "a.html: no place b.html#here"
    assert len(dead) == 3


def test_files_that_the_design_names_are_there():
    """The pages of the design name them by paths; cpp/README.md has every file of the core."""
    for page in (DOCS / "design").glob("*.md"):
        for path in re.findall(r"`((?:\w+/)+[\w.]*)`", page.read_text()):
            assert path.startswith("xla/") or (ROOT / path).exists(), (page, path)
    core = ROOT / "cpp"
    files = {path.name for path in core.rglob("*.*")} - {"README.md"}
    named = set(re.findall(r"`(\w+\.\w+)`", (core / "README.md").read_text()))
    assert {name for name in named - files if not name.endswith(".so")} == set()
    # A header stands for the file that has its code.
    stems = {name.partition(".")[0] for name in named}
    assert {name for name in files if name.partition(".")[0] not in stems} == set()


def test_every_environment_variable_is_in_the_table():
    table = (ROOT / "pfftjax" / "_runtime" / "options.py").read_text().split('"""')[1]
    assert set(re.findall(r"``(PFFTJAX_\w+)", table)) == set(VARIABLES.values())


def test_the_profile_that_the_docs_show_is_the_one_that_was_measured():
    measured = ROOT / "benchmarks" / "results" / "profile-nbody-64-2-ranks.txt"
    assert measured.read_text() in (DOCS / "tuning.md").read_text()


@pytest.mark.parametrize("page", tables.TABLES, ids=lambda page: page.name)
def test_tables_are_those_of_the_results(page):
    """`python -m benchmarks.tables` writes them."""
    assert tables.with_table(page) == page.read_text()
