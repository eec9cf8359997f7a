"""Runs the definition of the Apptainer image without Apptainer, as root: `make container`.

The sections %files, %post and %test of packaging/apptainer/pfftjax.def are carried out in a folder
that debootstrap fills with the release the definition begins from. Apptainer itself is not tried:
Debian does not package it.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

from tools.launcher import ROOT

DEFINITION = ROOT / "packaging" / "apptainer" / "pfftjax.def"
# What this machine trusts, for pip in there: its network may have a certificate of its own.
CERTIFICATES = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")
INSIDE = "etc/certificates-outside.crt"


def sections(text: str) -> dict[str, str]:
    """The sections of a definition by name; "header" is what comes before the first."""
    parts = re.split(r"^%(\w+)[^\n]*\n", text, flags=re.MULTILINE)
    return {"header": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def release_of(header: str) -> str:
    """The release of Debian that an image begins from."""
    found = re.search(r"^From: debian:(\w+)-slim$", header, re.MULTILINE)
    if not found:
        sys.exit(f"container: {DEFINITION} does not begin from debian:RELEASE-slim")
    return found[1]


def copy(files: str, root: pathlib.Path) -> None:
    for line in filter(None, map(str.strip, files.splitlines())):
        source, target = line.split()
        inside = root / target.lstrip("/")
        inside.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, inside, dirs_exist_ok=True)
        else:
            shutil.copy(ROOT / source, inside)


def run(script: str, root: pathlib.Path) -> None:
    """A section's commands in the folder, in namespaces of their own, which end with it."""
    mounts = "".join(f"mount --rbind /{name} {root}/{name}; " for name in ("dev", "proc", "sys"))
    shell = f'set -e; {mounts}exec chroot {root} /bin/sh -e -c "$SECTION"'
    kept = {key: value for key, value in os.environ.items() if key.startswith(("PIP_", "OMPI_"))}
    if (root / INSIDE).exists():
        kept["PIP_CERT"] = f"/{INSIDE}"
    environment = {
        **kept,
        "SECTION": script,
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
    }
    subprocess.run(["unshare", "--mount", "sh", "-c", shell], env=environment, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=ROOT / "build" / "container")
    root = parser.parse_args().root.resolve()
    if os.geteuid() or not shutil.which("debootstrap"):
        sys.exit("container: run it as root, with debootstrap (apt-get install debootstrap)")
    found = sections(DEFINITION.read_text())
    if not (root / "etc" / "os-release").exists():
        release = release_of(found["header"])
        subprocess.run(["debootstrap", "--variant=minbase", release, str(root)], check=True)
    # The image's network is this machine's.
    shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
    if CERTIFICATES.exists():
        shutil.copy(CERTIFICATES, root / INSIDE)
    copy(found["files"], root)
    run(found["post"], root)
    run(found["test"], root)
    print("container: the sections %post and %test passed", flush=True)


if __name__ == "__main__":
    main()
