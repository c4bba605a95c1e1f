"""The worker: a process that holds the fleet and answers each question in a child of its own, and its client.

In: updates from a cluster, or a fleet to load; questions. Out: documents, in bounded time and memory.
"""
