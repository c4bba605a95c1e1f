"""What is looked for: each module examines evidence of one kind and returns findings."""
