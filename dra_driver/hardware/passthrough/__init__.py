"""Passing whole PCI functions to virtual machines: what the kernel shows of them, and the writes that move them.

In: roots, PCI addresses, a writer. Out: what a function needs to be passed through, or an effect that was read back.
Nothing here knows claims, slices or vendors' libraries. Modules are never loaded: an error names a missing module.
Source: Linux, Documentation/driver-api/vfio.rst and Documentation/ABI/testing/sysfs-bus-pci.
"""
