"""Reading the GPUs of a node: what NVML and sysfs report about each, as facts.

In: the library's calls and the GPU's files. Out: readings of single GPUs, with their partitions, profiles and links,
and the GPUs of the node that are assembled from them. Never changes a GPU, and knows nothing of sessions or threads.
"""
