"""Prepare and Unprepare: a plan is carried out step by step, undone, and repaired after a kill."""
