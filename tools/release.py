"""Walks through a release; changes nothing but what `--write` says, and makes no tag:

    python -m tools.release                  what is done and what is not, for this version
    python -m tools.release --write 0.2.0    set version and date where they are written, then that

Steps that it can check it checks, and it names the command for the others. The exit status is 0
where every check passed.
"""

import argparse
import datetime
import fnmatch
import pathlib
import re
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

from tools.launcher import ROOT

# Where a version is written: the file, and the text around it.
VERSIONS = {
    "pyproject.toml": r'^version = "(.*)"$',
    "CITATION.cff": r"^version: (.*)$",
    "packaging/conda/recipe.yaml": r'^  version: "(.*)"$',
}
RELEASED = r"^date-released: (.*)$"
NEXT = "## Unreleased"
_BUILDS = "make wheels arm ARM='--only wheels'"


def read(name: str) -> str:
    """A file of the checkout."""
    return (ROOT / name).read_text()


def project() -> dict:
    """The table of that name in pyproject.toml."""
    return tomllib.loads(read("pyproject.toml"))["project"]


def _found(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1] if match else None


def inconsistencies() -> Iterator[str]:
    """What two files say differently of the same thing."""
    about, citation = project(), read("CITATION.cff")
    for name, pattern in VERSIONS.items():
        if (found := _found(pattern, read(name))) != about["version"]:
            yield f"{name} has version {found}, pyproject.toml {about['version']}"
    urls = about["urls"]
    for name in ("repository-code", "url"):
        wanted = urls["Source" if name == "repository-code" else "Homepage"]
        if (found := _found(rf"^{name}: (.*)$", citation)) != wanted:
            yield f"CITATION.cff has {name} {found}, pyproject.toml {wanted}"
    if about["authors"][0]["name"] not in citation:
        yield f"CITATION.cff does not name {about['authors'][0]['name']}"


def write(version: str) -> None:
    """Set a version, and today as its date."""
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        raise SystemExit(f"{version} is no version like 0.2.0 or 0.2.0rc1")
    today = datetime.date.today().isoformat()
    for name, pattern in VERSIONS.items():
        text = read(name)
        old = re.search(pattern, text, re.MULTILINE)
        assert old is not None, name
        text = text[: old.start(1)] + version + text[old.end(1) :]
        if name == "CITATION.cff":
            text = re.sub(RELEASED + r"\n?", "", text, flags=re.MULTILINE)
            text = text.rstrip("\n") + f"\ndate-released: {today}\n"
        (ROOT / name).write_text(text)
    changes = read("CHANGELOG.md")
    heading = f"## {version} - {today}"
    dated = re.compile(rf"^## {re.escape(version)} - .*$", re.MULTILINE)
    if dated.search(changes):
        changes = dated.sub(heading, changes)
    else:
        changes = changes.replace(NEXT, f"{NEXT}\n\n{heading}", 1)
    (ROOT / "CHANGELOG.md").write_text(changes)


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _consistent() -> str | None:
    return "; ".join(inconsistencies()) or None


def _dated() -> str | None:
    date = _found(RELEASED, read("CITATION.cff"))
    heading = f"## {project()['version']} - {date}"
    if date is None:
        return "CITATION.cff has no date-released: --write VERSION"
    return None if heading in read("CHANGELOG.md") else f"CHANGELOG.md has no {heading!r}"


def _no_tag() -> str | None:
    tag = f"v{project()['version']}"
    return f"{tag} is a tag already" if tag in _git("tag").split() else None


def _clean() -> str | None:
    return "there are changes that are not committed" if _git("status", "--porcelain") else None


def _built() -> str | None:
    about = project()
    dist = sorted(path.name for path in (ROOT / "dist").glob(f"pfftjax-{about['version']}*"))
    wanted = [
        f"*-{tag}-manylinux*_{machine}.whl"
        for tag in ("cp311-cp311", "cp312-abi3")
        for machine in ("x86_64", "aarch64")
    ]
    wanted.append("*.tar.gz")
    missing = [text for text in wanted if not fnmatch.filter(dist, text)]
    if missing:
        return f"dist/ has no {', no '.join(missing)}: {_BUILDS}"
    commit = float(_git("log", "-1", "--format=%ct"))
    old = [name for name in dist if (ROOT / "dist" / name).stat().st_mtime < commit]
    return f"older than the last commit: {', '.join(old)}: {_BUILDS}" if old else None


def _links() -> str | None:
    broken = []
    for name, url in project()["urls"].items():
        try:
            with urllib.request.urlopen(url, timeout=20):
                pass
        except (urllib.error.URLError, OSError) as error:
            broken.append(f"{name} {url}: {error}")
    return "; ".join(broken) or None


def _citation() -> str | None:
    program = pathlib.Path(sys.executable).with_name("cffconvert")
    command = [str(program), "--validate", "--infile", str(ROOT / "CITATION.cff")]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "no cffconvert: make release"
    return (ended.stdout + ended.stderr).strip() if ended.returncode else None


CHECKS: dict[str, Callable[[], str | None]] = {
    "version, URLs and authors are the same everywhere": _consistent,
    "the version has its date, and its part of CHANGELOG.md": _dated,
    "CITATION.cff is valid": _citation,
    "everything is committed": _clean,
    "the version is not tagged yet": _no_tag,
    "wheels and the source distribution are newer than the last commit": _built,
    "the URLs of pyproject.toml lead somewhere": _links,
}
# In this order, and each by someone who looks at what comes of it.
BY_HAND = (
    "bash .ci/run                          all tests, both MPIs, both ends of JAX",
    "make nodes; make slurm                two nodes; jobs under Slurm",
    "make gpu                              on a machine with a GPU",
    "make wheels                           builds, checks and tries what is released",
    "make arm ARM='--only wheels'          the wheels for aarch64",
    "git tag -s v{version}                 and push it",
    "twine upload -r testpypi dist/*       install from there; then upload without -r testpypi",
    "a release of the tag on the forge, for Zenodo's DOI; the DOI into CITATION.cff and README.md",
)


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", metavar="VERSION")
    arguments = parser.parse_args()
    if arguments.write:
        write(arguments.write)
    version = project()["version"]
    print(f"pfftjax {version}\n")
    failed = 0
    for title, check in CHECKS.items():
        wrong = check()
        failed += wrong is not None
        print(f"[{' ' if wrong else 'x'}] {title}" + (f"\n      {wrong}" if wrong else ""))
    print("\nBy hand, in this order:")
    print("\n".join(f"    {step.format(version=version)}" for step in BY_HAND))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
