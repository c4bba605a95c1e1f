"""Migrated manifests: whether their requests find devices, and the report."""
