"""The admission webhook: its reviews on one core, the process under attack, and its memory on a large fleet."""
