"""Opens the layout viewer in a headless browser: `make viewer`.

Its arithmetic is part of the tests (tests/fft/test_layouts_viewer.py); here the page itself is
used as a reader would use it. Pictures of it, and of the landing page of the site, are left in a
folder to be looked at.
"""

import argparse
import itertools
import pathlib
import shutil
import sys

from playwright.sync_api import Browser, Locator, Page, sync_playwright

from tools.launcher import ROOT

VIEWER = ROOT / "docs" / "_static" / "viewer" / "index.html"
LANDING = ROOT / "docs" / "_build" / "index.html"
WIDTHS = (1280, 390)
PATIENCE = 120_000  # milliseconds: the machine may be busy
NARROWEST_TARGET = 24  # pixels: WCAG 2.2, 2.5.8


def require(condition: object, message: str) -> None:
    if not condition:
        sys.exit(f"viewer: {message}")


def opened(browser: Browser, url: str, width: int, scheme: str) -> Page:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(PATIENCE)
    page.on("pageerror", lambda error: require(False, f"{url}: {error}"))
    page.goto(url)
    return page


def table(page: Page) -> list[list[str]]:
    rows = page.locator("#steps tbody tr")
    return [rows.nth(i).locator("td").all_inner_texts() for i in range(rows.count())]


def set_to(page: Page, **values: object) -> None:
    for name, value in values.items():
        field = page.locator(f"#{name}")
        if name in ("dtype", "layout"):
            field.select_option(str(value))
        else:
            field.fill(str(value))


def name_of(field: Locator) -> str:
    return field.evaluate("e => [...(e.labels || [])].map(l => l.innerText).join() || e.innerText")


def check_numbers(page: Page) -> None:
    """The numbers of docs/layouts.md, which its program prints."""
    set_to(page, rows=2, columns=2, rank=0, n0=512, n1=512, n2=512)
    text = (ROOT / "docs" / "layouts.md").read_text()
    shown = table(page)
    require(len(shown) == 6, f"the table has {len(shown)} rows")
    for row in shown:
        for cell in row:
            require(cell in text, f"docs/layouts.md does not have {cell!r}")
    require("128.5 MiB" in page.locator("#summary").inner_text(), "the bytes that are sent")
    require("258.0 MiB" in page.locator("#summary").inner_text(), "the bytes of an operation")
    require("real=True" in page.locator("#program").inner_text(), "the program")
    before = page.url
    set_to(page, n2=25, dtype="complex64", layout="natural")
    require(page.url != before, "the address does not follow the settings")
    require(len(table(page)) == 8, "the natural order takes two more exchanges")
    page.goto("about:blank")
    page.goto(before)
    require(table(page) == shown, "the address does not bring a view back")


def check_keyboard(page: Page) -> None:
    """All settings are reached by the tabulator, have a name, and follow the arrow keys."""
    fields = page.locator("input:visible, select:visible, button:visible, summary")
    page.locator("body").click(position={"x": 1, "y": 1})
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    for i in range(fields.count()):
        field = fields.nth(i)
        require(name_of(field), f"field {i} has no name")
        key = field.evaluate("e => e.id || e.tagName")
        require(key in reached, f"{key} is not reached by the keyboard")
        box = field.bounding_box()
        smallest = min(box["width"], box["height"]) if box else 0
        require(smallest >= NARROWEST_TARGET, f"{key} is too small to be hit")
    set_to(page, rows=3, columns=4, rank=5)
    page.locator("#rank").press("ArrowUp")
    require("row 1" in page.locator(".mine title").first.text_content(), "rank 6 is in row 1")
    require(page.locator("#steps-rank").inner_text() == "6", "arrow keys do not change the rank")


def check_mistakes(page: Page) -> None:
    """What cannot be is said, and the last view stays."""
    set_to(page, rows=2, columns=2, rank=3)
    before = table(page)
    for name, value, said in (
        ("rank", 4, "There is no rank 4"),
        ("n0", 0, "axis 0 must be a whole number"),
        ("n0", "", "axis 0 must be a whole number"),
        ("rows", 10**6, "ranks; take at most"),
    ):
        field = page.locator(f"#{name}")
        kept = field.input_value()
        field.fill(str(value))
        problem = page.locator("#problem")
        require(problem.is_visible() and said in problem.inner_text(), f"{name}={value}: {said}")
        require(field.get_attribute("aria-invalid") == "true", f"{name}={value} is not marked")
        require(table(page) == before, f"{name}={value} changes the table")
        field.fill(kept)
        require(not problem.is_visible(), f"{name}={kept} is refused")


def check_blocks(page: Page) -> None:
    """A block that is clicked is shown; empty ones are not drawn."""
    set_to(page, n0=2, n1=8, n2=8, rows=4, columns=1, rank=0)
    first = page.locator("figure").first
    require(first.locator(".block").count() == 2, "two planes over four ranks are two blocks")
    first.locator(".block").nth(1).locator("polygon").nth(1).click()
    require(page.locator("#rank").input_value() == "1", "a click does not choose the block")
    set_to(page, rank=3)
    require("holds no cell" in first.inner_text(), "rank 3 has no plane")
    set_to(page, n0=512, n1=64, rows=64, columns=32, rank=77)
    require(first.locator(".block").count() == 1, "of many ranks one block is drawn")


def check_search(page: Page) -> None:
    """The search of the site, by the index that Sphinx has made."""
    page.set_default_timeout(PATIENCE)
    page.goto(f"{LANDING.parent.as_uri()}/search.html?q=halo_exchange")
    results = page.locator("#search-results li a")
    results.first.wait_for()
    names = results.all_inner_texts()
    require(any("halo_exchange" in name for name in names), f"searching finds {names}")


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "viewer")
    out = parser.parse_args().out
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    require(browser_path, "no chromium on PATH; on Debian: apt-get install chromium")
    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for check in (check_numbers, check_keyboard, check_mistakes, check_blocks):
            check(opened(browser, VIEWER.as_uri(), WIDTHS[0], "light"))
            print(f"{check.__name__}: passed", flush=True)
        if LANDING.exists():
            check_search(browser.new_page())
            print("check_search: passed", flush=True)
        pages = {"viewer": VIEWER, **({"landing": LANDING} if LANDING.exists() else {})}
        for name, width, scheme in itertools.product(pages, WIDTHS, ("light", "dark")):
            page = opened(browser, pages[name].as_uri(), width, scheme)
            wide = page.evaluate("document.documentElement.scrollWidth")
            require(wide <= width, f"{name} is {wide} pixels wide on a screen of {width}")
            page.screenshot(path=out / f"{name}-{width}-{scheme}.png", full_page=True)
        browser.close()
    print(f"pictures in {out}")


if __name__ == "__main__":
    main()
