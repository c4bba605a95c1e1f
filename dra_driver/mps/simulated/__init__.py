"""A substitute for NVIDIA's MPS control program. It is started as a file and never imported."""
