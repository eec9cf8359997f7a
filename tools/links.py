"""Links of the site that lead nowhere: files that are missing, and places that are not in them.

python -m tools.links docs/_build

Names of ours in programs and in texts must lead to the reference on at least one page, which says
that what makes these links (docs/conf.py) still does.
"""

import html.parser
import pathlib
import sys
import urllib.parse

# Pages that Sphinx makes by itself link to places that a script fills in.
WITHOUT = {"genindex.html", "search.html"}


class _Page(html.parser.HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []
        self.names: list[str] = []  # what links to the reference are made of
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.places.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)
            elif name == "class" and value and value.startswith("sphinx-codeautolink-a"):
                self.names.append("program")
            elif name == "title" and value and value.startswith("pfftjax."):
                self.names.append("text")


def pages_of(site: pathlib.Path) -> dict[pathlib.Path, _Page]:
    return {path.resolve(): _Page(path.read_text()) for path in site.rglob("*.html")}


def dead_links(pages: dict[pathlib.Path, _Page], site: pathlib.Path) -> tuple[list[str], int]:
    """What is wrong, and how many links were followed."""
    dead, count = [], 0
    for path, page in pages.items():
        for link in page.links if path.name not in WITHOUT else []:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                continue
            count += 1
            name = urllib.parse.unquote(url.path)
            file = (path.parent / name).resolve() if name else path
            place = urllib.parse.unquote(url.fragment)
            if not file.exists():
                dead.append(f"{path.relative_to(site.resolve())}: no file {link}")
            elif place and file in pages and place not in pages[file].places:
                dead.append(f"{path.relative_to(site.resolve())}: no place {link}")
    return dead, count


def main() -> int:
    site = pathlib.Path(sys.argv[1])
    pages = pages_of(site)
    dead, count = dead_links(pages, site)
    made = {name for page in pages.values() for name in page.names}
    for kind in sorted({"program", "text"} - made):
        dead.append(f"no name in a {kind} leads to the reference")
    print(*dead, f"{count} links, {len(dead)} wrong", sep="\n")
    return 1 if dead or not count else 0


if __name__ == "__main__":
    sys.exit(main())
