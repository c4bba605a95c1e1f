/* A fake libcuda.so.1. Device memory is ordinary memory; the kernels of the test are known by name.
 *
 * The file `devices` beside it says what it does: a line "UUID PCI MODE" for each device. The device is the one
 * that CUDA_VISIBLE_DEVICES names. Each call is logged in `calls` beside it as "PID CALL UUID". A context is a file
 * `contexts/PID`, which a killed process leaves behind.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { OK = 0, OUT_OF_MEMORY = 2, NO_DEVICE = 100, NOT_READY = 802 };

static char folder[PATH_MAX], uuid[128], pci[64], mode[64];
static int corrupts(void) { return strcmp(mode, "corrupts") == 0; }

static void note(const char *call) {
  char path[PATH_MAX + 16], line[256];
  snprintf(path, sizeof path, "%s/calls", folder);
  int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return;
  int length = snprintf(line, sizeof line, "%d %s %s\n", getpid(), call, uuid);
  if (write(fd, line, length) < 0) {}
  close(fd);
}

static void find(void) {
  Dl_info info;
  char path[PATH_MAX + 16];
  dladdr((void *)find, &info);
  snprintf(folder, sizeof folder, "%s", info.dli_fname);
  *strrchr(folder, '/') = 0;
  const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
  snprintf(path, sizeof path, "%s/devices", folder);
  FILE *file = fopen(path, "r");
  if (!file) return;
  char one[128], address[64], does[64];
  while (fscanf(file, "%127s %63s %63s", one, address, does) == 3)
    if (wanted && strcmp(one, wanted) == 0) {
      strcpy(uuid, one);
      strcpy(pci, address);
      strcpy(mode, does);
    }
  fclose(file);
}

static int misbehave(void) {
  if (strcmp(mode, "hangs") == 0) for (;;) pause();
  if (strcmp(mode, "crashes") == 0) raise(SIGSEGV);
  if (strcmp(mode, "hoards") == 0) {
    size_t size = (size_t)1 << 30;
    char *much = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (much == MAP_FAILED) return OUT_OF_MEMORY;
    for (size_t at = 0; at < size; at += 4096) much[at] = 1;
  }
  return strncmp(mode, "context-", 8) == 0 ? atoi(mode + 8) : OK;
}

EXPORT int cuInit(unsigned flags) {
  (void)flags;
  find();
  note("cuInit");
  if (!*uuid) return NO_DEVICE;
  if (strcmp(mode, "802") == 0) return NOT_READY;
  return OK;
}
EXPORT int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? 101 : OK; }
EXPORT int cuDeviceGetPCIBusId(char *text, int length, int device) {
  (void)device;
  snprintf(text, length, "%s", pci);
  return OK;
}
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
  (void)device;
  char path[PATH_MAX + 32];
  note("cuDevicePrimaryCtxRetain");
  snprintf(path, sizeof path, "%s/contexts/%d", folder, getpid());
  int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd >= 0) close(fd);
  int code = misbehave();
  if (code == OK) *context = folder;
  return code;
}
EXPORT int cuCtxSetCurrent(void *context) { (void)context; return OK; }
EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
  (void)device;
  char path[PATH_MAX + 32];
  snprintf(path, sizeof path, "%s/contexts/%d", folder, getpid());
  unlink(path);
  note("cuDevicePrimaryCtxRelease_v2");
  return OK;
}
EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) { *free_bytes = *total = (size_t)96 << 20; return OK; }
EXPORT int cuMemAlloc_v2(uint64_t *address, size_t size) {
  *address = (uint64_t)(uintptr_t)malloc(size);
  return *address ? OK : OUT_OF_MEMORY;
}
EXPORT int cuMemAllocHost_v2(void **address, size_t size) { *address = malloc(size); return *address ? OK : OUT_OF_MEMORY; }
EXPORT int cuMemFree_v2(uint64_t address) { free((void *)(uintptr_t)address); return OK; }
EXPORT int cuMemsetD32_v2(uint64_t address, unsigned word, size_t words) {
  uint32_t *data = (uint32_t *)(uintptr_t)address;
  for (size_t at = 0; at < words; at++) data[at] = word;
  if (corrupts() && words > 1024) data[words / 2] ^= 0x100;
  return OK;
}
EXPORT int cuMemcpyHtoD_v2(uint64_t address, const void *from, size_t size) {
  memcpy((void *)(uintptr_t)address, from, size);
  if (strcmp(mode, "slow") == 0) usleep(50000);
  return OK;
}
EXPORT int cuMemcpyDtoH_v2(void *to, uint64_t address, size_t size) {
  memcpy(to, (void *)(uintptr_t)address, size);
  return OK;
}
EXPORT int cuModuleLoadData(void **module, const void *ptx) {
  note("cuModuleLoadData");
  *module = (void *)ptx;
  if (strcmp(mode, "jit") == 0) return 222;
  return strstr(ptx, ".visible .entry dra_mix") ? OK : 218;
}
EXPORT int cuModuleGetFunction(void **function, void *module, const char *name) {
  (void)module;
  static const char *const known[] = {"dra_mix", "dra_fill", "dra_check"};
  for (int at = 0; at < 3; at++)
    if (strcmp(name, known[at]) == 0) {
      *function = (void *)known[at];
      return OK;
    }
  return 500;
}
static uint32_t word(uint64_t n, uint32_t seed) {
  return (((uint32_t)n + (uint32_t)(n >> 32) * 0x9E3779B1u) * 0x9E3779B1u) ^ seed;
}
EXPORT int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *stream, void **arguments, void **extra) {
  (void)gy, (void)gz, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
  note(function);
  if (strncmp(mode, "launch-", 7) == 0) return atoi(mode + 7);
  uint32_t *data = (uint32_t *)(uintptr_t) * (uint64_t *)arguments[0];
  if (strcmp(function, "dra_mix") == 0) {
    uint32_t count = *(uint32_t *)arguments[1], seed = *(uint32_t *)arguments[2];
    for (uint32_t at = 0; at < count && at < gx * bx; at++) data[at] = (data[at] ^ seed) * 0x9E3779B1u + at;
    if (strcmp(mode, "miscomputes") == 0) data[count / 2] += 1;
    return OK;
  }
  uint64_t words = *(uint64_t *)arguments[1], first = *(uint64_t *)arguments[2];
  uint32_t seed = *(uint32_t *)arguments[3];
  for (uint64_t at = 0; at < words; at++) {
    if (strcmp(function, "dra_fill") == 0)
      data[at] = word(first + at, seed);
    else if (data[at] != word(first + at, seed))
      *(uint32_t *)(uintptr_t) * (uint64_t *)arguments[4] += 1;
  }
  if (strcmp(function, "dra_fill") == 0 && strcmp(mode, "decays") == 0) data[words / 3] ^= 1;
  return OK;
}
EXPORT int cuCtxSynchronize(void) { return OK; }
