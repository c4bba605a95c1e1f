"""The playground of the site: the engine for a browser, the fleets, and the console's own page for selectors.

In: the repository, and packages from npm (`packages.json`), which are only downloaded. Out: a folder that any web
server can hand out. The engine consists of the modules that `browser/answers.py` imports, compiled for the Python of
Pyodide, their tables, and PyYAML from this environment, whose wheel requirements.lock pins.
"""

from __future__ import annotations

import hashlib
import html
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import yaml
from pages import CONSOLE, ROOT, STATIC, write_style
from vendor import tarball

import dra_driver
from dra_driver.base.versions import VERSIONS
from dra_driver.hardware.simulated import profile_names
from dra_driver.tools.world.fleet import Fleet, fleet_with_profiles
from dra_driver.tools.world.world import DEFAULT_VERSION, DYNAMIC, offer_under

HERE = Path(__file__).parent
BROWSER = HERE / "browser"
PACKAGES = HERE / "packages.json"
PYYAML = Path(yaml.__file__).parent
# Folders of the console's pages that the playground has as they are. Two modules of `common` are replaced: the one that
# asks a server, and the one that writes the address.
_FOLDERS = ("common", "playground", "vendor")
_REPLACED = ("api.js", "address.js")
_TABLES = (".json",)
_POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "worker-src blob:; base-uri 'none'; form-action 'none'"
)


def write_playground(out: Path) -> None:
    """Write the playground into a folder."""
    write_packages(out)
    write_engine(out)
    write_fleets(out / "fleets")
    write_page(out)


def write_packages(out: Path) -> None:
    """Write the files of the packages from npm. Exits if a package is not the pinned one."""
    with tempfile.TemporaryDirectory() as scratch:
        for one in json.loads(PACKAGES.read_text())["packages"]:
            content = tarball(one["name"], one["version"], one["integrity"], Path(scratch))
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                for name, path in one["files"].items():
                    file = archive.extractfile(f"package/{path}") or sys.exit(f"{one['name']} has no file {path}")
                    (out / name).parent.mkdir(parents=True, exist_ok=True)
                    (out / name).write_bytes(file.read())


# The engine.


def modules() -> list[str]:
    """Return the modules of ours that the engine imports, in a process that has no third-party package but PyYAML."""
    command = [sys.executable, "-I", "-S", str(BROWSER / "imported.py"), str(ROOT), str(PYYAML)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return [name for name in found if name.partition(".")[0] == "dra_driver"]


def sources() -> Iterator[tuple[str, Path]]:
    """Yield the files of the engine: the path in the engine, and the file here."""
    for name in modules():
        path = ROOT.joinpath(*name.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        yield str(file.relative_to(ROOT)), file
        if path.is_dir():
            tables = (one for one in sorted((path / "tables").glob("*")) if one.suffix in _TABLES)
            yield from ((str(one.relative_to(ROOT)), one) for one in tables)
    yield from ((f"yaml/{one.name}", one) for one in sorted(PYYAML.glob("*.py")))
    yield from ((name, BROWSER / name) for name in ("answers.py", "re2.py"))


def write_engine(out: Path) -> None:
    """Write `engine.zip`: everything that Python needs beside its standard library."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, file in sources():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / name)
        subprocess.run(["node", str(HERE / "compile.mjs"), str(out / "pyodide"), str(folder)], check=True)
        with zipfile.ZipFile(out / "engine.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for path in sorted(one for one in folder.rglob("*") if one.is_file()):
                entry = zipfile.ZipInfo(str(path.relative_to(folder)))  # of 1980, so that equal engines are equal files
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, path.read_bytes())


# The fleets.


def fleet_under(profile: str, kubernetes: str) -> Fleet:
    """Return the fleet that `cel test --fleet PROFILE --kubernetes VERSION` judges."""
    return fleet_with_profiles([profile], Fleet(), offer_under(kubernetes, {}, DYNAMIC))


def write_fleets(out: Path) -> None:
    """Write each profile's devices under each version of Kubernetes; versions with equal devices share one file."""
    out.mkdir(parents=True)
    profiles: dict[str, dict[str, str]] = {}
    for profile in profile_names():
        for kubernetes in VERSIONS:
            fleet = fleet_under(profile, kubernetes)
            devices = [[one.node, one.driver, one.pool, one.wire] for one in fleet.devices]
            text = json.dumps({"devices": devices, "sources": fleet.sources, "notes": fleet.notes})
            name = f"{profile}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
            (out / name).write_text(text)
            profiles.setdefault(profile, {})[kubernetes] = name
    (out / "index.json").write_text(json.dumps({"version": DEFAULT_VERSION, "profiles": profiles}))


# The page.


def write_page(out: Path) -> None:
    """Write the page: the modules and styles of the console's, and its own frame."""
    for folder in _FOLDERS:
        left_out = shutil.ignore_patterns("uplot*", "vendor.json", *(_REPLACED if folder == "common" else ()))
        shutil.copytree(CONSOLE / folder, out / folder, ignore=left_out)
    for name in _REPLACED:
        shutil.copyfile(STATIC / "playground" / name, out / "common" / name)
    for name in ("app.js", "worker.js"):
        shutil.copyfile(STATIC / "playground" / name, out / name)
    for name in ("style.css", "pages.css"):
        shutil.copyfile(CONSOLE / name, out / name)
    write_style(out)
    shutil.copyfile(STATIC / "playground" / "playground.css", out / "site.css")
    options = "".join(f'<option value="{html.escape(name)}">{html.escape(name)}</option>' for name in profile_names())
    page = (STATIC / "playground" / "index.html").read_text("utf-8")
    values = {"policy": _POLICY, "version": dra_driver.__version__, "default": DEFAULT_VERSION, "profiles": options}
    for name, value in values.items():
        page = page.replace(f"{{{name}}}", value)
    (out / "index.html").write_text(page, "utf-8")
