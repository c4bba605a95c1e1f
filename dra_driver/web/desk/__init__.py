"""The desk: a process that holds the fleet and answers each question in a child of its own, and the way to it.

In: news of a cluster, or a fleet to load; questions. Out: documents, in bounded time and memory.
"""
