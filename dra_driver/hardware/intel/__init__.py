"""Intel's GPUs (integrated, Arc, Data Center) behind the kernel drivers i915 and xe: no library is loaded."""
