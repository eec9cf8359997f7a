"""Links of the site that lead nowhere: files that are missing, and places that are not in them.

python -m tools.links docs/_build
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
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.places.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


def dead_links(site: pathlib.Path) -> tuple[list[str], int]:
    """What is wrong, and how many links were followed."""
    pages = {path.resolve(): _Page(path.read_text()) for path in site.rglob("*.html")}
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
    dead, count = dead_links(pathlib.Path(sys.argv[1]))
    print(*dead, f"{count} links, {len(dead)} of them dead", sep="\n")
    return 1 if dead or not count else 0


if __name__ == "__main__":
    sys.exit(main())
