/*
 * A stand-in for libnvidia-ml.so.1: the functions, structures and error codes of the real header, answered from a text
 * file. The file is named by FAKE_NVML_STATE and read again whenever it changed, so hardware can change under a running
 * process. FAKE_NVML_LOG names a file to which every call is appended. Nothing here touches a GPU.
 *
 * The file: one fact a line, words split by blanks. The lines before the first `gpu` are the machine's; each `gpu` line
 * begins a GPU (by PCI address), and the lines that follow are the GPU's. A fact without a line is NOT_SUPPORTED.
 *
 *   driver_version 580.65.06 | cuda_version 13000 | init CODE | enumerate call | hold PATH
 *   fault FUNCTION CODE | fault FUNCTION hang | fault FUNCTION slow MILLISECONDS       (machine or GPU)
 *   fault FUNCTION crash before | fault FUNCTION crash after       (GPU; kills this process and is gone then)
 *   gpu 0000:65:00.0
 *     lost | KEY TEXT (uuid, name, minor, memory_bytes, brand, ...: see the getters)
 *     mig_mode CURRENT PENDING
 *     mig_reset 1                     (MIG mode changes with a reset only) | mig_minor N (its minor in MIG mode)
 *     persistence 0|1 (absent: the GPU has no persistence mode)
 *     compute_mode N (0 where there is none) | mig_compute_modes 1 (MIG devices take a compute mode as well)
 *     memory_limits 1                 (the driver is one that keeps cgroups to limits) | memory_limit_HASH BYTES CGROUP
 *     mig_late 1                      (MIG mode stays pending until somebody writes another mig_mode)
 *     mig_placements_need_mode 1 | ci_device mig (what a compute instance calls its device; else its GPU)
 *     profile CONSTANT ID SLICES INSTANCES SMS COPY DEC ENC JPEG OFA MIB NAME SIZE START,START...
 *     gi ID PROFILE_ID START SIZE
 *     ci GI ID INDEX SLICES START SIZE SMS UUID NAME
 *     link INDEX ACTIVE TYPE REMOTE
 *     fabric STATE STATUS UUID_HEX CLIQUE [NEWEST_VERSION]
 *     process KIND PID GI CI BYTES
 *     and the facts of its health (health.h) and of what it measures (metering.h)
 *
 * The real library looks at the bus only when it is initialised; so does this one, unless `enumerate call` says
 * otherwise. A GPU that was there then and has no lines now is lost. MIG mode and MIG instances are lines of their GPU:
 * what creates, destroys or switches adds to the file (changes.h), so it outlives this process and is seen by others:
 *
 *   changed 0000:65:00.0            (what follows is new about this GPU)
 *     drop gi ID | drop ci GI ID | drop fault FUNCTION | drop KEY | any line of a GPU; a fact replaces the one before
 */
#include "state.h"
#include "changes.h"

/* Begin a function whose first argument is a handle of one of the given kinds. */
#define BEGIN(kinds)                                                              \
    Handle *h = device;                                                           \
    if (!h || !((1 << h->kind) & (kinds))) return INVALID_ARGUMENT;               \
    int code = enter(__func__, h->pci, 1);                                        \
    if (code) return leave(code);                                                 \
    Gpu *gpu = gpu_at(h->pci);                                                    \
    (void)gpu
#define ON_GPU (1 << GPU)
#define ON_MIG (1 << MIG)
#define GPU_FACT(key) const char *text = fact(gpu->facts, gpu->facts_n, key); if (!text) return leave(NOT_SUPPORTED)

static int give_text(const char *text, char *out, unsigned length) {
    if (strlen(text) + 1 > length) return leave(INSUFFICIENT_SIZE);
    strcpy(out, text);
    return leave(SUCCESS);
}
static int give_number(const char *text, unsigned *out) {
    *out = (unsigned)strtoul(text, NULL, 0);
    return leave(SUCCESS);
}

/* -- library */

API nvmlInitWithFlags(unsigned flags) {
    int code = enter(__func__, NULL, 0);
    if (code) return leave(code);
    if (!is_read) return leave(DRIVER_NOT_LOADED);
    const char *init = fact(state.facts, state.facts_n, "init");
    if (init && atoi(init)) return leave(atoi(init));
    if (!state.gpus_n && !(flags & 1)) return leave(GPU_NOT_FOUND);
    if (!users++) {
        known_n = state.gpus_n;
        for (int i = 0; i < known_n; i++) memcpy(known[i], state.gpus[i].pci, sizeof known[i]);
        const char *hold = fact(state.facts, state.facts_n, "hold");
        held = hold ? open(hold, O_RDONLY | O_CLOEXEC) : -1;
    }
    return leave(SUCCESS);
}
API nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API nvmlInit(void) { return nvmlInitWithFlags(0); }
API nvmlShutdown(void) {
    int code = enter(__func__, NULL, 1);
    if (code) return leave(code);
    if (!--users && held >= 0) { close(held); held = -1; }
    return leave(SUCCESS);
}
__attribute__((visibility("default"))) const char *nvmlErrorString(int code) {
    return code == SUCCESS ? "Success" : code == GPU_IS_LOST ? "GPU is lost" : "Error";
}
API nvmlSystemGetDriverVersion(char *out, unsigned length) {
    int code = enter(__func__, NULL, 1);
    const char *text = fact(state.facts, state.facts_n, "driver_version");
    return code || !text ? leave(code ? code : NOT_SUPPORTED) : give_text(text, out, length);
}
API nvmlSystemGetNVMLVersion(char *out, unsigned length) {
    int code = enter(__func__, NULL, 1);
    return code ? leave(code) : give_text("13.0.0", out, length);
}
API nvmlSystemGetCudaDriverVersion(int *out) {
    int code = enter(__func__, NULL, 1);
    const char *text = fact(state.facts, state.facts_n, "cuda_version");
    return code || !text ? leave(code ? code : NOT_SUPPORTED) : give_number(text, (unsigned *)out);
}
API nvmlSystemGetCudaDriverVersion_v2(int *out) {
    int code = enter(__func__, NULL, 1);
    const char *text = fact(state.facts, state.facts_n, "cuda_version");
    return code || !text ? leave(code ? code : NOT_SUPPORTED) : give_number(text, (unsigned *)out);
}

/* -- enumeration */

static int is_live(void) {
    const char *how = fact(state.facts, state.facts_n, "enumerate");
    return how && !strcmp(how, "call");
}
API nvmlDeviceGetCount_v2(unsigned *out) {
    int code = enter(__func__, NULL, 1);
    if (!code) *out = is_live() ? state.gpus_n : known_n;
    return leave(code);
}
API nvmlDeviceGetCount(unsigned *out) { return nvmlDeviceGetCount_v2(out); }
API nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    char pci[32] = "";
    pthread_mutex_lock(&lock);
    refresh();
    unsigned count = is_live() ? state.gpus_n : known_n;
    if (index < count) memcpy(pci, is_live() ? state.gpus[index].pci : known[index], sizeof pci);
    pthread_mutex_unlock(&lock);
    int code = enter(__func__, pci[0] ? pci : NULL, 1);
    if (!code && !pci[0]) code = INVALID_ARGUMENT;
    if (!code) *out = handle(GPU, pci, -1, -1);
    return leave(code);
}
API nvmlDeviceGetHandleByIndex(unsigned index, void **out) { return nvmlDeviceGetHandleByIndex_v2(index, out); }
API nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    int code = enter(__func__, NULL, 1);
    if (code) return leave(code);
    for (int i = 0; i < state.gpus_n; i++) {
        Gpu *gpu = &state.gpus[i];
        const char *own = fact(gpu->facts, gpu->facts_n, "uuid");
        if (own && !strcmp(own, uuid)) {
            *out = handle(GPU, gpu->pci, -1, -1);
            return leave(gpu->is_lost ? GPU_IS_LOST : SUCCESS);
        }
        for (int j = 0; j < gpu->cis_n; j++)
            if (!strcmp(gpu->cis[j].uuid, uuid)) {
                *out = handle(MIG, gpu->pci, gpu->cis[j].gi, gpu->cis[j].id);
                return leave(gpu->is_lost ? GPU_IS_LOST : SUCCESS);
            }
    }
    return leave(NOT_FOUND);
}
API nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **out) {
    int code = enter(__func__, NULL, 1);
    const char *tail = strlen(bus_id) > 12 ? bus_id + strlen(bus_id) - 12 : bus_id;
    Gpu *gpu = gpu_at(tail);
    if (!code && !gpu) code = NOT_FOUND;
    if (!code) *out = handle(GPU, gpu->pci, -1, -1);
    return leave(code);
}

/* -- one GPU */

API nvmlDeviceGetUUID(void *device, char *out, unsigned length) {
    BEGIN(ON_GPU | ON_MIG);
    if (h->kind == MIG) {
        Ci *ci = ci_of(gpu, h);
        return ci ? give_text(ci->uuid, out, length) : leave(NOT_FOUND);
    }
    GPU_FACT("uuid");
    return give_text(text, out, length);
}
static int fill_pci(const char *pci, PciInfo *out) {
    unsigned domain = 0, bus = 0, slot = 0;
    if (sscanf(pci, "%x:%x:%x", &domain, &bus, &slot) != 3) return UNKNOWN_ERROR;
    memset(out, 0, sizeof *out);
    out->domain = domain; out->bus = bus; out->device = slot;
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", domain & 0xffff, bus & 0xff, slot & 0xff);
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", domain, bus & 0xff, slot & 0xff);
    return SUCCESS;
}
API nvmlDeviceGetPciInfo_v3(void *device, PciInfo *out) {
    BEGIN(ON_GPU);
    code = fill_pci(h->pci, out);
    const char *id = fact(gpu->facts, gpu->facts_n, "pci_device_id");
    if (id) out->device_id = (unsigned)strtoul(id, NULL, 0);
    return leave(code);
}
#define NUMBER(function, key) \
    API function(void *device, unsigned *out) { BEGIN(ON_GPU); GPU_FACT(key); return give_number(text, out); }
#define TEXT_OF(function, key) \
    API function(void *device, char *out, unsigned length) { BEGIN(ON_GPU); GPU_FACT(key); return give_text(text, out, length); }
#define PAIR(function, key)                                       \
    API function(void *device, unsigned *first, unsigned *second) { \
        BEGIN(ON_GPU); GPU_FACT(key);                             \
        return leave(sscanf(text, "%u %u", first, second) == 2 ? SUCCESS : UNKNOWN_ERROR); }

NUMBER(nvmlDeviceGetIndex, "index")
NUMBER(nvmlDeviceGetVirtualizationMode, "virtualization_mode")
NUMBER(nvmlDeviceGetBrand, "brand")
NUMBER(nvmlDeviceGetArchitecture, "architecture")
NUMBER(nvmlDeviceGetMemoryBusWidth, "memory_bus_bits")
TEXT_OF(nvmlDeviceGetSerial, "serial")
TEXT_OF(nvmlDeviceGetVbiosVersion, "vbios_version")
PAIR(nvmlDeviceGetCudaComputeCapability, "compute_capability")
PAIR(nvmlDeviceGetEccMode, "ecc_mode")
PAIR(nvmlDeviceGetPowerManagementLimitConstraints, "power_limits_mw")
API nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending) {
    BEGIN(ON_GPU);
    *now = (unsigned)gpu->mig_now;
    *pending = (unsigned)gpu->mig_pending;
    return leave(gpu->has_mig ? SUCCESS : NOT_SUPPORTED);
}

API nvmlDeviceGetMinorNumber(void *device, unsigned *out) {
    BEGIN(ON_GPU);
    *out = minor_of(gpu);
    return leave(fact(gpu->facts, gpu->facts_n, "minor") ? SUCCESS : NOT_SUPPORTED);
}
API nvmlDeviceGetName(void *device, char *out, unsigned length) {
    BEGIN(ON_GPU | ON_MIG);
    GPU_FACT("name");
    char full[TEXT + 48];
    Ci *ci = h->kind == MIG ? ci_of(gpu, h) : NULL;
    if (h->kind == MIG && !ci) return leave(NOT_FOUND);
    snprintf(full, sizeof full, ci ? "%s MIG %s" : "%s", text, ci ? ci->name : "");
    return give_text(full, out, length);
}
static int memory_of(Gpu *gpu, const Handle *h, unsigned long long *total) {
    const char *text = fact(gpu->facts, gpu->facts_n, "memory_bytes");
    if (h->kind == GPU) {
        if (!text) return NOT_SUPPORTED;
        *total = strtoull(text, NULL, 0);
        return SUCCESS;
    }
    Gi *gi = gi_of(gpu, h->gi);
    Profile *profile = gi ? profile_of(gpu, gi->profile_id) : NULL;
    if (!profile) return NOT_FOUND;
    *total = profile->info.memory_mib << 20;
    return SUCCESS;
}
static unsigned long long used_of(Gpu *gpu, const Handle *h, const char *name) {
    char key[40];
    snprintf(key, sizeof key, h->kind == MIG ? "%s_gi%d" : "%s", name, h->gi);
    const char *text = fact(gpu->facts, gpu->facts_n, key);
    return text ? strtoull(text, NULL, 0) : 0;
}
API nvmlDeviceGetMemoryInfo(void *device, Memory *out) {
    BEGIN(ON_GPU | ON_MIG);
    memset(out, 0, sizeof *out);
    code = memory_of(gpu, h, &out->total);
    out->used = used_of(gpu, h, "memory_used") + used_of(gpu, h, "memory_reserved");
    out->free = out->total - out->used;
    return leave(code);
}
API nvmlDeviceGetMemoryInfo_v2(void *device, MemoryV2 *out) {
    BEGIN(ON_GPU | ON_MIG);
    if (out->version != VERSION(MemoryV2, 2)) return leave(ARGUMENT_VERSION_MISMATCH);
    code = memory_of(gpu, h, &out->total);
    out->used = used_of(gpu, h, "memory_used");
    out->reserved = used_of(gpu, h, "memory_reserved");
    out->free = out->total - out->used - out->reserved;
    return leave(code);
}
API nvmlDeviceGetAddressingMode(void *device, AddressingMode *out) {
    BEGIN(ON_GPU);
    if (out->version != VERSION(AddressingMode, 1)) return leave(ARGUMENT_VERSION_MISMATCH);
    GPU_FACT("addressing_mode");
    return give_number(text, &out->value);
}
API nvmlDeviceGetMaxClockInfo(void *device, unsigned type, unsigned *out) {
    BEGIN(ON_GPU);
    GPU_FACT(type == 1 ? "sm_clock_max_mhz" : type == 2 ? "memory_clock_max_mhz" : "other_clock");
    return give_number(text, out);
}

/* -- links */

static int link_of(Gpu *gpu, unsigned index, Link **out) {
    int any = 0;
    for (int i = 0; i < MAX_LINKS; i++) any |= gpu->links[i].is_there;
    if (!any) return NOT_SUPPORTED;
    if (index >= MAX_LINKS || !gpu->links[index].is_there) return INVALID_ARGUMENT;
    *out = &gpu->links[index];
    return SUCCESS;
}
API nvmlDeviceGetNvLinkState(void *device, unsigned index, unsigned *out) {
    BEGIN(ON_GPU);
    Link *link = NULL;
    if (!(code = link_of(gpu, index, &link))) *out = link->active;
    return leave(code);
}
API nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned index, PciInfo *out) {
    BEGIN(ON_GPU);
    Link *link = NULL;
    if (!(code = link_of(gpu, index, &link))) code = fill_pci(link->remote, out);
    return leave(code);
}
API nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned index, unsigned *out) {
    BEGIN(ON_GPU);
    Link *link = NULL;
    if (!(code = link_of(gpu, index, &link))) *out = link->type;
    return leave(code);
}
static int fabric_of(Gpu *gpu, Fabric *out, unsigned *newest) {
    char hex[40] = "";
    unsigned fabric_state = 0;
    const char *text = fact(gpu->facts, gpu->facts_n, "fabric");
    if (!text) return NOT_SUPPORTED;
    *newest = 3;
    sscanf(text, "%u %d %39s %u %u", &fabric_state, &out->status, hex, &out->clique, newest);
    for (int i = 0; i < 16; i++) {
        unsigned byte = 0;
        sscanf(hex + 2 * i, "%2x", &byte);
        out->cluster[i] = (unsigned char)byte;
    }
    out->state = (unsigned char)fabric_state;
    return SUCCESS;
}
API nvmlDeviceGetGpuFabricInfo(void *device, Fabric *out) {
    BEGIN(ON_GPU);
    unsigned newest;
    return leave(fabric_of(gpu, out, &newest));
}
API nvmlDeviceGetGpuFabricInfoV(void *device, void *out) {
    BEGIN(ON_GPU);
    Fabric fabric;
    unsigned newest, version = *(unsigned *)out;
    if ((code = fabric_of(gpu, &fabric, &newest))) return leave(code);
    int is_v3 = version == VERSION(FabricV3, 3);
    if ((!is_v3 && version != VERSION(FabricV2, 2)) || (is_v3 && newest < 3) || newest < 2)
        return leave(ARGUMENT_VERSION_MISMATCH);
    FabricV2 *v2 = out; /* version 3 begins as version 2 does */
    memcpy(v2->cluster, fabric.cluster, 16);
    v2->status = fabric.status; v2->clique = fabric.clique; v2->state = fabric.state; v2->health = 0;
    const char *health = fact(gpu->facts, gpu->facts_n, "fabric_health");
    if (is_v3) ((FabricV3 *)out)->summary = health ? (unsigned char)atoi(health) : 0;
    return leave(SUCCESS);
}

#include "mig.h"
#include "health.h"
#include "metering.h"

/* -- compute mode: of a GPU, or of a MIG device where the driver takes it there (`mig_compute_modes 1`) */

static int mode_key(Gpu *gpu, const Handle *h, char *key) {
    const char *takes = fact(gpu->facts, gpu->facts_n, "mig_compute_modes");
    snprintf(key, 40, "compute_mode");
    if (h->kind == GPU) return SUCCESS;
    if (!takes || !atoi(takes)) return NOT_SUPPORTED;
    snprintf(key, 40, "compute_mode_%d_%d", h->gi, h->ci);
    return SUCCESS;
}
API nvmlDeviceGetComputeMode(void *device, unsigned *out) {
    BEGIN(ON_GPU | ON_MIG);
    char key[40];
    if ((code = mode_key(gpu, h, key))) return leave(code);
    const char *text = fact(gpu->facts, gpu->facts_n, key);
    return give_number(text ? text : "0", out);
}
API nvmlDeviceSetComputeMode(void *device, unsigned mode) {
    BEGIN(ON_GPU | ON_MIG);
    char key[40], line[64];
    if ((code = mode_key(gpu, h, key))) return leave(code);
    if (h->kind == GPU && is_mig_on(gpu)) return leave(NOT_SUPPORTED);
    if (mode > 3 || mode == 1) return leave(INVALID_ARGUMENT);
    snprintf(line, sizeof line, "%s %u", key, mode);
    begin_change();
    change(h->pci, NULL, line);
    end_change();
    if ((gpu = gpu_at(h->pci))) crash_after(gpu, __func__);
    return leave(SUCCESS);
}

/* -- persistence mode: `persistence 0|1`; without it the GPU has none */

API nvmlDeviceGetPersistenceMode(void *device, unsigned *out) {
    BEGIN(ON_GPU);
    const char *text = fact(gpu->facts, gpu->facts_n, "persistence");
    return text ? give_number(text, out) : leave(NOT_SUPPORTED);
}
API nvmlDeviceSetPersistenceMode(void *device, unsigned mode) {
    BEGIN(ON_GPU);
    if (!fact(gpu->facts, gpu->facts_n, "persistence")) return leave(NOT_SUPPORTED);
    begin_change();
    change(h->pci, NULL, mode ? "persistence 1" : "persistence 0");
    end_change();
    return leave(SUCCESS);
}

/* -- memory limits of a cgroup, a folder that must be there; a limit ends when it is removed, not with the folder */

typedef struct { char *cgroup; unsigned long long soft, hard; } SetLimits;
typedef struct { char *cgroup; unsigned long long soft, hard, used; } GetLimits;

static int limit_key(Gpu *gpu, const Handle *h, const char *cgroup, char *key) {
    unsigned hash = 2166136261u;
    const char *has = fact(gpu->facts, gpu->facts_n, "memory_limits");
    if (!has || !atoi(has)) return FUNCTION_NOT_FOUND;
    if (h->kind == MIG || is_mig_on(gpu)) return NOT_SUPPORTED;
    if (!cgroup || *cgroup != '/') return INVALID_ARGUMENT;
    if (access(cgroup, F_OK)) return NOT_FOUND;
    for (const char *at = cgroup; *at; at++) hash = (hash ^ (unsigned char)*at) * 16777619u;
    snprintf(key, 40, "memory_limit_%08x", hash);
    return SUCCESS;
}
API nvmlDeviceGetMemoryLimits_v1(void *device, GetLimits *limits) {
    BEGIN(ON_GPU | ON_MIG);
    char key[40];
    if ((code = limit_key(gpu, h, limits->cgroup, key))) return leave(code);
    const char *text = fact(gpu->facts, gpu->facts_n, key);
    limits->soft = limits->used = 0;
    limits->hard = text ? strtoull(text, NULL, 10) : ~0ull;
    return leave(SUCCESS);
}
API nvmlDeviceSetMemoryLimits_v1(void *device, SetLimits *limits) {
    BEGIN(ON_GPU | ON_MIG);
    char key[40], line[400];
    if ((code = limit_key(gpu, h, limits->cgroup, key))) return leave(code);
    if (limits->soft > limits->hard) return leave(INVALID_ARGUMENT);
    snprintf(line, sizeof line, "%s %llu %s", key, limits->hard, limits->cgroup);
    begin_change();
    if (limits->hard == ~0ull) change(h->pci, key, NULL);
    else change(h->pci, NULL, line);
    end_change();
    if ((gpu = gpu_at(h->pci))) crash_after(gpu, __func__);
    return leave(SUCCESS);
}

/* -- processes */

static int list_processes(Gpu *gpu, const Handle *h, const char *kind, unsigned *count, Process *out) {
    unsigned n = 0, room = *count;
    for (int i = 0; i < gpu->running_n; i++) {
        const Running *r = &gpu->running[i];
        if (strcmp(r->kind, kind)) continue;
        if (h->kind == MIG && (r->process.gi != (unsigned)h->gi || r->process.ci != (unsigned)h->ci)) continue;
        if (n < room && out) out[n] = r->process;
        n++;
    }
    *count = n;
    return leave(n > room ? INSUFFICIENT_SIZE : SUCCESS);
}
#define PROCESSES(function, kind)                                     \
    API function(void *device, unsigned *count, Process *out) {       \
        BEGIN(ON_GPU | ON_MIG);                                       \
        return list_processes(gpu, h, kind, count, out); }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "compute")
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, "compute")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, "mps")
