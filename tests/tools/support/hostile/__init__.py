"""Hostile inputs: malicious or broken files, arguments and objects, and ways to run every command on them."""
