"""Lists of a live cluster, read page by page, with their progress shown.

In: a connection and the path of a collection. Out: all its objects. If the server refuses to continue a list, the list
starts over or continues after the last object, as the server demands (`kube.pages`). What many ResourceSlices have in
common is kept in memory once.
"""

from __future__ import annotations

from dra_driver.documents.shared_values import SharedValues
from dra_driver.kube.api import KubeApi
from dra_driver.kube.pages import pages
from dra_driver.model.wire import Wire
from dra_driver.views.progress import ProgressLines


def read_list(api: KubeApi, path: str, noun: str, lines: ProgressLines) -> list[Wire]:
    """Return all objects of a collection; `noun` is what the line of progress calls them. Raises: ApiError."""
    found: list[Wire] = []
    line, values = lines(noun, 0), SharedValues()
    try:
        for page in pages(api, path):
            if page.is_first:
                found = []  # the list has started over
            for wire in page.objects:
                values.share(wire)
            found += page.objects
            line.update(len(found))
        return found
    finally:
        line.close()
