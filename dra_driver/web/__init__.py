"""The console: pages in a browser that show what commands compute, with the rights of the viewer.

In: requests of one person's browser. Out: pages, documents of `views`, events when something has changed. A process of
its own, the worker, holds the fleet and answers each question in a child with a time limit; nothing here writes to a
cluster.
"""
