"""Connections to the API server, and the answers that arrive on them: limited in size and time, and checked."""
