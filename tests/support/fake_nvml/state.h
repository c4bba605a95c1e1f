/*
 * What the functions of nvml.c work on: the structures of nvml.h, the state file (its words are explained in
 * nvml.c), the faults that it asks for, and the handles that are given out.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default"))) int
#define MAX_GPUS 16
#define MAX_FACTS 128
#define MAX_EVENTS 128
#define MAX_PROFILES 18
#define MAX_INSTANCES 16
#define MAX_LINKS 36
#define MAX_FAULTS 32
#define MAX_PROCESSES 64
#define MAX_HANDLES 8192
#define TEXT 256
#define LINE 512

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    FUNCTION_NOT_FOUND = 13,
    DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, RESET_REQUIRED = 16, IN_USE = 19, INSUFFICIENT_RESOURCES = 23, ARGUMENT_VERSION_MISMATCH = 25, GPU_NOT_FOUND = 28, UNKNOWN_ERROR = 999
};

/* Structures of nvml.h. */
typedef struct {
    char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char bus_id[32];
} PciInfo;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned start, size; } Placement;
typedef struct {
    unsigned id, p2p, slices, instances, sms, copy, decoders, encoders, jpeg, ofa; unsigned long long memory_mib;
} GiProfile;
typedef struct {
    unsigned version, id, p2p, slices, instances, sms, copy, decoders, encoders, jpeg, ofa;
    unsigned long long memory_mib; char name[96];
} GiProfileV2;
typedef struct {
    unsigned version, id, slices, instances, sms, copy, decoders, encoders, jpeg, ofa;
    unsigned long long memory_mib; char name[96]; unsigned capabilities;
} GiProfileV3;
typedef struct { void *device; unsigned id, profile_id; Placement placement; } GiInfo;
typedef struct { void *device, *gpu_instance; unsigned id, profile_id; Placement placement; } CiInfo;
typedef struct {
    unsigned sms, copy, decoders, encoders, jpeg, ofa, gi_slices, ci_slices; unsigned long long memory_mib;
} Attributes;
typedef struct { unsigned pid; unsigned long long bytes; unsigned gi, ci; } Process;
typedef struct {
    unsigned id, slices, instances, sms, copy, decoders, encoders, jpeg, ofa;
} CiProfile;
typedef struct { unsigned version, id, slices, instances, sms, copy, decoders, encoders, jpeg, ofa; char name[96]; } CiProfileV2;
typedef struct {
    unsigned version, id, slices, instances, sms, copy, decoders, encoders, jpeg, ofa; char name[96]; unsigned capabilities;
} CiProfileV3;
typedef struct { unsigned version, value; } AddressingMode;
typedef struct { unsigned char cluster[16]; int status; unsigned clique; unsigned char state; } Fabric;
typedef struct {
    unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health;
} FabricV2;
typedef struct {
    unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health;
    unsigned char summary;
} FabricV3;
#define VERSION(type, number) ((unsigned)(sizeof(type) | ((number) << 24)))

/* The state file. */
typedef struct { char key[40], value[TEXT]; } Fact;
typedef struct { char function[64]; int code, is_hang, slow_ms, crash; } Fault; /* crash: 1 before, 2 after */
typedef struct { unsigned constant; GiProfile info; char name[40]; unsigned size, starts[16], starts_n; } Profile;
typedef struct { int id, profile_id; Placement placement; } Gi;
typedef struct { int gi, id, index; unsigned slices, sms; Placement placement; char uuid[96], name[40]; } Ci;
typedef struct { int is_there; unsigned active, type; char remote[32]; } Link;
typedef struct { char kind[16]; Process process; } Running;
typedef struct { unsigned long long sequence, type, data; unsigned gi, ci; } Happened;
typedef struct {
    char pci[32]; int has_mig, mig_now, mig_pending, is_lost, facts_n, profiles_n, gis_n, cis_n, faults_n, running_n, events_n;
    Happened events[MAX_EVENTS];
    Fact facts[MAX_FACTS]; Profile profiles[MAX_PROFILES]; Gi gis[MAX_INSTANCES]; Ci cis[MAX_INSTANCES];
    Link links[MAX_LINKS]; Fault faults[MAX_FAULTS]; Running running[MAX_PROCESSES];
} Gpu;
typedef struct { int facts_n, faults_n, gpus_n; Fact facts[MAX_FACTS]; Fault faults[MAX_FAULTS]; Gpu gpus[MAX_GPUS]; } State;

/* What the pointers that are given out refer to: never freed, so that an old one is recognised and never dangles. */
enum { GPU = 1, MIG, GPU_INSTANCE, COMPUTE_INSTANCE };
typedef struct { int kind; char pci[32]; int gi, ci; } Handle;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static State state;
static int state_file = -1; /* kept open: to look whether it changed takes no search for its path */
static char seen_path[512];
static off_t seen_size;
static int is_read, users, known_n, handles_n, held = -1;
static char known[MAX_GPUS][32]; /* GPUs on the bus when the library was initialised */
static Handle handles[MAX_HANDLES];

static const char *fact(const Fact *facts, int n, const char *key) {
    for (int i = 0; i < n; i++)
        if (!strcmp(facts[i].key, key)) return facts[i].value;
    return NULL;
}

static void parse_fault(Fault *faults, int *n, const char *rest) {
    char what[32] = "";
    if (*n == MAX_FAULTS) return;
    Fault *fault = &faults[*n];
    memset(fault, 0, sizeof *fault);
    char much[16] = "";
    if (sscanf(rest, "%63s %31s %15s", fault->function, what, much) < 2) return;
    if (!strcmp(what, "hang")) fault->is_hang = 1;
    else if (!strcmp(what, "slow")) fault->slow_ms = atoi(much);
    else if (!strcmp(what, "crash")) fault->crash = strcmp(much, "after") ? 1 : 2;
    else fault->code = atoi(what);
    ++*n;
}

#define TAKE_OUT(array, n, i) memmove(&(array)[i], &(array)[(i) + 1], sizeof *(array) * (size_t)(--(n) - (i)))

static void set_fact(Gpu *gpu, const char *key, const char *value) {
    int i = 0;
    while (i < gpu->facts_n && strcmp(gpu->facts[i].key, key)) i++;
    if (i == MAX_FACTS) return;
    if (i == gpu->facts_n) snprintf(gpu->facts[gpu->facts_n++].key, 40, "%s", key);
    snprintf(gpu->facts[i].value, TEXT, "%s", value);
    if (!strcmp(key, "mig_mode")) gpu->has_mig = sscanf(value, "%d %d", &gpu->mig_now, &gpu->mig_pending) == 2;
}

static void parse_gpu_line(Gpu *gpu, const char *key, const char *rest) {
    if (!strcmp(key, "lost")) gpu->is_lost = 1;
    else if (!strcmp(key, "fault")) parse_fault(gpu->faults, &gpu->faults_n, rest);
    else if (!strcmp(key, "profile") && gpu->profiles_n < MAX_PROFILES) {
        Profile *p = &gpu->profiles[gpu->profiles_n++];
        GiProfile *i = &p->info;
        char starts[64] = "", *end;
        sscanf(rest, "%u %u %u %u %u %u %u %u %u %u %llu %39s %u %63s", &p->constant, &i->id, &i->slices, &i->instances,
               &i->sms, &i->copy, &i->decoders, &i->encoders, &i->jpeg, &i->ofa, &i->memory_mib, p->name, &p->size, starts);
        for (char *at = strtok_r(starts, ",", &end); at && p->starts_n < 16; at = strtok_r(NULL, ",", &end))
            p->starts[p->starts_n++] = (unsigned)atoi(at);
    } else if (!strcmp(key, "gi") && gpu->gis_n < MAX_INSTANCES) {
        Gi *gi = &gpu->gis[gpu->gis_n++];
        sscanf(rest, "%d %d %u %u", &gi->id, &gi->profile_id, &gi->placement.start, &gi->placement.size);
    } else if (!strcmp(key, "ci") && gpu->cis_n < MAX_INSTANCES) {
        Ci *ci = &gpu->cis[gpu->cis_n++];
        sscanf(rest, "%d %d %d %u %u %u %u %95s %39s", &ci->gi, &ci->id, &ci->index, &ci->slices, &ci->placement.start,
               &ci->placement.size, &ci->sms, ci->uuid, ci->name);
    } else if (!strcmp(key, "link")) {
        Link link = {.is_there = 1};
        int index = -1;
        sscanf(rest, "%d %u %u %31s", &index, &link.active, &link.type, link.remote);
        if (index >= 0 && index < MAX_LINKS) gpu->links[index] = link;
    } else if (!strcmp(key, "process") && gpu->running_n < MAX_PROCESSES) {
        Running *r = &gpu->running[gpu->running_n++];
        sscanf(rest, "%15s %u %u %u %llu", r->kind, &r->process.pid, &r->process.gi, &r->process.ci, &r->process.bytes);
    } else if (!strcmp(key, "event") && gpu->events_n < MAX_EVENTS) {
        Happened *e = &gpu->events[gpu->events_n++];
        int gi = -1, ci = -1;
        sscanf(rest, "%llu %llu %llu %d %d", &e->sequence, &e->type, &e->data, &gi, &ci);
        e->gi = (unsigned)gi;
        e->ci = (unsigned)ci;
    } else set_fact(gpu, key, rest);
}

/* Forget a line of a GPU that was changed: an instance, a fault, or a fact. */
static void drop_gpu_line(Gpu *gpu, const char *rest) {
    char key[40] = "", function[64] = "";
    int id = -1, ci = -1, n = 0;
    sscanf(rest, "%39s %n", key, &n);
    if (!strcmp(key, "gi") && sscanf(rest + n, "%d", &id) == 1) {
        for (int i = 0; i < gpu->gis_n; i++)
            if (gpu->gis[i].id == id) { TAKE_OUT(gpu->gis, gpu->gis_n, i); return; }
    } else if (!strcmp(key, "ci") && sscanf(rest + n, "%d %d", &id, &ci) == 2) {
        for (int i = 0; i < gpu->cis_n; i++)
            if (gpu->cis[i].gi == id && gpu->cis[i].id == ci) { TAKE_OUT(gpu->cis, gpu->cis_n, i); return; }
    } else if (!strcmp(key, "fault") && sscanf(rest + n, "%63s", function) == 1) {
        for (int i = 0; i < gpu->faults_n; i++)
            if (!strcmp(gpu->faults[i].function, function)) { TAKE_OUT(gpu->faults, gpu->faults_n, i); return; }
    } else {
        for (int i = 0; i < gpu->facts_n; i++)
            if (!strcmp(gpu->facts[i].key, key)) { TAKE_OUT(gpu->facts, gpu->facts_n, i); return; }
    }
}

static Gpu *gpu_at(const char *pci) {
    for (int i = 0; i < state.gpus_n; i++)
        if (!strcasecmp(state.gpus[i].pci, pci)) return &state.gpus[i];
    return NULL;
}

/*
 * Parse one line of the state file: a fact of the machine, a new GPU, or a fact of the GPU that was begun last, or of
 * one that has changed since the file was written (changes.h).
 */
static Gpu *parse_line(char *line, Gpu *gpu) {
    char key[40] = "";
    line += strspn(line, " ");
    size_t n = strcspn(line, " ");
    if (!n || n >= sizeof key || line[0] == '#') return gpu;
    memcpy(key, line, n);
    const char *rest = line + n + strspn(line + n, " ");
    if (!strcmp(key, "gpu") && state.gpus_n < MAX_GPUS) {
        gpu = &state.gpus[state.gpus_n++];
        memset(gpu, 0, sizeof *gpu);
        snprintf(gpu->pci, sizeof gpu->pci, "%s", rest);
    } else if (!strcmp(key, "changed")) return gpu_at(rest);
    else if (gpu && !strcmp(key, "drop")) drop_gpu_line(gpu, rest);
    else if (gpu) parse_gpu_line(gpu, key, rest);
    else if (!strcmp(key, "fault")) parse_fault(state.faults, &state.faults_n, rest);
    else if (state.facts_n < MAX_FACTS) {
        snprintf(state.facts[state.facts_n].key, 40, "%s", key);
        snprintf(state.facts[state.facts_n++].value, TEXT, "%s", rest);
    }
    return gpu;
}

/* Return the end of the line that begins here, and copy it without its newline. */
static const char *next_line(const char *at, char line[LINE]) {
    size_t n = strcspn(at, "\n"), kept = n < LINE ? n : LINE - 1;
    memcpy(line, at, kept);
    line[kept] = 0;
    return at + n + (at[n] == '\n');
}

/* Parse what the state file has between two places, the second of which is its end. */
static void parse(const char *content, off_t end) {
    char line[LINE];
    Gpu *gpu = NULL;
    for (const char *at = content; *at;) {
        at = next_line(at, line);
        gpu = parse_line(line, gpu);
    }
    seen_size = end;
}
static void read_from(off_t from, off_t end) {
    char *content = calloc(1, (size_t)(end - from) + 1);
    if (!content || pread(state_file, content, (size_t)(end - from), from) < 0) abort();
    parse(content, end);
    free(content);
}

/*
 * Read the state file if another one is in its place by now (the one that is open here has lost its name then), or what
 * was added to it. The lock is held.
 */
static void refresh(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    struct stat now;
    if (is_read && path && !strcmp(path, seen_path) && !fstat(state_file, &now) && now.st_nlink) {
        if (now.st_size > seen_size) read_from(seen_size, now.st_size);
        return;
    }
    int file = path ? open(path, O_RDWR | O_APPEND | O_CLOEXEC) : -1;
    if (file < 0 || fstat(file, &now)) {
        state.facts_n = state.faults_n = state.gpus_n = is_read = 0;
        if (file >= 0) close(file);
        return;
    }
    if (state_file >= 0) close(state_file);
    state_file = file;
    snprintf(seen_path, sizeof seen_path, "%s", path);
    state.facts_n = state.faults_n = state.gpus_n = 0;
    read_from(0, now.st_size);
    is_read = 1;
}

static void log_call(const char *function) {
    const char *path = getenv("FAKE_NVML_LOG");
    if (!path) return;
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) return;
    char line[96];
    int n = snprintf(line, sizeof line, "%d %s\n", (int)getpid(), function);
    if (write(file, line, n) < 0) { /* a log is only a log */ }
    close(file);
}

static void crash(Gpu *gpu, const char *function); /* changes.h */

static const Fault *fault_of(const Fault *faults, int n, const char *function) {
    for (int i = 0; i < n; i++)
        if (!strcmp(faults[i].function, function)) return &faults[i];
    return NULL;
}

static void pause_ms(int ms) {
    struct timespec t = {ms / 1000, (ms % 1000) * 1000000L};
    pthread_mutex_unlock(&lock);
    nanosleep(&t, NULL);
    pthread_mutex_lock(&lock);
    refresh();
}

/* Take the lock and do what the state says of this function: hang until it says otherwise, be slow, fail. */
static int enter(const char *function, const char *pci, int needs_init) {
    log_call(function);
    pthread_mutex_lock(&lock);
    refresh();
    int was_slow = 0;
    for (;;) {
        if (needs_init && !users) return UNINITIALIZED;
        Gpu *gpu = pci ? gpu_at(pci) : NULL;
        const Fault *fault = gpu ? fault_of(gpu->faults, gpu->faults_n, function) : NULL;
        if (!fault) fault = fault_of(state.faults, state.faults_n, function);
        if (fault && fault->is_hang) { pause_ms(10); continue; }
        if (fault && fault->slow_ms && !was_slow) { was_slow = 1; pause_ms(fault->slow_ms); continue; }
        if (pci && (!gpu || gpu->is_lost)) return GPU_IS_LOST;
        if (fault && fault->crash == 1) crash(gpu, function);
        return fault ? fault->code : SUCCESS;
    }
}

static int leave(int code) {
    pthread_mutex_unlock(&lock);
    return code;
}

static Handle *handle(int kind, const char *pci, int gi, int ci) {
    for (int i = 0; i < handles_n; i++)
        if (handles[i].kind == kind && handles[i].gi == gi && handles[i].ci == ci && !strcmp(handles[i].pci, pci))
            return &handles[i];
    if (handles_n == MAX_HANDLES) return NULL;
    Handle *h = &handles[handles_n++];
    h->kind = kind; h->gi = gi; h->ci = ci;
    snprintf(h->pci, sizeof h->pci, "%s", pci);
    return h;
}

static Ci *ci_of(Gpu *gpu, const Handle *h) {
    for (int i = 0; i < gpu->cis_n; i++)
        if (gpu->cis[i].gi == h->gi && gpu->cis[i].id == h->ci) return &gpu->cis[i];
    return NULL;
}
static Gi *gi_of(Gpu *gpu, int id) {
    for (int i = 0; i < gpu->gis_n; i++)
        if (gpu->gis[i].id == id) return &gpu->gis[i];
    return NULL;
}
static Profile *profile_of(Gpu *gpu, unsigned id) {
    for (int i = 0; i < gpu->profiles_n; i++)
        if (gpu->profiles[i].info.id == id) return &gpu->profiles[i];
    return NULL;
}

