"""A stand-in for NVIDIA's MPS control program. It is started by its file and never imported."""
