"""Hardware: what is on this node, read from sysfs, procfs and the vendor's library.

Enters: folders (injectable roots) and a vendor's library. Leaves: `Facts`, frozen. The only room that touches a device.
One folder a vendor; all of them stand behind `port.Hardware`. The hardware's answer is always re-read: nothing here
keeps an idea of the hardware that could drift.
"""
