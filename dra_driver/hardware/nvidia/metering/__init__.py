"""What NVIDIA's GPUs do, measured in the thread that also watches their health. Imported only where it is wanted."""
