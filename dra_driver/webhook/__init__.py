"""The webhook validates opaque configs of this driver at admission, and warns of selectors that cause trouble.

`review` and what it uses are pure; `server` speaks HTTPS to the API server; `certificates` makes the server's identity.
"""
