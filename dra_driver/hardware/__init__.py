"""Hardware: what is on this node, read from sysfs, procfs and the vendor's library.

In: folders (injectable roots) and a vendor's library. Out: `Facts`, frozen. This is the only room that touches a
device. Each vendor has one folder, and all of them implement `port.Hardware`. The hardware is read again for every
answer: no state of the hardware is kept here that could become outdated.
"""
