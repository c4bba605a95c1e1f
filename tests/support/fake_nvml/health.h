/*
 * What NVML reports of a GPU's health: events, field values, ECC, heat, clocks, PCIe.
 *
 *     supported_events MASK
 *     event SEQUENCE TYPE DATA GI CI    (delivered once to each event set that was made before it; -1: no instance)
 *     field_ID VALUE | field_ID_SCOPE VALUE      (NVML_FI_*; signed; a field without a line is NOT_SUPPORTED)
 *     ecc_uncorrectable COUNT | sram_threshold 0|1 | thermal_margin DEGREES | clock_reasons MASK
 *     pcie_link GENERATION LANES | fabric_health SUMMARY
 *     remapped_rows CORRECTABLE UNCORRECTABLE PENDING FAILURE | retired_pages_pending 0|1 | ecc_memory COUNT
 *     slowdown_temperature DEGREES | throttle_reasons MASK
 */
#define MAX_SETS 64
#define TIMEOUT 10
enum { EVENT_SET = 16 };

typedef struct { void *device; unsigned long long type, data; unsigned gi, ci; } EventData;
typedef struct { unsigned field, scope; long long timestamp, latency; unsigned type; int code; union { unsigned long long u; long long s; } value; } FieldValue;
typedef struct { unsigned version; int margin; } Margin;
typedef struct { unsigned version; unsigned long long counts[11]; unsigned is_exceeded; } SramStatus;
typedef struct { int is_used, gpus_n; char gpus[MAX_GPUS][32]; unsigned long long masks[MAX_GPUS], seen[MAX_GPUS]; } EventSet;

static EventSet sets[MAX_SETS];

static unsigned long long last_event(const Gpu *gpu) {
    unsigned long long last = 0;
    for (int i = 0; i < gpu->events_n; i++)
        if (gpu->events[i].sequence > last) last = gpu->events[i].sequence;
    return last;
}

API nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *out) {
    BEGIN(ON_GPU);
    GPU_FACT("supported_events");
    *out = strtoull(text, NULL, 0);
    return leave(SUCCESS);
}
API nvmlEventSetCreate(void **out) {
    int code = enter(__func__, NULL, 1);
    if (code) return leave(code);
    for (int i = 0; i < MAX_SETS; i++)
        if (!sets[i].is_used) {
            memset(&sets[i], 0, sizeof sets[i]);
            sets[i].is_used = 1;
            *out = &sets[i];
            return leave(SUCCESS);
        }
    return leave(UNKNOWN_ERROR);
}
API nvmlEventSetFree(void *set) {
    int code = enter(__func__, NULL, 1);
    if (!code) ((EventSet *)set)->is_used = 0;
    return leave(code);
}
API nvmlDeviceRegisterEvents(void *device, unsigned long long mask, void *target) {
    BEGIN(ON_GPU);
    EventSet *set = target;
    GPU_FACT("supported_events");
    if (mask & ~strtoull(text, NULL, 0)) return leave(NOT_SUPPORTED);
    if (set->gpus_n == MAX_GPUS) return leave(UNKNOWN_ERROR);
    snprintf(set->gpus[set->gpus_n], 32, "%s", h->pci);
    set->masks[set->gpus_n] = mask;
    set->seen[set->gpus_n++] = last_event(gpu);
    return leave(SUCCESS);
}
/* Take the next event of a set; return 1 for one, -1 where a GPU of the set is lost, 0 for none. The lock is held. */
static int take_event(EventSet *set, EventData *out) {
    int is_lost = 0;
    for (int i = 0; i < set->gpus_n; i++) {
        Gpu *gpu = gpu_at(set->gpus[i]);
        if (!gpu || gpu->is_lost) is_lost = 1;
        for (int j = 0; gpu && j < gpu->events_n; j++) {
            const Happened *event = &gpu->events[j];
            if (event->sequence <= set->seen[i]) continue;
            set->seen[i] = event->sequence;
            if (!(event->type & set->masks[i])) continue;
            *out = (EventData){handle(GPU, gpu->pci, -1, -1), event->type, event->data, event->gi, event->ci};
            return 1;
        }
    }
    return is_lost ? -1 : 0;
}
static int wait_event(const char *function, void *set, EventData *out, unsigned timeout_ms) {
    int code = enter(function, NULL, 1);
    for (unsigned waited = 0; !code; waited += 10) {
        int found = take_event(set, out);
        if (found > 0) return leave(SUCCESS);
        if (waited >= timeout_ms) return leave(found < 0 ? GPU_IS_LOST : TIMEOUT);
        pause_ms(10);
    }
    return leave(code);
}
API nvmlEventSetWait_v2(void *set, EventData *out, unsigned timeout_ms) { return wait_event(__func__, set, out, timeout_ms); }
API nvmlEventSetWait(void *set, EventData *out, unsigned timeout_ms) { return wait_event(__func__, set, out, timeout_ms); }

API nvmlDeviceGetFieldValues(void *device, int count, FieldValue *values) {
    BEGIN(ON_GPU);
    for (int i = 0; i < count; i++) {
        char key[40];
        snprintf(key, sizeof key, values[i].scope ? "field_%u_%u" : "field_%u", values[i].field, values[i].scope);
        const char *text = fact(gpu->facts, gpu->facts_n, key);
        values[i].code = text ? SUCCESS : NOT_SUPPORTED;
        values[i].type = text && *text == '-' ? 4 : 3; /* NVML_VALUE_TYPE_SIGNED_LONG_LONG, UNSIGNED_LONG_LONG */
        if (text && *text == '-') values[i].value.s = strtoll(text, NULL, 0);
        else if (text) values[i].value.u = strtoull(text, NULL, 0);
    }
    return leave(SUCCESS);
}
API nvmlDeviceGetTotalEccErrors(void *device, unsigned type, unsigned counter, unsigned long long *out) {
    BEGIN(ON_GPU);
    GPU_FACT("ecc_uncorrectable");
    *out = type == 1 && counter == 0 ? strtoull(text, NULL, 0) : 0;
    return leave(SUCCESS);
}
API nvmlDeviceGetSramEccErrorStatus(void *device, SramStatus *out) {
    BEGIN(ON_GPU);
    if (out->version != VERSION(SramStatus, 1)) return leave(ARGUMENT_VERSION_MISMATCH);
    GPU_FACT("sram_threshold");
    return give_number(text, &out->is_exceeded);
}
API nvmlDeviceGetMarginTemperature(void *device, Margin *out) {
    BEGIN(ON_GPU);
    if (out->version != VERSION(Margin, 1)) return leave(ARGUMENT_VERSION_MISMATCH);
    GPU_FACT("thermal_margin");
    out->margin = atoi(text);
    return leave(SUCCESS);
}
API nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *out) {
    BEGIN(ON_GPU);
    GPU_FACT("clock_reasons");
    *out = strtoull(text, NULL, 0);
    return leave(SUCCESS);
}
API nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *out) {
    unsigned lanes;
    BEGIN(ON_GPU);
    GPU_FACT("pcie_link");
    return leave(sscanf(text, "%u %u", out, &lanes) == 2 ? SUCCESS : UNKNOWN_ERROR);
}
API nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *out) {
    unsigned generation;
    BEGIN(ON_GPU);
    GPU_FACT("pcie_link");
    return leave(sscanf(text, "%u %u", &generation, out) == 2 ? SUCCESS : UNKNOWN_ERROR);
}
API nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    BEGIN(ON_GPU);
    GPU_FACT("remapped_rows");
    return leave(sscanf(text, "%u %u %u %u", corrected, uncorrected, pending, failed) == 4 ? SUCCESS : UNKNOWN_ERROR);
}
API nvmlDeviceGetRetiredPagesPendingStatus(void *device, unsigned *out) {
    BEGIN(ON_GPU);
    GPU_FACT("retired_pages_pending");
    return give_number(text, out);
}
API nvmlDeviceGetMemoryErrorCounter(void *device, unsigned type, unsigned counter, unsigned location, unsigned long long *out) {
    BEGIN(ON_GPU);
    GPU_FACT("ecc_memory");
    if (location != 2) return leave(NOT_SUPPORTED); /* NVML_MEMORY_LOCATION_DEVICE_MEMORY */
    *out = type == 1 && counter == 0 ? strtoull(text, NULL, 0) : 0;
    return leave(SUCCESS);
}
API nvmlDeviceGetTemperatureThreshold(void *device, unsigned type, unsigned *out) {
    BEGIN(ON_GPU);
    GPU_FACT("slowdown_temperature");
    if (type != 1) return leave(NOT_SUPPORTED); /* NVML_TEMPERATURE_THRESHOLD_SLOWDOWN */
    return give_number(text, out);
}
API nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *out) {
    BEGIN(ON_GPU);
    GPU_FACT("throttle_reasons");
    *out = strtoull(text, NULL, 0);
    return leave(SUCCESS);
}
