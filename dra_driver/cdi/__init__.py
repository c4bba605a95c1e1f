"""CDI: `Edits` come in, specification files for the container runtime go out.

`spec` renders a document (pure), `store` keeps files in the CDI folder (atomic), `ids` names both. Nothing here knows
what a claim is, beyond the opaque text that is part of a name, or which vendor the edits came from.
Source: the Container Device Interface specification.
"""
