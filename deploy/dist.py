"""Everything that a release consists of: wheel, chart, image, their bills of materials and checksums.

    python deploy/dist.py [--output FOLDER] [--helm PROGRAM]

In: this checkout, whose version is `__version__` in dra_driver/__init__.py and no other. Out, in FOLDER (dist/):

    dra_driver-VERSION-py3-none-any.whl   for pipx and pip
    dra-driver-VERSION.tgz                the chart, for helm and OCI registries
    dra-driver-VERSION-image.tar          the image for amd64 and arm64, an OCI archive
    *.cdx.json                            a bill of materials for each of them, the image's for each architecture
    SHA256SUMS                            checksums of all of the above

The same checkout gives the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "image"))
import bills
import build as image
import needs
import wheels
from contents import ARCHITECTURES, REPOSITORY_NAME

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
_MEGABYTES = 1800
SUMS = "SHA256SUMS"


def main() -> int:
    """Make everything; list it with its checksums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=REPOSITORY / "dist")
    parser.add_argument("--helm", default="", metavar="PROGRAM", help="helm 3, if not the one on PATH")
    options = parser.parse_args()
    output, helm = options.output, options.helm or shutil.which("helm") or ""
    lacking = needs.missing(output, _MEGABYTES)
    if not helm:
        lacking.append("helm 3: put it on PATH, or run `make cluster-binaries`")
    if lacking:
        sys.exit("\n  ".join(["no release can be made here, because this is missing:", *lacking]))
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    version = image.version()
    with needs.step("wheel"):
        wheel(output, version)
    digest = _image(output, version)
    with needs.step("chart"):
        chart(output, version, helm, digest)
    print(sums(output), end="")
    return 0


def wheel(output: Path, version: str) -> Path:
    """Build the wheel and its bill of materials: the packages that it needs, as requirements.lock pins them."""
    # hatchling gives files in an archive the time of SOURCE_DATE_EPOCH, and a fixed time where there is none.
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(output)]
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, capture_output=True)
    made = output / f"dra_driver-{version}-py3-none-any.whl"
    subject = bills.subject("application", version, _sha256(made))
    needed = wheels.needed(ARCHITECTURES["amd64"])  # those that differ by architecture differ in files, not in names
    bills.write(
        output / f"{made.name}.cdx.json", subject, [bills.of_wheel(one) for one in wheels.locked_versions(needed)]
    )
    return made


def chart(output: Path, version: str, helm: str, image_digest: str) -> Path:
    """Package the chart, with one time for every file, and write its bill: the image that it runs by default."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "dra-driver"
        shutil.copytree(HERE / "helm", source)
        words = ["--version", version, "--app-version", version, "--destination", scratch]
        subprocess.run([helm, "package", str(source), *words], check=True, capture_output=True)
        made = output / f"dra-driver-{version}.tgz"
        made.write_bytes(_normalized((Path(scratch) / made.name).read_bytes()))
    subject = bills.subject("application", version, _sha256(made), name="dra-driver-chart")
    reference = f"{REPOSITORY_NAME}:{version}"
    bills.write(output / f"{made.name}.cdx.json", subject, [bills.of_image(reference, version, image_digest)])
    return made


def sums(output: Path) -> str:
    """Write the checksums of all files in a folder, as sha256sum(1) does; return them."""
    files = sorted(path for path in output.iterdir() if path.name != SUMS)
    text = "".join(f"{_sha256(path)}  {path.name}\n" for path in files)
    (output / SUMS).write_text(text)
    return text


def _image(output: Path, version: str) -> str:
    """Build the image; return the digest of its index."""
    folder = REPOSITORY / "build" / "image"
    digest = image.build(folder, f"{REPOSITORY_NAME}:{version}", list(ARCHITECTURES))
    shutil.copyfile(folder / "image.tar", output / f"dra-driver-{version}-image.tar")
    for name in ARCHITECTURES:
        shutil.copyfile(folder / name / "sbom.json", output / f"dra-driver-{version}-image-{name}.cdx.json")
    return digest


def _normalized(archive: bytes) -> bytes:
    """Return a .tgz with the same files, in order of their names and without the time at which it was made."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as found,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as out,
    ):
        members = sorted(found.getmembers(), key=lambda member: (not member.name.endswith("/Chart.yaml"), member.name))
        for member in members:  # Chart.yaml first, as helm has it
            clean = tarfile.TarInfo(member.name)
            clean.size, clean.mode = member.size, 0o644
            out.addfile(clean, found.extractfile(member))
    return gzip.compress(packed.getvalue(), 9, mtime=0)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
