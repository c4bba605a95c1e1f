"""A guest kernel under QEMU: checks the simulated kernel (PCI drivers, IOMMU groups, VFIO) against a real one."""
