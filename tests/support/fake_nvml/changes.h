/*
 * Changes that outlive the process: what happened to a GPU is added at the end of the state file, under a lock that all
 * processes share. A change takes a few microseconds, because a real GPU writes no file at all. Also what the kernel module shows of MIG instances below
 * FAKE_NVML_PROC (a stand-in for /proc): one file for each capability, with the minor of its node.
 */
#define CAPS_FIRST 3      /* two global capabilities, then those of 15 GPU instances a GPU */
#define CAPS_INSTANCES 15
#define CAPS_OF_ONE 9     /* the GPU instance and eight compute instances */

static int lock_file = -1;
static pid_t lock_owner; /* a child shares its parent's open files, and with them their locks */
static char lock_path[512];

/* Begin a change: lock, and see what others did meanwhile. The pthread lock is held. */
static void begin_change(void) {
    char path[512];
    snprintf(path, sizeof path, "%s.lock", getenv("FAKE_NVML_STATE"));
    if (lock_file < 0 || lock_owner != getpid() || strcmp(path, lock_path)) {
        if (lock_file >= 0) close(lock_file);
        lock_file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        lock_owner = getpid();
        memcpy(lock_path, path, sizeof path);
    }
    if (lock_file >= 0) flock(lock_file, LOCK_EX);
    refresh();
}
static void end_change(void) {
    if (lock_file >= 0) flock(lock_file, LOCK_UN);
}

/*
 * Add to the state file that a line of a GPU is gone, that it has a new one, or both; either may be NULL. A fact that
 * has a new line replaces the one before.
 */
static void change(const char *address, const char *drop, const char *add) {
    char made[LINE + 160];
    int n = snprintf(made, sizeof made, "changed %s\n", address);
    if (drop) n += snprintf(made + n, sizeof made - (size_t)n, "drop %s\n", drop);
    if (add) n += snprintf(made + n, sizeof made - (size_t)n, "%s\n", add);
    if (n >= (int)sizeof made || write(state_file, made, (size_t)n) != n) abort();
    parse(made, seen_size + n);
}

/* Die here and now, once: the line that asked for it goes first. */
static void crash(Gpu *gpu, const char *function) {
    char line[96];
    snprintf(line, sizeof line, "fault %s", function);
    if (gpu) {
        begin_change();
        change(gpu->pci, line, NULL);
        end_change();
    }
    kill(getpid(), SIGKILL);
    for (;;) pause();
}
static void crash_after(Gpu *gpu, const char *function) {
    const Fault *fault = fault_of(gpu->faults, gpu->faults_n, function);
    if (fault && fault->crash == 2) crash(gpu, function);
}

static int is_mig_on(Gpu *gpu) {
    return gpu->has_mig && gpu->mig_now == 1;
}
static unsigned minor_of(Gpu *gpu) {
    const char *text = is_mig_on(gpu) ? fact(gpu->facts, gpu->facts_n, "mig_minor") : NULL;
    if (!text) text = fact(gpu->facts, gpu->facts_n, "minor");
    return text ? (unsigned)strtoul(text, NULL, 0) : 0;
}

static void make_parents(char *path) {
    for (char *at = path + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        mkdir(path, 0755);
        *at = '/';
    }
}

/* Show or hide a GPU instance (ci < 0) or a compute instance as the kernel module does. */
static void show_capability(Gpu *gpu, int gi, int ci, int is_there) {
    const char *proc = getenv("FAKE_NVML_PROC");
    char path[512], part[24] = "";
    if (!proc) return;
    unsigned minor = minor_of(gpu);
    if (ci >= 0) snprintf(part, sizeof part, "ci%d/", ci);
    snprintf(path, sizeof path, "%s/driver/nvidia/capabilities/gpu%u/mig/gi%d/%saccess", proc, minor, gi, part);
    if (is_there) {
        make_parents(path);
        FILE *file = fopen(path, "w");
        if (!file) return;
        unsigned cap = CAPS_FIRST + (minor * CAPS_INSTANCES + (unsigned)gi) * CAPS_OF_ONE + (unsigned)(ci + 1);
        fprintf(file, "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n", cap);
        fclose(file);
    } else {
        unlink(path);
        *strrchr(path, '/') = 0;
        rmdir(path);
    }
}
