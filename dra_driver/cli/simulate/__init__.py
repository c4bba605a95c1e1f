"""The commands that allocate offline: `simulate` runs the scheduler's steps, `explain` explains single verdicts."""
