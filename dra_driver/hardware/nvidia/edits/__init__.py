"""Edits for containers with NVIDIA's GPUs. In: facts and a driver root. Out: device nodes, libraries and hooks."""
