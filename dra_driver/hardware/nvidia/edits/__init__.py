"""What a container needs of NVIDIA's driver: device nodes, libraries, programs, hooks."""
