"""Lists of a live cluster, read page by page, with their progress shown.

In: a connection and the path of a collection. Out: all its objects. If the server refuses to continue a list, the list
starts over or continues after the last object, as the server demands (`kube.pages`). A slice whose text equals that of
an earlier one, except for names and some attributes, is not parsed.
"""

from __future__ import annotations

import io
import json
from typing import Any

from dra_driver.documents.json_stream import load_json
from dra_driver.kube.answers import refuse_constant
from dra_driver.kube.api import KubeApi
from dra_driver.kube.pages import pages
from dra_driver.model.wire import Wire
from dra_driver.views.objects.equal_slices import EqualSlices
from dra_driver.views.progress import ProgressLines

_DECODER = json.JSONDecoder(parse_constant=refuse_constant)


def read_list(api: KubeApi, path: str, noun: str, lines: ProgressLines) -> list[Wire]:
    """Return all objects of a collection; `noun` is what the line of progress calls them. Raises: ApiError."""
    found: list[Wire] = []
    line = lines(noun, 0)
    entries = EqualSlices(line)

    def parse(body: bytes) -> Any:
        try:
            return load_json(io.BytesIO(body), entries, _DECODER)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    try:
        for page in pages(api, path, parse=parse):
            if page.is_first:
                found = []  # the list has started over
            found += page.objects
        return found
    finally:
        line.close()
