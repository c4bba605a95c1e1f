"""What others can read of a claim's devices: containers in metadata files, users of the API in the claim's status."""
