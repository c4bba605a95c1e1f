"""A guest kernel under QEMU: what the simulated kernel says of PCI drivers, IOMMU groups and VFIO, on a real one."""
