"""Shared values: errors, names, limits, quantities, versions, wire types, container edits.

Values, two facts of the system that every room reads in the same way (`stamp`, `boot`), and the import of libraries
without the modules that the process never uses (`lean`). This room imports no other and nothing large; every other room
may import it.
"""
