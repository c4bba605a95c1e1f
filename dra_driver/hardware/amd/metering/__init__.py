"""Measurements of AMD's GPUs from sysfs, and the names under which they are published."""
