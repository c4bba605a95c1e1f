// Examples. Each compares the driver first, because the rest would fail on devices of other drivers.

export const GALLERY = [
  {
    title: "Every GPU of NVIDIA's driver",
    expression: `device.driver == "gpu.nvidia.com"`,
  },
  {
    title: "At least 40 GiB of memory",
    expression: `device.driver == "gpu.nvidia.com" &&
  device.capacity["gpu.nvidia.com"].memory.isGreaterThan(quantity("40Gi"))`,
  },
  {
    title: "One product",
    expression: `device.driver == "gpu.nvidia.com" &&
  device.attributes["gpu.nvidia.com"].productName.contains("H100")`,
  },
  {
    title: "Hopper or newer",
    expression: `device.driver == "gpu.nvidia.com" &&
  device.attributes["gpu.nvidia.com"].cudaComputeCapability.compareTo(semver("9.0.0")) >= 0`,
  },
  {
    title: "A MIG profile",
    expression: `device.driver == "gpu.nvidia.com" &&
  device.attributes["gpu.nvidia.com"].?profile.orValue("") == "1g.10gb"`,
  },
  {
    title: "A whole GPU on NUMA node 0",
    expression: `device.driver == "gpu.nvidia.com" &&
  device.attributes["gpu.nvidia.com"].type == "gpu" &&
  device.attributes["gpu.nvidia.com"].numaNode == 0`,
  },
  {
    title: "A driver that is new enough",
    expression: `device.driver == "gpu.nvidia.com" &&
  device.attributes["gpu.nvidia.com"].driverVersion.isGreaterThan(semver("570.0.0"))`,
  },
  {
    title: "Has an attribute at all",
    expression: `device.driver == "gpu.nvidia.com" &&
  "nvlinkDomain" in device.attributes["gpu.nvidia.com"]`,
  },
];
