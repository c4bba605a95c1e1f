"""The console's third-party modules: taken from npm at pinned versions, checked by hash, written beside the pages.

    python deploy/vendor.py

In: vendor.json (name, version, integrity as npm has it, the file that is the ES module). Out: one file for each module
and its license, in the folder of vendor.json. Imports of a package's name become paths, because browsers do not
resolve names of packages; nothing else is changed. npm only downloads: no code of a package runs.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).resolve().parents[1] / "dra_driver" / "tools" / "console" / "static" / "vendor"
MANIFEST = VENDOR / "vendor.json"
_IMPORT = re.compile(r"""((?:^|\n)\s*(?:import|export)\s[^;'"]*?from\s*)(['"])([^'"./][^'"]*)\2""")


def file_name(package: str) -> str:
    """Return the name of a package's files here.

    >>> file_name("@codemirror/view")
    'codemirror-view'
    """
    return package.lstrip("@").replace("/", "-")


def rewritten(source: str, known: set[str]) -> str:
    """Return a module whose imports are paths. Exits for a package that is not vendored."""

    def path(found: re.Match[str]) -> str:
        if found[3] not in known:
            sys.exit(f"{found[3]} is imported, but vendor.json does not have it")
        return f'{found[1]}"./{file_name(found[3])}.js"'

    return _IMPORT.sub(path, source)


def tarball(package: str, version: str, integrity: str, folder: Path) -> bytes:
    """Download one package. Exits if it is not the one whose hash is pinned."""
    command = ["npm", "pack", "--silent", "--ignore-scripts", f"{package}@{version}"]
    name = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.split()[-1]
    content = (folder / name).read_bytes()
    digest = f"sha512-{base64.b64encode(hashlib.sha512(content).digest()).decode()}"
    if digest != integrity:
        sys.exit(f"{package}@{version}: {digest}, but vendor.json says {integrity}")
    return content


def main() -> None:
    """Write every file again."""
    manifest = json.loads(MANIFEST.read_text())
    known = {one["name"] for one in manifest["packages"]}
    with tempfile.TemporaryDirectory() as scratch:
        for one in manifest["packages"]:
            content = tarball(one["name"], one["version"], one["integrity"], Path(scratch))
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                files = {name: archive.extractfile(f"package/{path}") for name, path in one["files"].items()}
                for name, file in files.items():
                    text = file.read().decode() if file else sys.exit(f"{one['name']} has no file for {name}")
                    made = rewritten(text, known) if name.endswith(".js") else text
                    (VENDOR / name).write_text(made)
                    one.setdefault("sha256", {})[name] = hashlib.sha256(made.encode()).hexdigest()
    MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    main()
