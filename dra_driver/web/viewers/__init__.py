"""Several viewers of one console: who they are, what they may read, and a backend for those with equal rights.

In: requests with a viewer's own token, or with the name that a proxy gives over mutual TLS. Out: requests with the
backend of their viewer. Nothing that was read with the rights of one viewer is ever shown to one who lacks them.
"""
