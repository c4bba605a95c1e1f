"""Prepare and Unprepare: claims are planned, waited for, made usable, and undone."""
