"""Limits of the Kubernetes API, each defined once.

Source: k8s.io/api resource/v1 types and validation, Kubernetes 1.34 to 1.37; a comment notes where versions differ.
"""

from __future__ import annotations

SLICE_DEVICES = 128  # ResourceSliceMaxDevices
SLICE_DEVICES_ADVANCED = 64  # ResourceSliceMaxDevicesWithTaintsOrConsumesCounters (>= 1.35; we keep to it on 1.34 too)
DEVICE_ATTRIBUTES_AND_CAPACITIES = 32  # ResourceSliceMaxAttributesAndCapacitiesPerDevice
ATTRIBUTE_STRING_BYTES = 64  # DeviceAttributeMaxValueLength
ATTRIBUTE_NAME_CHARS = 32  # DeviceMaxIDLength
ATTRIBUTE_DOMAIN_CHARS = 63  # DeviceMaxDomainLength
COUNTER_SETS_PER_SLICE = 8  # ResourceSliceMaxCounterSets (>= 1.35)
COUNTERS_PER_SET = 32  # ResourceSliceMaxCountersPerCounterSet
COUNTER_CONSUMPTIONS_PER_DEVICE = 2  # ResourceSliceMaxDeviceCounterConsumptionsPerDevice (>= 1.35)
COUNTERS_PER_SLICE_1_34 = 32  # ResourceSliceMaxSharedCounters (1.34)
TAINTS_PER_DEVICE = 16  # DeviceTaintsMaxLength (4 in 1.34)
TAINTS_PER_DEVICE_1_34 = 4
POOL_NAME_CHARS = 253  # PoolNameMaxLength
ALLOCATION_RESULTS = 32  # AllocationResultsMaxSize
RESERVED_FOR = 256  # ResourceClaimReservedForMaxSize
OPAQUE_PARAMETERS_BYTES = 10 * 1024  # OpaqueParametersMaxLength
CEL_EXPRESSION_BYTES = 10 * 1024  # CELSelectorExpressionMaxLength
CEL_COST = 1_000_000  # CELSelectorExpressionMaxCost
SOCKET_PATH_BYTES = 107  # sun_path of AF_UNIX without its terminating NUL, for which grpcio reserves a byte
