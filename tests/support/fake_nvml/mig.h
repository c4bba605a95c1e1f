/*
 * MIG as nvml.h has it: modes, profiles, GPU instances, compute instances; made, listed and destroyed.
 *
 * Instance ids are the lowest free ones, as the driver uses them again; a UUID is made of GPU, ids and placement, so the
 * same cut gives the same UUID again. A process (a `process` line) keeps its compute instance; a compute instance keeps its
 * GPU instance; a GPU instance keeps MIG mode.
 */

API nvmlDeviceIsMigDeviceHandle(void *device, unsigned *out) {
    BEGIN(ON_GPU | ON_MIG);
    *out = h->kind == MIG;
    return leave(SUCCESS);
}
API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *device, void **out) {
    BEGIN(ON_MIG);
    *out = handle(GPU, h->pci, -1, -1);
    return leave(SUCCESS);
}
API nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *out) {
    BEGIN(ON_GPU);
    GPU_FACT("mig_max");
    return give_number(text, out);
}
API nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **out) {
    BEGIN(ON_GPU);
    for (int i = 0; i < gpu->cis_n; i++)
        if (gpu->cis[i].index == (int)index) {
            *out = handle(MIG, h->pci, gpu->cis[i].gi, gpu->cis[i].id);
            return leave(SUCCESS);
        }
    return leave(NOT_FOUND);
}
API nvmlDeviceGetGpuInstanceId(void *device, unsigned *out) {
    BEGIN(ON_MIG);
    *out = h->gi;
    return leave(ci_of(gpu, h) ? SUCCESS : NOT_FOUND);
}
API nvmlDeviceGetComputeInstanceId(void *device, unsigned *out) {
    BEGIN(ON_MIG);
    *out = h->ci;
    return leave(ci_of(gpu, h) ? SUCCESS : NOT_FOUND);
}
API nvmlDeviceGetGpuInstanceById(void *device, unsigned id, void **out) {
    BEGIN(ON_GPU);
    if (!gi_of(gpu, id)) return leave(NOT_FOUND);
    *out = handle(GPU_INSTANCE, h->pci, id, -1);
    return leave(SUCCESS);
}
API nvmlGpuInstanceGetInfo(void *device, GiInfo *out) {
    BEGIN(1 << GPU_INSTANCE);
    Gi *gi = gi_of(gpu, h->gi);
    if (!gi) return leave(NOT_FOUND);
    *out = (GiInfo){handle(GPU, h->pci, -1, -1), gi->id, gi->profile_id, gi->placement};
    return leave(SUCCESS);
}
API nvmlGpuInstanceGetComputeInstanceById(void *device, unsigned id, void **out) {
    BEGIN(1 << GPU_INSTANCE);
    Handle key = {COMPUTE_INSTANCE, "", h->gi, id};
    if (!ci_of(gpu, &key)) return leave(NOT_FOUND);
    *out = handle(COMPUTE_INSTANCE, h->pci, h->gi, id);
    return leave(SUCCESS);
}
API nvmlComputeInstanceGetInfo_v2(void *device, CiInfo *out) {
    BEGIN(1 << COMPUTE_INSTANCE);
    Ci *ci = ci_of(gpu, h);
    if (!ci) return leave(NOT_FOUND);
    const char *what = fact(gpu->facts, gpu->facts_n, "ci_device");
    Handle *own = what && !strcmp(what, "mig") ? handle(MIG, h->pci, h->gi, h->ci) : handle(GPU, h->pci, -1, -1);
    *out = (CiInfo){own, handle(GPU_INSTANCE, h->pci, h->gi, -1), ci->id, ci->slices - 1,
                    ci->placement};
    return leave(SUCCESS);
}
API nvmlDeviceGetAttributes_v2(void *device, Attributes *out) {
    BEGIN(ON_MIG);
    Ci *ci = ci_of(gpu, h);
    Gi *gi = ci ? gi_of(gpu, ci->gi) : NULL;
    Profile *p = gi ? profile_of(gpu, gi->profile_id) : NULL;
    if (!p) return leave(NOT_FOUND);
    GiProfile *i = &p->info;
    *out = (Attributes){ci->sms, i->copy, i->decoders, i->encoders, i->jpeg, i->ofa, i->slices, ci->slices, i->memory_mib};
    return leave(SUCCESS);
}
static Profile *profile_by_constant(Gpu *gpu, unsigned constant) {
    for (int i = 0; i < gpu->profiles_n; i++)
        if (gpu->profiles[i].constant == constant) return &gpu->profiles[i];
    return NULL;
}
API nvmlDeviceGetGpuInstanceProfileInfo(void *device, unsigned constant, GiProfile *out) {
    BEGIN(ON_GPU);
    Profile *p = profile_by_constant(gpu, constant);
    if (!p) return leave(NOT_SUPPORTED);
    *out = p->info;
    return leave(SUCCESS);
}
static unsigned profile_version(void) {
    const char *only = getenv("FAKE_NVML_PROFILE_VERSION");
    return only ? (unsigned)atoi(only) : 2;
}
API nvmlDeviceGetGpuInstanceProfileInfoV(void *device, unsigned constant, GiProfileV2 *out) {
    BEGIN(ON_GPU);
    Profile *p = profile_by_constant(gpu, constant);
    if (!p) return leave(NOT_SUPPORTED);
    GiProfile *i = &p->info;
    if (profile_version() == 3 && out->version == VERSION(GiProfileV3, 3)) {
        *(GiProfileV3 *)out = (GiProfileV3){out->version, i->id, i->slices, i->instances, i->sms, i->copy, i->decoders,
                                            i->encoders, i->jpeg, i->ofa, i->memory_mib, "", 0};
        return leave(SUCCESS);
    }
    if (profile_version() != 2 || out->version != VERSION(GiProfileV2, 2)) return leave(ARGUMENT_VERSION_MISMATCH);
    *out = (GiProfileV2){out->version, i->id, i->p2p, i->slices, i->instances, i->sms, i->copy, i->decoders,
                         i->encoders, i->jpeg, i->ofa, i->memory_mib, ""};
    snprintf(out->name, sizeof out->name, "MIG %s", p->name);
    return leave(SUCCESS);
}
API nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *device, unsigned id, Placement *out, unsigned *count) {
    BEGIN(ON_GPU);
    Profile *p = profile_of(gpu, id);
    if (!p || (fact(gpu->facts, gpu->facts_n, "mig_placements_need_mode") && !is_mig_on(gpu))) return leave(NOT_SUPPORTED);
    for (unsigned i = 0; out && i < p->starts_n; i++) out[i] = (Placement){p->starts[i], p->size};
    *count = p->starts_n;
    return leave(SUCCESS);
}

/* -- changes */

API nvmlDeviceSetMigMode(void *device, unsigned mode, int *status) {
    BEGIN(ON_GPU);
    if (!fact(gpu->facts, gpu->facts_n, "mig_mode")) return leave(NOT_SUPPORTED);
    begin_change();
    gpu = gpu_at(h->pci);
    int now = is_mig_on(gpu);
    char line[32];
    *status = SUCCESS;
    if (fact(gpu->facts, gpu->facts_n, "mig_reset") && now != (int)mode) *status = RESET_REQUIRED;
    else if (now != (int)mode && (gpu->gis_n || gpu->running_n)) *status = IN_USE;
    int is_late = fact(gpu->facts, gpu->facts_n, "mig_late") != NULL;
    snprintf(line, sizeof line, "mig_mode %d %u", *status || is_late ? now : (int)mode, mode);
    change(h->pci, NULL, line);
    end_change();
    crash_after(gpu_at(h->pci), __func__);
    return leave(SUCCESS);
}

static unsigned long long hash(const char *text, unsigned long long seed) {
    for (seed ^= 14695981039346656037ULL; *text; text++) seed = (seed ^ (unsigned char)*text) * 1099511628211ULL;
    return seed ^ seed >> 29;
}
static int overlaps(Gpu *gpu, Placement at) {
    for (int i = 0; i < gpu->gis_n; i++) {
        Placement other = gpu->gis[i].placement;
        if (at.start < other.start + other.size && other.start < at.start + at.size) return 1;
    }
    return 0;
}
static int count_of(Gpu *gpu, int profile_id) {
    int n = 0;
    for (int i = 0; i < gpu->gis_n; i++) n += gpu->gis[i].profile_id == profile_id;
    return n;
}
static unsigned compute_left(Gpu *gpu) {
    unsigned used = 0, most = 0;
    for (int i = 0; i < gpu->profiles_n; i++)
        if (gpu->profiles[i].info.slices > most) most = gpu->profiles[i].info.slices;
    for (int i = 0; i < gpu->gis_n; i++) {
        Profile *p = profile_of(gpu, gpu->gis[i].profile_id);
        used += p ? p->info.slices : 0;
    }
    return most - used;
}
/* The pthread lock and the file lock are held. */
static int make_gi(Gpu *gpu, Profile *p, const Placement *wanted, int *id) {
    int is_allowed = 0;
    if (!is_mig_on(gpu)) return NOT_SUPPORTED;
    for (unsigned i = 0; i < p->starts_n; i++) is_allowed |= wanted->start == p->starts[i] && wanted->size == p->size;
    if (!is_allowed) return INVALID_ARGUMENT;
    if (overlaps(gpu, *wanted) || count_of(gpu, (int)p->info.id) >= (int)p->info.instances ||
        compute_left(gpu) < p->info.slices) return INSUFFICIENT_RESOURCES;
    for (*id = 1; gi_of(gpu, *id);) ++*id;
    char line[64];
    snprintf(line, sizeof line, "gi %d %u %u %u", *id, p->info.id, wanted->start, wanted->size);
    change(gpu->pci, NULL, line);
    show_capability(gpu, *id, -1, 1);
    return SUCCESS;
}
API nvmlDeviceCreateGpuInstanceWithPlacement(void *device, unsigned profile, const Placement *wanted, void **out) {
    BEGIN(ON_GPU);
    int id = 0;
    begin_change();
    gpu = gpu_at(h->pci);
    Profile *p = profile_of(gpu, profile);
    code = p ? make_gi(gpu, p, wanted, &id) : NOT_SUPPORTED;
    end_change();
    if (!code) *out = handle(GPU_INSTANCE, h->pci, id, -1);
    crash_after(gpu_at(h->pci), __func__);
    return leave(code);
}
API nvmlGpuInstanceDestroy(void *device) {
    BEGIN(1 << GPU_INSTANCE);
    char line[32];
    begin_change();
    gpu = gpu_at(h->pci);
    code = gi_of(gpu, h->gi) ? SUCCESS : NOT_FOUND;
    for (int i = 0; i < gpu->cis_n; i++)
        if (gpu->cis[i].gi == h->gi) code = IN_USE;
    snprintf(line, sizeof line, "gi %d", h->gi);
    if (!code) {
        change(h->pci, line, NULL);
        show_capability(gpu, h->gi, -1, 0);
    }
    end_change();
    crash_after(gpu_at(h->pci), __func__);
    return leave(code);
}
API nvmlDeviceGetGpuInstanceRemainingCapacity(void *device, unsigned profile, unsigned *out) {
    BEGIN(ON_GPU);
    if (!is_mig_on(gpu)) return leave(NOT_SUPPORTED);
    Profile *p = profile_of(gpu, profile);
    if (!p) return leave(INVALID_ARGUMENT);
    unsigned end = 0, most = p->info.instances - count_of(gpu, (int)profile), slices = compute_left(gpu) / p->info.slices;
    *out = 0;
    for (unsigned i = 0; i < p->starts_n; i++) {
        if (p->starts[i] < end || overlaps(gpu, (Placement){p->starts[i], p->size})) continue;
        end = p->starts[i] + p->size;
        ++*out;
    }
    if (*out > most) *out = most;
    if (*out > slices) *out = slices;
    return leave(SUCCESS);
}
API nvmlDeviceGetGpuInstances(void *device, unsigned profile, void **out, unsigned *count) {
    BEGIN(ON_GPU);
    if (!is_mig_on(gpu)) return leave(NOT_SUPPORTED);
    *count = 0;
    for (int i = 0; i < gpu->gis_n; i++)
        if (gpu->gis[i].profile_id == (int)profile) out[(*count)++] = handle(GPU_INSTANCE, h->pci, gpu->gis[i].id, -1);
    return leave(SUCCESS);
}

/* -- compute instances; profile n-1 has n slices, 7 slices have profile 4 */

static const unsigned ci_slices[] = {1, 2, 3, 4, 7, 8, 6, 1, 7};
API nvmlGpuInstanceGetComputeInstanceProfileInfo(void *device, unsigned constant, unsigned engines, CiProfile *out) {
    BEGIN(1 << GPU_INSTANCE);
    Gi *gi = gi_of(gpu, h->gi);
    Profile *p = gi ? profile_of(gpu, gi->profile_id) : NULL;
    if (!p || engines) return leave(INVALID_ARGUMENT);
    GiProfile *i = &p->info;
    /* the REV1 profile exists on whole-GPU instances only, the one for many GPUs nowhere here */
    if (constant > 7 || ci_slices[constant] > i->slices || (constant == 7 && i->slices < 7)) return leave(NOT_SUPPORTED);
    unsigned n = ci_slices[constant];
    *out = (CiProfile){constant, n, i->slices / n, i->sms * n / i->slices, i->copy, i->decoders, i->encoders, i->jpeg, i->ofa};
    return leave(SUCCESS);
}
API nvmlGpuInstanceGetComputeInstanceProfileInfoV(void *device, unsigned constant, unsigned engines, CiProfileV2 *out) {
    unsigned version = out->version;
    CiProfile plain;
    int answer = nvmlGpuInstanceGetComputeInstanceProfileInfo(device, constant, engines, &plain);
    if (answer != SUCCESS) return answer;
    if (version != (sizeof(CiProfileV2) | profile_version() << 24)) {
        if (profile_version() != 3 || version != (sizeof(CiProfileV3) | 3u << 24)) return ARGUMENT_VERSION_MISMATCH;
    }
    out->id = plain.id;
    return SUCCESS;
}
static int make_ci(Gpu *gpu, Gi *gi, Profile *p, unsigned constant, int *id) {
    unsigned used = 0, n = ci_slices[constant];
    int index = 0;
    Handle key = {COMPUTE_INSTANCE, "", gi->id, 0};
    for (int i = 0; i < gpu->cis_n; i++) used += gpu->cis[i].gi == gi->id ? gpu->cis[i].slices : 0;
    if (used + n > p->info.slices) return INSUFFICIENT_RESOURCES;
    while (ci_of(gpu, &key)) key.ci++;
    for (int i = 0; i < gpu->cis_n; i++)
        if (gpu->cis[i].index == index) { index++; i = -1; }
    *id = key.ci;
    char seed[256], name[64], line[400];
    const char *uuid = fact(gpu->facts, gpu->facts_n, "uuid");
    snprintf(seed, sizeof seed, "%s/%d/%d/%d/%u/%u", uuid ? uuid : "", gi->id, key.ci, gi->profile_id, gi->placement.start, n);
    unsigned long long a = hash(seed, 1), b = hash(seed, 2);
    if (n == p->info.slices) snprintf(name, sizeof name, "%s", p->name);
    else snprintf(name, sizeof name, "%uc.%s", n, p->name);
    snprintf(line, sizeof line, "ci %d %d %d %u %u %u %u MIG-%08x-%04x-5%03x-8%03x-%012llx %s", gi->id, key.ci, index, n, used,
             n, p->info.sms * n / p->info.slices, (unsigned)(a >> 32), (unsigned)a & 0xffff, (unsigned)(a >> 16) & 0xfff,
             (unsigned)(b >> 48) & 0xfff, b & 0xffffffffffffULL, name);
    change(gpu->pci, NULL, line);
    show_capability(gpu, gi->id, key.ci, 1);
    return SUCCESS;
}
API nvmlGpuInstanceCreateComputeInstance(void *device, unsigned profile, void **out) {
    BEGIN(1 << GPU_INSTANCE);
    int id = 0;
    begin_change();
    gpu = gpu_at(h->pci);
    Gi *gi = gi_of(gpu, h->gi);
    Profile *p = gi ? profile_of(gpu, gi->profile_id) : NULL;
    code = !p ? NOT_FOUND : profile > 7 ? NOT_SUPPORTED : make_ci(gpu, gi, p, profile, &id);
    end_change();
    if (!code) *out = handle(COMPUTE_INSTANCE, h->pci, h->gi, id);
    crash_after(gpu_at(h->pci), __func__);
    return leave(code);
}
API nvmlGpuInstanceGetComputeInstances(void *device, unsigned profile, void **out, unsigned *count) {
    BEGIN(1 << GPU_INSTANCE);
    *count = 0;
    if (!gi_of(gpu, h->gi) || profile > 7) return leave(INVALID_ARGUMENT);
    for (int i = 0; i < gpu->cis_n; i++)
        if (gpu->cis[i].gi == h->gi && gpu->cis[i].slices == ci_slices[profile])
            out[(*count)++] = handle(COMPUTE_INSTANCE, h->pci, h->gi, gpu->cis[i].id);
    return leave(SUCCESS);
}
API nvmlGpuInstanceGetComputeInstanceRemainingCapacity(void *device, unsigned profile, unsigned *out) {
    BEGIN(1 << GPU_INSTANCE);
    Gi *gi = gi_of(gpu, h->gi);
    Profile *p = gi ? profile_of(gpu, gi->profile_id) : NULL;
    if (!p || profile > 7) return leave(INVALID_ARGUMENT);
    unsigned used = 0;
    for (int i = 0; i < gpu->cis_n; i++) used += gpu->cis[i].gi == gi->id ? gpu->cis[i].slices : 0;
    *out = (p->info.slices - used) / ci_slices[profile];
    return leave(SUCCESS);
}
API nvmlComputeInstanceDestroy(void *device) {
    BEGIN(1 << COMPUTE_INSTANCE);
    char line[32];
    begin_change();
    gpu = gpu_at(h->pci);
    code = ci_of(gpu, h) ? SUCCESS : NOT_FOUND;
    for (int i = 0; i < gpu->running_n; i++)
        if (gpu->running[i].process.gi == (unsigned)h->gi && gpu->running[i].process.ci == (unsigned)h->ci) code = IN_USE;
    snprintf(line, sizeof line, "ci %d %d", h->gi, h->ci);
    if (!code) {
        change(h->pci, line, NULL);
        show_capability(gpu, h->gi, h->ci, 0);
    }
    end_change();
    crash_after(gpu_at(h->pci), __func__);
    return leave(code);
}
