"""Several viewers of one console: who they are, what they may read, and a backend for those with equal rights.

In: requests with a viewer's own token, or with the name of a user from a proxy that has proved its own by mutual TLS.
Out: requests with the backend of their viewer. What was read with the rights of one viewer is never shown to a viewer
who lacks them.
"""
