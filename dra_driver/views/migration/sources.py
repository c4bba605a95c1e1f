"""Check manifests before they are migrated, for fields that the API does not have and values of the wrong type.

In: texts. Out: nothing, or the first fault with its line and column.
"""

from __future__ import annotations

from collections.abc import Sequence

from dra_driver.migrate import SourceText
from dra_driver.model.errors import InputError
from dra_driver.views.objects.documents import parse_documents
from dra_driver.views.objects.shape_checker import ShapeChecker
from dra_driver.views.objects.strictness import checked

_VARIABLES = "fill in variables (envsubst, helm template) before migrating"


def refuse_faults(sources: Sequence[SourceText]) -> None:
    """Refuse objects with faults, which a migration would only hide. Raises: InputError("input.object")."""
    checker = ShapeChecker()
    for source in sources:
        try:
            documents = list(parse_documents(source.text, source.origin))
        except InputError:
            continue  # a template that is not rendered, or text that is not YAML: the migration itself reports it
        for document in documents:
            try:
                checked(document, checker)
            except InputError as fault:
                if fault.hint or "${" not in source.text:
                    raise
                raise InputError("object", fault.message, hint=_VARIABLES) from None
