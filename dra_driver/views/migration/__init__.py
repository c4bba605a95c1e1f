"""Migrated manifests: checks of whether their requests find devices, and the report."""
