"""Webhook: judges opaque configs of this driver at admission, and warns of selectors that will hurt.

`review` and what it uses are pure; `server` speaks HTTPS to the API server; `certificates` keep its identity.
"""
