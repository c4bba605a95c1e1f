"""Why a pod fits on a node or does not: the allocator's view in; funnels, sentences and equal nodes out."""
