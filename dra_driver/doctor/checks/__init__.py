"""The checks: each module examines evidence of one kind and returns findings."""
