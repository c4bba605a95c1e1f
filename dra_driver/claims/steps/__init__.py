"""The steps that make a claim's devices usable: one module for each kind, with the function that plans it. Pure.

In: the claim on this node. Out: steps, or a ClaimError with everything that is wrong with the claim's configs.
"""
