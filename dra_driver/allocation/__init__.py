"""What the scheduler decides: which devices a claim gets on which node, and why not.

In: claims, classes and slices as plain dicts, and the rules of one Kubernetes version. Out: an allocation, or an
explanation of what is missing. Pure: it reads no cluster and no files.
"""
