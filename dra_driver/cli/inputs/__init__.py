"""The inputs of commands.

In: options that several commands have. Out: what they select: selectors, devices, classes, worlds, settings of a node.
"""
