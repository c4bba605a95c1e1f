"""What is wrong with a selector that compiles, and how to write it better."""
