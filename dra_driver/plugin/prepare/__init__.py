"""Prepare and Unprepare: claims are planned, wait for their devices, are made usable, and are undone."""
