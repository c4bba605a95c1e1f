"""Shared values: errors, names, limits, quantities, versions, wire types, container edits.

Values, two small questions to the system that every room asks in the same way (`stamp`, `boot`), and the import of
libraries without the modules that the process never uses (`lean`). It imports no other room and nothing large; every
other room may import it.
"""
