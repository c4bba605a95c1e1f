"""Connections to the API server, and what comes back on them: bounded in bytes and time, checked, in pieces."""
