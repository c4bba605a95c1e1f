"""What a container needs of NVIDIA's driver: facts and a driver root in; device nodes, libraries and hooks out."""
