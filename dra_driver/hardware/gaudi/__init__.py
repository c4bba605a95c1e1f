"""Intel's Gaudi accelerators behind the kernel driver habanalabs: no library is loaded and no setting is changed."""
