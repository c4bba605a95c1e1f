"""What selectors match in a fleet: verdicts, explanations, nearest misses, findings, and their documents."""
