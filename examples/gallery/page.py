"""Writes docs/gallery.md: text, code and numbers of each entry.

    python examples/gallery/page.py

The text is the docstring of the entry, the numbers are those of benchmarks/results/gallery,
which `make gallery` writes with the pictures. tests/jobs/test_gallery.py fails if the page is
not theirs.
"""

import ast
import json
import pathlib
import re

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "gallery.md"
PICTURES = ROOT / "docs" / "pictures" / "gallery"
RECORDS = ROOT / "benchmarks" / "results" / "gallery"

# Each entry, and the part of its program that the page shows.
ENTRIES = {
    "universe": "main",
    "haloes": "main",
    "reconstruction": "Inference.loss",
    "posterior": "sampled",
    "gradients": "main",
    "paired": "main",
    "redshift": "main",
    "light_cone": "main",
    "nested": "main",
    "turbulence": "Flow.rate",
    "vorticity": "main",
    "schroedinger": "Packet.flight",
    "poisson": "solve",
    "sizes": "main",
    "layouts": "ranges",
}

HEAD = """# Gallery

<!-- Made by `make gallery`; the text is in examples/gallery. -->

Programs of one page each, what they draw, and what they check. All are in
`examples/gallery`, and run by themselves,

    mpirun -n 2 python examples/gallery/poisson.py --size 64 --out pictures

on any number of ranks; the tests run each of them at a small size. `make gallery` draws the
pictures again. Times include compiling and drawing. The machine had two cores, which those of more
than a minute shared with up to fifty other processes: alone they take a small part of that time.

"""


def excerpt(source: str, name: str) -> str:
    """The text of a function, or of a method, as Class.method, without its docstring."""
    nodes: list[ast.stmt] = ast.parse(source).body
    found: ast.stmt | None = None
    for part in name.split("."):
        found = next(node for node in nodes if getattr(node, "name", None) == part)
        nodes = getattr(found, "body", [])
    assert found is not None
    assert found.end_lineno is not None
    lines = source.splitlines()[found.lineno - 1 : found.end_lineno]
    indent = len(lines[0]) - len(lines[0].lstrip())
    first = getattr(found, "body", [None])[0]
    if isinstance(first, ast.Expr) and first.end_lineno is not None:
        del lines[first.lineno - found.lineno : first.end_lineno - found.lineno + 1]
    return "\n".join(line[indent:] for line in lines)


def pictures(name: str) -> list[str]:
    """The files of an entry: the movie first."""
    found = sorted(PICTURES.glob(f"{name}.*"), key=lambda path: path.suffix != ".webp")
    return [path.name for path in found]


def duration(seconds: float) -> str:
    """As people say it."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"


def entry(name: str) -> str:
    """One section of the page."""
    source = (HERE / f"{name}.py").read_text()
    title, text = (ast.get_docstring(ast.parse(source)) or "").split("\n\n", 1)
    title = title.rstrip(".")
    record = json.loads((RECORDS / f"{name}.json").read_text())
    shown = "\n\n".join(f"![{title}](pictures/gallery/{file})" for file in pictures(name))
    facts = "\n".join(
        f"| {fact['what']} | {fact['value']:.2g} | {fact['bound']:.2g} |"
        for fact in record["facts"]
    )
    spent = duration(record["seconds"])
    if "core_seconds" in record:
        spent += f", {duration(record['core_seconds'])} of one core"
    ranks = "1 rank" if record["ranks"] == 1 else f"{record['ranks']} ranks"
    return f"""## {title}

{shown}

{text}

| size {record["size"]}, on {ranks}, in {spent} | found | at most |
|---|---|---|
{facts}

[{name}.py](../examples/gallery/{name}.py), in part:

```py
{excerpt(source, ENTRIES[name])}
```
"""


def page() -> str:
    """The whole page."""
    titles = [
        re.sub(r'^"""|\.$', "", (HERE / f"{n}.py").read_text().split("\n")[0]) for n in ENTRIES
    ]
    anchors = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
    index = "\n".join(f"- [{t}](#{a})" for t, a in zip(titles, anchors, strict=True))
    return HEAD + index + "\n\n" + "\n".join(entry(name) for name in ENTRIES)


if __name__ == "__main__":
    PAGE.write_text(page())
