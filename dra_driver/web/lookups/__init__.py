"""Lookups: answers that are not on the board, fetched when a page is looked at.

In: questions about the doctor's findings, usage and dashboards. Out: the documents of the commands that tell the same.
"""
