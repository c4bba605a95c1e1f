"""Measurements of Intel's GPUs from sysfs, and the names under which they are published."""
