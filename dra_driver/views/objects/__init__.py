"""Kubernetes objects as people write them: read from files, checked, and converted to the newest API version."""
