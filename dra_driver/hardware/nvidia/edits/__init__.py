"""What a container needs from NVIDIA's driver: facts and a driver root in; device nodes, libraries and hooks out."""
