"""What selectors match in a fleet: matches, explanations, nearest misses, findings, and their documents."""
