"""Everything that a release consists of: wheel, chart, image, their bills of materials and checksums.

    python deploy/dist.py [--output FOLDER] [--helm PROGRAM] [--sign KEY] [--source URL] [--downloads URL]

In: this checkout, whose version is `__version__` in dra_driver/__init__.py and no other. Out, in FOLDER (dist/):

    dra_driver-VERSION-py3-none-any.whl   for pipx and pip
    dra-driver-VERSION.tgz                the chart, for helm and OCI registries
    dra-driver-VERSION-image.tar          the image for amd64 and arm64, an OCI archive
    *.cdx.json                            a bill of materials for each of them, the image's for each architecture
    kubectl-dra-VERSION.tar.gz            `kubectl dra` for krew
    dra.krew.yaml                         its manifest
    dra-driver-VERSION.openvex.json       reported weaknesses that can't be used in the image
    dra-driver-VERSION.intoto.json        from which commit and locks all of the above were made
    SHA256SUMS                            checksums of all of the above
    *.sig, *.dsse                         with --sign: signatures of SHA256SUMS and of the provenance

The same commit gives the same bytes, except for signatures.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent / "image"))
import attest
import bills
import build as image
import needs
import wheels
from contents import ARCHITECTURES, REPOSITORY_NAME
from cryptography.hazmat.primitives.asymmetric import ec
from krew import packing
from origin import Origin, origin

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
_MEGABYTES = 1800
SUMS = "SHA256SUMS"


def main() -> int:
    """Make everything; list it with its checksums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=REPOSITORY / "dist")
    parser.add_argument("--helm", default="", metavar="PROGRAM", help="helm 3, if not the one on PATH")
    parser.add_argument("--sign", type=Path, metavar="KEY", help="an EC key on P-256 in PEM")
    parser.add_argument("--source", default="", metavar="URL", help="where the repository can be read")
    parser.add_argument("--downloads", default="", metavar="URL", help="where the files will lie")
    options = parser.parse_args()
    output, helm = options.output, options.helm or shutil.which("helm") or ""
    key = attest.private_key(options.sign) if options.sign else None
    lacking = needs.missing(output, _MEGABYTES)
    if not helm:
        lacking.append("helm 3: put it on PATH, or run `make cluster-binaries`")
    if lacking:
        sys.exit("\n  ".join(["no release can be made here, because this is missing:", *lacking]))
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    version, came_from = image.version(), origin(options.source)
    with needs.step("wheel"):
        made = wheel(output, version)
    packing.manifest(output, version, packing.archive(output, version, made), options.downloads, options.source)
    digest = _image(output, version, came_from)
    with needs.step("chart"):
        chart(output, version, helm, digest, options.source)
    (output / f"dra-driver-{version}.openvex.json").write_bytes(attest.vex(version, digest, came_from))
    (output / f"dra-driver-{version}.intoto.json").write_bytes(attest.provenance(_files(output), version, came_from))
    print(sums(output), end="")
    if key is not None:
        sign(output, version, key)
    return 0


def wheel(output: Path, version: str) -> Path:
    """Build the wheel and its bill of materials: the packages that it needs, as requirements.lock pins them."""
    # hatchling gives files in an archive the time of SOURCE_DATE_EPOCH, and a fixed time where there is none.
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(output)]
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, capture_output=True)
    made = output / f"dra_driver-{version}-py3-none-any.whl"
    subject = bills.subject("application", version, attest.sha256(made))
    needed = wheels.needed(ARCHITECTURES["amd64"])  # those that differ by architecture differ in files, not in names
    parts = [*map(bills.of_wheel, wheels.locked_versions(needed)), *bills.vendored()]
    bills.write(output / f"{made.name}.cdx.json", subject, parts)
    return made


def chart(output: Path, version: str, helm: str, image_digest: str, source: str = "") -> Path:
    """Package the chart, with one time for every file, and write its bill: the image that it runs by default."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "dra-driver"
        shutil.copytree(HERE / "helm", folder)
        if source:
            with (folder / "Chart.yaml").open("a") as facts:
                facts.write(f"home: {source}\nsources: [{source}]\n")
        words = ["--version", version, "--app-version", version, "--destination", scratch]
        subprocess.run([helm, "package", str(folder), *words], check=True, capture_output=True)
        made = output / f"dra-driver-{version}.tgz"
        made.write_bytes(_normalized((Path(scratch) / made.name).read_bytes()))
    subject = bills.subject("application", version, attest.sha256(made), name="dra-driver-chart")
    reference = f"{REPOSITORY_NAME}:{version}"
    bills.write(output / f"{made.name}.cdx.json", subject, [bills.of_image(reference, version, image_digest)])
    return made


def sums(output: Path) -> str:
    """Write the checksums of all files in a folder, as sha256sum(1) does; return them."""
    text = "".join(f"{attest.sha256(path)}  {path.name}\n" for path in _files(output))
    (output / SUMS).write_text(text)
    return text


def sign(output: Path, version: str, key: ec.EllipticCurvePrivateKey) -> None:
    """Sign the checksums, and with them all files, and the provenance."""
    (output / f"{SUMS}.sig").write_text(attest.signature((output / SUMS).read_bytes(), key))
    statement = output / f"dra-driver-{version}.intoto.json"
    (output / f"{statement.name}.dsse").write_bytes(attest.envelope(statement.read_bytes(), key))


def _files(output: Path) -> list[Path]:
    return sorted(path for path in output.iterdir() if path.name != SUMS)


def _image(output: Path, version: str, came_from: Origin) -> str:
    """Build the image; return the digest of its index."""
    folder = REPOSITORY / "build" / "image"
    digest = image.build(folder, f"{REPOSITORY_NAME}:{version}", list(ARCHITECTURES), came_from)
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


if __name__ == "__main__":
    sys.exit(main())
