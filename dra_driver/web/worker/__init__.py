"""The worker, a process that holds the fleet and answers each question in a child process, and its client.

In: updates from a cluster, or a fleet to load, and questions. Out: documents, in bounded time and memory.
"""
