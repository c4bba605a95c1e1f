"""A simulation of NVIDIA's MPS control program, which is started as a file and never imported."""
