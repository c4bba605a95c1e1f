"""GPUs as their vendors describe them: the port that each vendor implements, and what the vendors share."""
