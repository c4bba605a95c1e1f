/*
 * What NVML measures of a GPU: clocks, temperature, power, utilization, processes, and the profiling counters (GPM).
 *
 *     clock_sm MHZ | clock_memory MHZ | temperature DEGREES | power_mw MILLIWATTS
 *     util GPU MEMORY (percent; NOT_SUPPORTED in MIG mode, as on the real ones) | util_encoder P | util_decoder P
 *     memory_used[_giN] BYTES | memory_reserved[_giN] BYTES
 *     process_util_PID PERCENT
 *     fan_speed PERCENT | pstate NUMBER | power_limit_mw MILLIWATTS | power_enforced_mw MILLIWATTS
 *     gpm 1 (has profiling counters) | gpm_ID[_giN] VALUE (NVML_GPM_METRIC_*, what comparing two samples shows)
 */
#define MAX_SAMPLES 512

typedef struct { int is_used, gi; char pci[32]; } Sample;
typedef struct { char *names[3]; } MetricInfo;
typedef struct { unsigned id; int code; double value; MetricInfo info; } Metric;
typedef struct { unsigned version, count; Sample *older, *newer; Metric metrics[]; } Comparison;
typedef struct { unsigned version, is_supported; } GpmSupport;
typedef struct { unsigned version, sensor; int degrees; } Temperature;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned pid; unsigned long long at; unsigned sm, memory, encoder, decoder; } ProcessSample;

static Sample samples[MAX_SAMPLES];

API nvmlDeviceGetClockInfo(void *device, unsigned type, unsigned *out) {
    BEGIN(ON_GPU);
    GPU_FACT(type == 1 ? "clock_sm" : type == 2 ? "clock_memory" : "clock_other");
    return give_number(text, out);
}
API nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *out) {
    BEGIN(ON_GPU);
    if (sensor) return leave(INVALID_ARGUMENT);
    GPU_FACT("temperature");
    return give_number(text, out);
}
API nvmlDeviceGetTemperatureV(void *device, Temperature *out) {
    BEGIN(ON_GPU);
    if (out->version != VERSION(Temperature, 1)) return leave(ARGUMENT_VERSION_MISMATCH);
    GPU_FACT("temperature");
    out->degrees = atoi(text);
    return leave(SUCCESS);
}
NUMBER(nvmlDeviceGetPowerUsage, "power_mw")
NUMBER(nvmlDeviceGetFanSpeed, "fan_speed")
NUMBER(nvmlDeviceGetPerformanceState, "pstate")
NUMBER(nvmlDeviceGetPowerManagementLimit, "power_limit_mw")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_enforced_mw")
API nvmlDeviceGetUtilizationRates(void *device, Utilization *out) {
    BEGIN(ON_GPU);
    if (is_mig_on(gpu)) return leave(NOT_SUPPORTED);
    GPU_FACT("util");
    return leave(sscanf(text, "%u %u", &out->gpu, &out->memory) == 2 ? SUCCESS : UNKNOWN_ERROR);
}
API nvmlDeviceGetEncoderUtilization(void *device, unsigned *out, unsigned *period_us) {
    BEGIN(ON_GPU);
    *period_us = 1000000;
    GPU_FACT("util_encoder");
    return give_number(text, out);
}
API nvmlDeviceGetDecoderUtilization(void *device, unsigned *out, unsigned *period_us) {
    BEGIN(ON_GPU);
    *period_us = 1000000;
    GPU_FACT("util_decoder");
    return give_number(text, out);
}
API nvmlDeviceGetProcessUtilization(void *device, ProcessSample *out, unsigned *count, unsigned long long since) {
    BEGIN(ON_GPU);
    unsigned n = 0, room = *count;
    (void)since;
    if (is_mig_on(gpu)) return leave(NOT_SUPPORTED);
    for (int i = 0; i < gpu->facts_n; i++) {
        unsigned pid;
        if (sscanf(gpu->facts[i].key, "process_util_%u", &pid) != 1) continue;
        if (out && n < room) out[n] = (ProcessSample){pid, 1, (unsigned)atoi(gpu->facts[i].value), 0, 0, 0};
        n++;
    }
    *count = n;
    return leave(n > room ? INSUFFICIENT_SIZE : SUCCESS);
}

API nvmlGpmQueryDeviceSupport(void *device, GpmSupport *out) {
    BEGIN(ON_GPU);
    if (out->version != 1) return leave(ARGUMENT_VERSION_MISMATCH);
    const char *text = fact(gpu->facts, gpu->facts_n, "gpm");
    out->is_supported = text && atoi(text);
    return leave(SUCCESS);
}
API nvmlGpmSampleAlloc(Sample **out) {
    int code = enter(__func__, NULL, 1);
    for (int i = 0; !code && i < MAX_SAMPLES; i++)
        if (!samples[i].is_used) {
            samples[i].is_used = 1;
            *out = &samples[i];
            return leave(SUCCESS);
        }
    return leave(code ? code : UNKNOWN_ERROR);
}
API nvmlGpmSampleFree(Sample *sample) {
    int code = enter(__func__, NULL, 1);
    if (!code) sample->is_used = 0;
    return leave(code);
}
static int take_sample(Handle *h, Gpu *gpu, int gi, Sample *sample) {
    const char *text = fact(gpu->facts, gpu->facts_n, "gpm");
    if (!text || !atoi(text)) return leave(NOT_SUPPORTED);
    if (gi >= 0 && !gi_of(gpu, gi)) return leave(NOT_FOUND);
    snprintf(sample->pci, sizeof sample->pci, "%s", h->pci);
    sample->gi = gi;
    return leave(SUCCESS);
}
API nvmlGpmSampleGet(void *device, Sample *sample) { BEGIN(ON_GPU); return take_sample(h, gpu, -1, sample); }
API nvmlGpmMigSampleGet(void *device, unsigned gi, Sample *sample) { BEGIN(ON_GPU); return take_sample(h, gpu, (int)gi, sample); }
API nvmlGpmMetricsGet(Comparison *asked) {
    int code = enter(__func__, NULL, 1);
    if (code) return leave(code);
    if (asked->version != 1) return leave(ARGUMENT_VERSION_MISMATCH);
    Gpu *gpu = gpu_at(asked->newer->pci);
    if (!gpu || strcmp(asked->older->pci, asked->newer->pci) || asked->older->gi != asked->newer->gi)
        return leave(INVALID_ARGUMENT);
    for (unsigned i = 0; i < asked->count; i++) {
        char key[40];
        snprintf(key, sizeof key, asked->newer->gi < 0 ? "gpm_%u" : "gpm_%u_gi%d", asked->metrics[i].id, asked->newer->gi);
        const char *text = fact(gpu->facts, gpu->facts_n, key);
        asked->metrics[i].code = text ? SUCCESS : NOT_SUPPORTED;
        asked->metrics[i].value = text ? atof(text) : 0.0;
    }
    return leave(SUCCESS);
}
