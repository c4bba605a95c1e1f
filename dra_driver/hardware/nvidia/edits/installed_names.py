"""Where NVIDIA's installers put the driver's files, and how they name them.

Source: the driver's README, "Installed Components"; NVIDIA Container Toolkit for which of them containers get.
"""

from __future__ import annotations

import re

TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu")
LIBRARY_FOLDERS = (
    "/usr/lib64",
    *(f"/usr/lib/{triplet}" for triplet in TRIPLETS),
    *(f"/usr/lib/{triplet}/nvidia/current" for triplet in TRIPLETS),
    "/lib64",
    *(f"/lib/{triplet}" for triplet in TRIPLETS),
    *(f"/lib/{triplet}/nvidia/current" for triplet in TRIPLETS),
)
# Libraries that come with the driver but have version numbers of their own.
OWN_VERSION = re.compile(r"libnvidia-(?:egl-(?:gbm|wayland2?|xcb|xlib)\.so\.\d+\.\d+.*|nvvm70\.so\.\d.*)")
# The number in a library's SONAME where that is not 1; "" where the SONAME has the driver's version.
# Source: the driver's README, "Installed Components".
SONAME_NUMBERS = {
    "libnvidia-nvvm": "4",
    "libGLX_nvidia": "0",
    "libEGL_nvidia": "0",
    "libGLESv2_nvidia": "2",
    **dict.fromkeys(
        (
            *("libnvidia-gpucomp", "libnvidia-glcore", "libnvidia-eglcore", "libnvidia-glsi", "libnvidia-glvkspirv"),
            *("libnvidia-tls", "libnvidia-rtcore", "libnvidia-vulkan-producer", "libnvidia-nvvm70"),
        ),
        "",
    ),
}
OPENED_WITHOUT_NUMBER = ("libcuda", "libnvidia-ml")
XORG_FOLDERS = tuple(
    f"{base}/modules/{updates}{kind}"
    for base in ("/usr/lib64/xorg", "/usr/lib/xorg", *(f"/usr/lib/{triplet}/xorg" for triplet in TRIPLETS))
    for updates in ("", "updates/")
    for kind in ("drivers", "extensions")
)
CONFIG_FOLDERS = ("/etc", "/usr/local/share", "/usr/share")
CONFIGS = (
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "nvidia/nvoptix.bin",
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
)
VULKAN = (  # these go to /etc/vulkan in the container, wherever the host has them
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_icd.x86_64.json",
    "vulkan/icd.d/nvidia_icd.aarch64.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
)
FIRMWARE = re.compile(r"gsp.*\.bin")
BINARY_FOLDERS = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/opt/bin",
)
BINARIES = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)
# The host's own MPS daemon is not among them: a claim's file would put its folder in the place of the one that another
# claim of the same container has from its daemon.
SOCKETS = ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket")
LIBCUDA = re.compile(r"libcuda\.so\.(\d+(?:\.\d+)+)")
# gives the version where the driver was installed without CUDA
LIBNVML = re.compile(r"libnvidia-ml\.so\.(\d+(?:\.\d+)+)")
