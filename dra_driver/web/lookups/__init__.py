"""Lookups: answers that the board does not hold, and that are fetched when a page asks for them.

In: questions about the doctor's findings, usage and dashboards. Out: the documents of the corresponding commands.
"""
