"""The console: pages in a browser that show what commands compute, with the rights of the viewer.

In: requests of a browser. Out: pages, documents of `views`, and events when something has changed. The worker, a
process of its own, holds the fleet and answers each question in a child process with a time limit. Nothing here writes
to a cluster.
"""
