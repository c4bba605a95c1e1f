"""Intel's Gaudi accelerators of the kernel driver habanalabs, read-only: no library is loaded and nothing is set."""
