"""Kubernetes objects as people give them: read from files, checked, and brought to the newest version of their API."""
