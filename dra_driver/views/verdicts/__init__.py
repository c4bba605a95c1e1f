"""What selectors say of a fleet: matches, explanations, nearest misses, findings, and the documents that hold them."""
