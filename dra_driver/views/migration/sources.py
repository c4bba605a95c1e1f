"""What is wrong with manifests before they are migrated: fields that the API does not have, values of another type.

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
    """Refuse objects with faults, whose changes would hide them. Raises: InputError("input.object")."""
    checker = ShapeChecker()
    for source in sources:
        try:
            documents = list(parse_documents(source.text, source.origin))
        except InputError:
            continue  # a template that is not rendered, or not YAML: the migration reports what it is
        for document in documents:
            try:
                checked(document, checker)
            except InputError as fault:
                if fault.hint or "${" not in source.text:
                    raise
                raise InputError("object", fault.message, hint=_VARIABLES) from None
