"""Build the site: the docs, with a search, and the playground, in one folder that needs no server of its own.

    python deploy/site --out build/site [--without-playground]

In: the repository; for the playground npm, node, and the packages that `packages.json` pins. Out: static files. Docs
open as files; the playground needs a web server, because browsers load WebAssembly and workers from nothing else.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # `vendor`, which downloads from npm

from pages import BrokenLinkError, Pages, empty, write_pages
from playground import write_playground


def main() -> None:
    """Build the site, or say which links are broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("build/site"), help="the folder to write; an earlier site goes"
    )
    parser.add_argument("--without-playground", action="store_true", help="only the docs: nothing is downloaded")
    given = parser.parse_args()
    try:
        pages = Pages()
    except BrokenLinkError as fault:
        sys.exit(f"broken links:\n{fault}")
    empty(given.out)
    write_pages(pages, given.out, has_playground=not given.without_playground)
    if not given.without_playground:
        write_playground(given.out / "playground")
    print(f"{given.out}: {len(pages.documents)} pages")


if __name__ == "__main__":
    main()
