/*
 * Changes that outlive the process: lines of one GPU in the state file are added, dropped or replaced, under a lock that
 * all processes share, and the new file is renamed into place. Also what the kernel module shows of MIG instances below
 * FAKE_NVML_PROC (a stand-in for /proc): one file for each capability, with the minor of its node.
 */
#define CAPS_FIRST 3      /* two global capabilities, then those of 15 GPU instances a GPU */
#define CAPS_INSTANCES 15
#define CAPS_OF_ONE 9     /* the GPU instance and eight compute instances */

static int lock_file = -1;

/* Begin a change: lock, and see what others did meanwhile. The pthread lock is held. */
static void begin_change(void) {
    char path[512];
    snprintf(path, sizeof path, "%s.lock", getenv("FAKE_NVML_STATE"));
    lock_file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock_file >= 0) flock(lock_file, LOCK_EX);
    refresh();
}
static void end_change(void) {
    if (lock_file >= 0) close(lock_file);
    lock_file = -1;
    refresh();
}

/* Write content to a new file, rename it into place, and remember it as the file that was read last. */
static void replace_file(const char *made) {
    const char *path = getenv("FAKE_NVML_STATE");
    char other[512];
    snprintf(other, sizeof other, "%s.%d", path, (int)getpid());
    int file = open(other, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0 || write(file, made, strlen(made)) != (ssize_t)strlen(made) || fstat(file, &seen)) abort();
    close(file);
    if (rename(other, path)) abort();
}

/* Write the file anew: of the GPU's lines, drop those that begin with `drop` and a blank, then add `add`. */
static void rewrite(const char *address, const char *drop, const char *add) {
    char pci[32], line[LINE], *made = malloc(strlen(content) + (add ? strlen(add) : 0) + 3), *to = made;
    int is_here = 0;
    size_t drop_n = drop ? strlen(drop) : 0;
    Gpu *gpu = gpu_at(address);
    if (!made || !gpu) abort();
    snprintf(pci, sizeof pci, "%s", address);
    memset(gpu, 0, sizeof *gpu); /* its lines are parsed again; those of the others are as they were */
    snprintf(gpu->pci, sizeof gpu->pci, "%s", pci);
    for (const char *at = content, *next; *at; at = next) {
        next = next_line(at, line);
        int is_gpu = !strncmp(line, "gpu ", 4);
        if (is_gpu) is_here = !strcasecmp(line + 4, pci);
        if (is_here && !is_gpu && drop && !strncmp(line, drop, drop_n) && strchr(" ", line[drop_n])) continue;
        to = mempcpy(to, at, (size_t)(next - at));
        if (to[-1] != '\n') *to++ = '\n';
        if (is_gpu && is_here && add) {
            to += sprintf(to, "%s\n", add);
            snprintf(line, sizeof line, "%s", add);
            is_gpu = 0;
        }
        if (is_here && !is_gpu) parse_line(line, gpu);
    }
    *to = 0;
    replace_file(made);
    free(content);
    content = made;
}

/* Die here and now, once: the line that asked for it goes first. */
static void crash(Gpu *gpu, const char *function) {
    char line[96];
    snprintf(line, sizeof line, "fault %s crash", function);
    if (gpu) rewrite(gpu->pci, line, NULL);
    kill(getpid(), SIGKILL);
    for (;;) pause();
}
static void crash_after(Gpu *gpu, const char *function) {
    const Fault *fault = fault_of(gpu->faults, gpu->faults_n, function);
    if (fault && fault->crash == 2) crash(gpu, function);
}

static int is_mig_on(Gpu *gpu) {
    const char *mode = fact(gpu->facts, gpu->facts_n, "mig_mode");
    return mode && *mode == '1';
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
