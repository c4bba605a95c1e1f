"""The one error tree.

    DriverError
    ├── UsageError         a flag or its environment variable is wrong            exit 2
    ├── InputError         a user's file is wrong (profile, manifest …)           exit 3
    ├── SelectorError      a CEL selector does not compile, or fails on a device  exit 3
    ├── NodeError          this machine lacks something (folder, permission …)    exit 5
    ├── HardwareError      the GPU, its driver or its library does not answer     exit 5
    ├── ApiError           the Kubernetes API server refused or was not reached   exit 5
    ├── ClaimError         this claim can't be prepared as it is                  exit 3
    ├── PrepareError       an effect on the node failed                           exit 5
    ├── SharingError       a device can't be shared as requested                  exit 5
    └── LedgerError        the ledger can't be read or written                    exit 5

A code is stable and dotted, and it starts with its branch (`claim.device-in-use`). The message states what is wrong, on
which object, and what was expected; the hint states what to do. `retry` lets a caller that has time left decide whether
to try again.
"""

from __future__ import annotations

import enum

GPU_LOST = "hardware.gpu-lost"  # the code for a GPU that has disappeared, or no longer answers
NODE_MISSING = "hardware.node-missing"  # the code for a device node that does not exist, or not yet


class Retry(enum.Enum):
    """Whether repeating the same operation can succeed."""

    NOW = "now"  # the fault is transient: try again within this call's deadline
    LATER = "later"  # something else has to change first (a claim ends, a driver loads)
    NEVER = "never"  # the input itself is wrong


class ExitCode(enum.IntEnum):
    """The process exit status of every command."""

    OK = 0
    NO_MATCH = 1  # nothing matches, something does not fit, or there are findings
    USAGE = 2
    BAD_INPUT = 3
    ABORTS_SCHEDULING = 4  # a device would make the scheduler abort
    ENVIRONMENT = 5
    BUG = 70


class DriverError(Exception):
    """Root of all the faults that this driver foresees. Any other exception that escapes is a bug (exit 70)."""

    branch = "driver"
    exit_code = ExitCode.ENVIRONMENT

    def __init__(self, code: str, message: str, *, hint: str = "", retry: Retry = Retry.NEVER) -> None:
        super().__init__(message)
        self.code = f"{self.branch}.{code}"
        self.message = message
        self.hint = hint
        self.retry = retry

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(DriverError):
    """A flag, or its environment variable, can't be used as given."""

    branch = "usage"
    exit_code = ExitCode.USAGE


class InputError(DriverError):
    """A file that a user wrote (profile, manifest, scenario) is not what it should be."""

    branch = "input"
    exit_code = ExitCode.BAD_INPUT


class SelectorError(DriverError):
    """A CEL selector does not compile, or fails on a device."""

    branch = "selector"
    exit_code = ExitCode.BAD_INPUT


class NodeError(DriverError):
    """This machine lacks something: a folder, a permission, a free socket path."""

    branch = "node"


class HardwareError(DriverError):
    """A GPU, its driver or its library does not answer as it should."""

    branch = "hardware"


class ApiError(DriverError):
    """The Kubernetes API server refused a request or could not be reached."""

    branch = "api"

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int = 0,
        hint: str = "",
        retry: Retry = Retry.NEVER,
        retry_after_s: float = 0.0,
        continue_token: str = "",
    ) -> None:
        super().__init__(code, message, hint=hint, retry=retry)
        self.status = status  # HTTP status; 0 when no answer came
        self.retry_after_s = retry_after_s  # how many seconds the server asked us to wait; 0 when it did not ask
        self.continue_token = continue_token  # where a list whose own token has expired goes on; often ""


class ClaimError(DriverError):
    """This claim can't be prepared as it is: not allocated, not ours, bad config, unknown or already held device."""

    branch = "claim"
    exit_code = ExitCode.BAD_INPUT


class PrepareError(DriverError):
    """An effect on the node failed, or could not be undone."""

    branch = "prepare"


class SharingError(DriverError):
    """A device can't be shared as requested: unsupported here, no MPS supervisor, or other settings are in force."""

    branch = "sharing"


class LedgerError(DriverError):
    """The ledger can't be read or written, or was written by a newer major version."""

    branch = "ledger"


# Limits of the Kubernetes API, each defined once.

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
