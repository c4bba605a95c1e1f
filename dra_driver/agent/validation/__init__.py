"""The agent's side of validation: which devices are tested, when a test is tried again, and what is held back."""
