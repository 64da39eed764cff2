/* The lab's libnvidia-ml.so.1: a driver library over a text file, so that the real nvidia-smi runs on a machine without a GPU.
 *
 * The file named by GPU_FLEET_LAB_NVML has lines "KEY VALUE". Keys begin with the index of a GPU ("0.uuid"), with a MIG device of it
 * ("0.mig.1.uuid"), or with nothing ("driver"). A value "!N" is NVML's error N. What has no key is NVML_ERROR_NOT_SUPPORTED, as on a
 * GPU that lacks it. "0.broken !15" is the answer to every question about GPU 0; "0.handle !15" is that to who it is.
 * Numbers are in NVML's units: mW, bytes, MHz, KB/s. lab/gpu/nvml/state.py writes the file.
 *
 * Functions and types are those of NVIDIA's documented API, which nvml.h declares. What nvidia-smi looks up beyond them is not here.
 */
#include <nvml.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GPUS = 32, MIG_DEVICES = 8 };

/* Handles: nvml.h leaves the type open. `mig` is -1 for the GPU itself. */
struct nvmlDevice_st {
    int gpu, mig;
};
static struct nvmlDevice_st handles[GPUS][MIG_DEVICES + 1];

static char *text;
static struct {
    const char *key, *value;
} lines[8192];
static size_t line_count;

static int by_key(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static const char *line(const char *key) {
    const void *found = bsearch(&key, lines, line_count, sizeof lines[0], by_key);
    return found ? ((const char *const *)found)[1] : NULL;
}

static nvmlReturn_t load(void) {
    const char *path = getenv("GPU_FLEET_LAB_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return NVML_ERROR_DRIVER_NOT_LOADED;
    free(text);
    text = calloc(1, 1 << 20);
    fread(text, 1, (1 << 20) - 1, file);
    fclose(file);
    line_count = 0;
    for (char *at = strtok(text, "\n"); at && line_count < sizeof lines / sizeof lines[0]; at = strtok(NULL, "\n")) {
        char *space = strchr(at, ' ');
        if (!space) continue;
        *space = 0;
        lines[line_count].key = at;
        lines[line_count++].value = space + 1;
    }
    qsort(lines, line_count, sizeof lines[0], by_key);
    return NVML_SUCCESS;
}

/* The value of a key, or NVML's error. */
static nvmlReturn_t value(const char *key, const char **found) {
    *found = line(key);
    if (!*found) return NVML_ERROR_NOT_SUPPORTED;
    return **found == '!' ? (nvmlReturn_t)atoi(*found + 1) : NVML_SUCCESS;
}

static nvmlReturn_t of_device(nvmlDevice_t device, const char **found, const char *form, va_list more) {
    char key[96], name[64];
    if (!device) return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(key, sizeof key, "%d.broken", device->gpu);
    if (value(key, found) != NVML_ERROR_NOT_SUPPORTED) return value(key, found);
    vsnprintf(name, sizeof name, form, more);
    if (device->mig < 0)
        snprintf(key, sizeof key, "%d.%s", device->gpu, name);
    else
        snprintf(key, sizeof key, "%d.mig.%d.%s", device->gpu, device->mig, name);
    return value(key, found);
}

static nvmlReturn_t copy(nvmlReturn_t status, const char *from, char *to, unsigned int length) {
    if (status == NVML_SUCCESS && strlen(from) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
    if (status == NVML_SUCCESS) strcpy(to, from);
    return status;
}

static nvmlReturn_t get_text(nvmlDevice_t device, char *to, unsigned int length, const char *form, ...) {
    const char *found;
    va_list more;
    va_start(more, form);
    nvmlReturn_t status = of_device(device, &found, form, more);
    va_end(more);
    return copy(status, found, to, length);
}

/* A number of `size` bytes: NVML's are int, long long and enums. */
static nvmlReturn_t get_number(nvmlDevice_t device, void *to, size_t size, const char *form, ...) {
    const char *found;
    va_list more;
    va_start(more, form);
    nvmlReturn_t status = of_device(device, &found, form, more);
    va_end(more);
    if (status != NVML_SUCCESS) return status;
    unsigned long long number = (unsigned long long)strtoll(found, NULL, 0);
    memcpy(to, &number, size); /* little-endian, as every machine with these packages is */
    return NVML_SUCCESS;
}
#define GET(device, to, ...) get_number(device, to, sizeof *(to), __VA_ARGS__)

/* --- the machine ------------------------------------------------------------------------------------------------------ */

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    const char *found;
    nvmlReturn_t status = load();
    (void)flags;
    if (status != NVML_SUCCESS) return status;
    for (int gpu = 0; gpu < GPUS; gpu++)
        for (int mig = -1; mig < MIG_DEVICES; mig++) handles[gpu][mig + 1] = (struct nvmlDevice_st){gpu, mig};
    status = value("init", &found);
    return status == NVML_ERROR_NOT_SUPPORTED ? NVML_SUCCESS : status;
}
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }

/* The words of the documentation of nvmlReturn_t, as drivers print them. */
const char *nvmlErrorString(nvmlReturn_t result) {
    switch (result) {
        case NVML_SUCCESS: return "Success";
        case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
        case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
        case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
        case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
        case NVML_ERROR_NOT_FOUND: return "Not Found";
        case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
        case NVML_ERROR_INSUFFICIENT_POWER: return "Insufficient External Power";
        case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
        case NVML_ERROR_TIMEOUT: return "Timeout";
        case NVML_ERROR_IRQ_ISSUE: return "Interrupt Request Issue";
        case NVML_ERROR_LIBRARY_NOT_FOUND: return "NVML Shared Library Not Found";
        case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
        case NVML_ERROR_CORRUPTED_INFOROM: return "Corrupted infoROM";
        case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
        case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
        case NVML_ERROR_OPERATING_SYSTEM: return "GPU access blocked by the operating system";
        case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
        case NVML_ERROR_MEMORY: return "Insufficient Memory";
        case NVML_ERROR_NO_DATA: return "No data";
        default: return "Unknown Error";
    }
}

#define SYSTEM_TEXT(function, key)                          \
    nvmlReturn_t function(char *to, unsigned int length) {  \
        const char *found;                                  \
        nvmlReturn_t status = value(key, &found);           \
        return copy(status, found, to, length);             \
    }
SYSTEM_TEXT(nvmlSystemGetDriverVersion, "driver")
SYSTEM_TEXT(nvmlSystemGetNVMLVersion, "nvml")

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    const char *found;
    nvmlReturn_t status = value("cuda", &found);
    if (status == NVML_SUCCESS) *version = atoi(found);
    return status;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    const char *found;
    nvmlReturn_t status = value("count", &found);
    if (status == NVML_SUCCESS) *count = (unsigned int)atoi(found);
    return status;
}

/* --- handles ------------------------------------------------------------------------------------------------------------ */

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    unsigned int count = 0;
    const char *found;
    char key[32];
    if (nvmlDeviceGetCount_v2(&count) != NVML_SUCCESS || index >= count) return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(key, sizeof key, "%u.handle", index);
    nvmlReturn_t status = value(key, &found);
    *device = &handles[index][0];
    return status == NVML_ERROR_NOT_SUPPORTED ? NVML_SUCCESS : status;
}

static nvmlReturn_t by_text(const char *name, const char *wanted, nvmlDevice_t *device) {
    unsigned int count = 0;
    char key[32];
    const char *found;
    nvmlDeviceGetCount_v2(&count);
    for (unsigned int gpu = 0; gpu < count; gpu++) {
        snprintf(key, sizeof key, "%u.%s", gpu, name);
        if ((found = line(key)) && !strcasecmp(found, wanted)) return nvmlDeviceGetHandleByIndex_v2(gpu, device);
    }
    return NVML_ERROR_NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device) { return by_text("pci.bus_id", id, device); }

/* --- one answer each ---------------------------------------------------------------------------------------------------- */

#define TEXT(function, key) \
    nvmlReturn_t function(nvmlDevice_t device, char *to, unsigned int length) { return get_text(device, to, length, key); }
TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
TEXT(nvmlDeviceGetInforomImageVersion, "inforom.img")
TEXT(nvmlDeviceGetBoardPartNumber, "board.part_number")

nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t device, nvmlInforomObject_t object, char *to, unsigned int length) {
    return get_text(device, to, length, "inforom.%d", object);
}
nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *to) {
    return get_text(device, to, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE, "gsp.version");
}

#define NUMBER(function, type, key) \
    nvmlReturn_t function(nvmlDevice_t device, type *to) { return GET(device, to, key); }
NUMBER(nvmlDeviceGetBrand, nvmlBrandType_t, "brand")
NUMBER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, "architecture")
NUMBER(nvmlDeviceGetMinorNumber, unsigned int, "minor")
NUMBER(nvmlDeviceGetModuleId, unsigned int, "module_id")
NUMBER(nvmlDeviceGetBoardId, unsigned int, "board.id")
NUMBER(nvmlDeviceGetMultiGpuBoard, unsigned int, "board.multi_gpu")
NUMBER(nvmlDeviceGetDisplayMode, nvmlEnableState_t, "display.mode")
NUMBER(nvmlDeviceGetDisplayActive, nvmlEnableState_t, "display.active")
NUMBER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, "persistence")
NUMBER(nvmlDeviceGetComputeMode, nvmlComputeMode_t, "compute_mode")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, "pcie.gen.max")
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int, "pcie.gen.gpu_max")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, "pcie.gen")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, "pcie.width.max")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, "pcie.width")
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned int, "pcie.replays")
NUMBER(nvmlDeviceGetFanSpeed, unsigned int, "fan")
NUMBER(nvmlDeviceGetPerformanceState, nvmlPstates_t, "pstate")
NUMBER(nvmlDeviceGetPowerState, nvmlPstates_t, "pstate")
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, "reasons")
NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, "reasons.supported")
NUMBER(nvmlDeviceGetPowerManagementMode, nvmlEnableState_t, "power.management")
NUMBER(nvmlDeviceGetPowerUsage, unsigned int, "power.draw")
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned int, "power.limit")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, "power.enforced")
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, "power.default")
NUMBER(nvmlDeviceGetAccountingMode, nvmlEnableState_t, "accounting.mode")
NUMBER(nvmlDeviceGetAccountingBufferSize, unsigned int, "accounting.buffer_size")
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, nvmlEnableState_t, "retired.pending")
NUMBER(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t, "virtualization")
NUMBER(nvmlDeviceGetNumaNodeId, unsigned int, "numa_node")
NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned int, "mig.max")
NUMBER(nvmlDeviceGetGpuInstanceId, unsigned int, "gpu_instance")
NUMBER(nvmlDeviceGetComputeInstanceId, unsigned int, "compute_instance")

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    *index = (unsigned int)(device->mig < 0 ? device->gpu : device->mig);
    return NVML_SUCCESS;
}

#define BY_TYPE(function, type, value_type, key) \
    nvmlReturn_t function(nvmlDevice_t device, type which, value_type *to) { return GET(device, to, key ".%d", (int)which); }
BY_TYPE(nvmlDeviceGetTemperature, nvmlTemperatureSensors_t, unsigned int, "temperature")
BY_TYPE(nvmlDeviceGetTemperatureThreshold, nvmlTemperatureThresholds_t, unsigned int, "temperature.limit")
BY_TYPE(nvmlDeviceGetClockInfo, nvmlClockType_t, unsigned int, "clock")
BY_TYPE(nvmlDeviceGetMaxClockInfo, nvmlClockType_t, unsigned int, "clock.max")
BY_TYPE(nvmlDeviceGetApplicationsClock, nvmlClockType_t, unsigned int, "clock.applications")
BY_TYPE(nvmlDeviceGetDefaultApplicationsClock, nvmlClockType_t, unsigned int, "clock.applications")
BY_TYPE(nvmlDeviceGetPcieThroughput, nvmlPcieUtilCounter_t, unsigned int, "pcie.throughput")

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id, unsigned int *to) {
    static const char *const keys[] = {"clock.%d", "clock.applications.%d", "clock.applications.%d", "clock.max.%d"};
    return id < 4 ? GET(device, to, keys[id], (int)type) : NVML_ERROR_INVALID_ARGUMENT;
}

/* --- two answers at once ------------------------------------------------------------------------------------------------ */

#define PAIR(function, type, first_key, second_key)                              \
    nvmlReturn_t function(nvmlDevice_t device, type *first, type *second) {     \
        nvmlReturn_t status = GET(device, first, first_key);                    \
        return status == NVML_SUCCESS ? GET(device, second, second_key) : status; \
    }
PAIR(nvmlDeviceGetEccMode, nvmlEnableState_t, "ecc.mode", "ecc.pending")
PAIR(nvmlDeviceGetMigMode, unsigned int, "mig.mode", "mig.pending")
PAIR(nvmlDeviceGetPowerManagementLimitConstraints, unsigned int, "power.min", "power.max")
PAIR(nvmlDeviceGetCudaComputeCapability, int, "compute_capability.major", "compute_capability.minor")
PAIR(nvmlDeviceGetGspFirmwareMode, unsigned int, "gsp.mode", "gsp.default")
PAIR(nvmlDeviceGetEncoderUtilization, unsigned int, "utilization.encoder", "utilization.period_us")
PAIR(nvmlDeviceGetDecoderUtilization, unsigned int, "utilization.decoder", "utilization.period_us")
PAIR(nvmlDeviceGetJpgUtilization, unsigned int, "utilization.jpeg", "utilization.period_us")
PAIR(nvmlDeviceGetOfaUtilization, unsigned int, "utilization.ofa", "utilization.period_us")

/* --- structures --------------------------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    memset(pci, 0, sizeof *pci);
    nvmlReturn_t status = get_text(device, pci->busId, sizeof pci->busId, "pci.bus_id");
    if (status != NVML_SUCCESS) return status;
    sscanf(pci->busId, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0xff);
    GET(device, &pci->pciDeviceId, "pci.device_id");
    GET(device, &pci->pciSubSystemId, "pci.subsystem_id");
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci) {
    nvmlPciInfo_t plain;
    unsigned int version = pci->version;
    nvmlReturn_t status = nvmlDeviceGetPciInfo_v3(device, &plain);
    if (status != NVML_SUCCESS) return status;
    *pci = (nvmlPciInfoExt_t){.version = version, .domain = plain.domain, .bus = plain.bus, .device = plain.device,
                              .pciDeviceId = plain.pciDeviceId, .pciSubSystemId = plain.pciSubSystemId};
    GET(device, &pci->baseClass, "pci.base_class");
    GET(device, &pci->subClass, "pci.sub_class");
    memcpy(pci->busId, plain.busId, sizeof pci->busId);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlReturn_t status = GET(device, &memory->total, "memory.total");
    if (status != NVML_SUCCESS) return status;
    GET(device, &memory->reserved, "memory.reserved");
    GET(device, &memory->free, "memory.free");
    return GET(device, &memory->used, "memory.used");
}
nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory) {
    memset(memory, 0, sizeof *memory);
    return GET(device, &memory->total, "memory.protected");
}
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    nvmlReturn_t status = GET(device, &memory->bar1Total, "bar1.total");
    if (status != NVML_SUCCESS) return status;
    GET(device, &memory->bar1Used, "bar1.used");
    memory->bar1Free = memory->bar1Total - memory->bar1Used;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    nvmlReturn_t status = GET(device, &utilization->gpu, "utilization.gpu");
    return status == NVML_SUCCESS ? GET(device, &utilization->memory, "utilization.memory") : status;
}
nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned int *sessions, unsigned int *fps, unsigned int *latency) {
    *fps = *latency = 0;
    return GET(device, sessions, "encoder.sessions");
}
nvmlReturn_t nvmlDeviceGetFBCStats(nvmlDevice_t device, nvmlFBCStats_t *stats) {
    memset(stats, 0, sizeof *stats);
    return GET(device, &stats->sessionsCount, "encoder.sessions");
}

/* --- memory errors ------------------------------------------------------------------------------------------------------ */

/* "ecc.KIND.COUNTER.LOCATION", KIND 0 corrected and 1 uncorrected, COUNTER 0 since boot and 1 for ever. */
nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t kind, nvmlEccCounterType_t counter,
                                             nvmlMemoryLocation_t location, unsigned long long *count) {
    return GET(device, count, "ecc.%d.%d.%d", kind, counter, location);
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t kind, nvmlEccCounterType_t counter,
                                         unsigned long long *count) {
    return GET(device, count, "ecc.%d.%d.total", kind, counter);
}
nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *errors) {
    unsigned int version = errors->version;
    memset(errors, 0, sizeof *errors);
    errors->version = version;
    GET(device, &errors->aggregateUncParity, "ecc.sram.parity");
    errors->volatileUncParity = errors->aggregateUncBucketSm = errors->aggregateUncParity;
    return GET(device, &errors->bThresholdExceeded, "ecc.sram.threshold_exceeded");
}
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable,
                                       unsigned int *pending, unsigned int *failed) {
    nvmlReturn_t status = GET(device, correctable, "remapped.correctable");
    if (status != NVML_SUCCESS) return status;
    GET(device, uncorrectable, "remapped.uncorrectable");
    GET(device, pending, "remapped.pending");
    return GET(device, failed, "remapped.failure");
}
nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *banks) {
    nvmlReturn_t status = GET(device, &banks->max, "remapped.banks.max");
    if (status != NVML_SUCCESS) return status;
    GET(device, &banks->high, "remapped.banks.high");
    GET(device, &banks->partial, "remapped.banks.partial");
    GET(device, &banks->low, "remapped.banks.low");
    return GET(device, &banks->none, "remapped.banks.none");
}
/* "retired.CAUSE" is how many pages; their addresses are made up. */
nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                          unsigned long long *addresses, unsigned long long *timestamps) {
    unsigned int pages, room = *count;
    nvmlReturn_t status = GET(device, &pages, "retired.%d", cause);
    if (status != NVML_SUCCESS) return status;
    *count = pages;
    if (room < pages) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int page = 0; page < pages; page++) {
        if (addresses) addresses[page] = 0x5c4ba + page;
        if (timestamps) timestamps[page] = 1700000000000000ULL;
    }
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                       unsigned long long *addresses) {
    return nvmlDeviceGetRetiredPages_v2(device, cause, count, addresses, NULL);
}

/* --- field values, links, fabric ---------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields) {
    for (int at = 0; at < count; at++) {
        nvmlFieldValue_t *field = &fields[at];
        field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
        field->nvmlReturn = GET(device, &field->value.ullVal, "field.%u.%u", field->fieldId, field->scopeId);
    }
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link, nvmlNvLinkCapability_t which, unsigned int *to) {
    return GET(device, to, "link.capability.%u.%d", link, which);
}
nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *fabric) {
    char uuid[64] = "";
    memset(fabric, 0, sizeof *fabric);
    nvmlReturn_t status = GET(device, &fabric->state, "fabric.state");
    if (status != NVML_SUCCESS) return status;
    GET(device, &fabric->status, "fabric.status");
    GET(device, &fabric->cliqueId, "fabric.clique");
    get_text(device, uuid, sizeof uuid, "fabric.cluster");
    for (int byte = 0, at = 0; byte < NVML_GPU_FABRIC_UUID_LEN && uuid[at]; byte++, at += 2) {
        at += uuid[at] == '-';
        sscanf(&uuid[at], "%2hhx", &fabric->clusterUuid[byte]);
    }
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *fabric) {
    nvmlGpuFabricInfo_t plain;
    nvmlReturn_t status = nvmlDeviceGetGpuFabricInfo(device, &plain);
    if (status != NVML_SUCCESS) return status;
    memcpy(fabric->clusterUuid, plain.clusterUuid, sizeof plain.clusterUuid);
    fabric->status = plain.status;
    fabric->cliqueId = plain.cliqueId;
    fabric->state = plain.state;
    fabric->healthMask = 0;
    GET(device, &fabric->healthMask, "fabric.health_mask");
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetC2cModeInfoV(nvmlDevice_t device, nvmlC2cModeInfo_v1_t *mode) { return GET(device, &mode->isC2cEnabled, "c2c"); }

/* --- MIG ---------------------------------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is) {
    *is = device->mig >= 0;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig) {
    char uuid[96];
    if (index >= MIG_DEVICES) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t status = get_text(&handles[device->gpu][index + 1], uuid, sizeof uuid, "uuid");
    *mig = &handles[device->gpu][index + 1];
    return status == NVML_ERROR_NOT_SUPPORTED ? NVML_ERROR_NOT_FOUND : status;
}
nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device) {
    *device = &handles[mig->gpu][0];
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *of) {
    memset(of, 0, sizeof *of);
    nvmlReturn_t status = GET(device, &of->multiprocessorCount, "multiprocessors");
    if (status != NVML_SUCCESS) return status;
    GET(device, &of->sharedCopyEngineCount, "slices");
    of->sharedDecoderCount = of->gpuInstanceSliceCount = of->computeInstanceSliceCount = of->sharedCopyEngineCount;
    GET(device, &of->memorySizeMB, "memory_mib");
    return NVML_SUCCESS;
}

/* --- what nvidia-smi needs to start ------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    *set = (nvmlEventSet_t)lines;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) { return set ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT; }
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    return device && types && set ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}
nvmlReturn_t nvmlUnitGetCount(unsigned int *count) {
    *count = 0;
    return NVML_SUCCESS;
}

/* What no simulated GPU has. Where the function itself is missing, nvidia-smi prints [Function Not Found] and not [N/A]. */
#define ABSENT(function, ...) \
    nvmlReturn_t function(__VA_ARGS__) { return NVML_ERROR_NOT_SUPPORTED; }
#pragma GCC diagnostic ignored "-Wunused-parameter"
ABSENT(nvmlDeviceGetDriverModel, nvmlDevice_t device, nvmlDriverModel_t *current, nvmlDriverModel_t *pending)
ABSENT(nvmlDeviceGetDriverModel_v2, nvmlDevice_t device, nvmlDriverModel_t *current, nvmlDriverModel_t *pending)
ABSENT(nvmlDeviceGetGpuOperationMode, nvmlDevice_t device, nvmlGpuOperationMode_t *current, nvmlGpuOperationMode_t *pending)
ABSENT(nvmlDeviceGetHostVgpuMode, nvmlDevice_t device, nvmlHostVgpuMode_t *mode)
ABSENT(nvmlDeviceGetVgpuHeterogeneousMode, nvmlDevice_t device, nvmlVgpuHeterogeneousMode_t *mode)
ABSENT(nvmlDeviceGetVgpuCapabilities, nvmlDevice_t device, nvmlDeviceVgpuCapability_t capability, unsigned int *has)
ABSENT(nvmlGetVgpuDriverCapabilities, nvmlVgpuDriverCapability_t capability, unsigned int *has)
ABSENT(nvmlDeviceGetBridgeChipInfo, nvmlDevice_t device, nvmlBridgeChipHierarchy_t *bridges)
ABSENT(nvmlDeviceGetLastBBXFlushTime, nvmlDevice_t device, unsigned long long *at, unsigned long *duration_us)
ABSENT(nvmlDeviceGetAutoBoostedClocksEnabled, nvmlDevice_t device, nvmlEnableState_t *is, nvmlEnableState_t *is_default)
ABSENT(nvmlDeviceGetGridLicensableFeatures_v4, nvmlDevice_t device, nvmlGridLicensableFeatures_t *features)
ABSENT(nvmlDeviceValidateInforom, nvmlDevice_t device)

/* nvidia-smi refuses a library that does not return this table of undocumented functions. It asks for a documented one where a function
 * of the table is not supported, or prints N/A. The slots below are the ones that 535, 550 and 555 print, found by trying. */
static nvmlReturn_t unsupported(void) { return NVML_ERROR_NOT_SUPPORTED; }
static nvmlReturn_t can_be_monitored(void) { return NVML_SUCCESS; } /* by dmon */
static nvmlReturn_t enforced_power_limit(nvmlDevice_t device, unsigned int *mw) { return GET(device, mw, "power.enforced"); }
static nvmlReturn_t no_processes(nvmlDevice_t device, unsigned int *count) {
    if (!device || !count) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}
/* For the line about a GPU that has no handle: a bus id in the short form that recorded lines have. */
static nvmlReturn_t bus_id(unsigned int index, char *to) {
    char key[32];
    snprintf(key, sizeof key, "%u.pci.bus_id", index);
    const char *found = line(key);
    if (!found || strlen(found) != strlen("00000000:00:00.0")) return NVML_ERROR_NOT_SUPPORTED;
    strcpy(to, found + 4);
    return NVML_SUCCESS;
}
static nvmlReturn_t host_max_link_generation(nvmlDevice_t device, unsigned int *to) { return GET(device, to, "pcie.gen.host_max"); }
static nvmlReturn_t margin(nvmlDevice_t device, int *celsius) { return GET(device, celsius, "temperature.margin"); }

nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id) {
    static void *slots[256];
    if (!id) return NVML_ERROR_INVALID_ARGUMENT;
    for (size_t slot = 1; slot < sizeof slots / sizeof slots[0]; slot++) slots[slot] = (void *)unsupported;
    slots[0] = (void *)sizeof slots;
    slots[72] = (void *)can_be_monitored;
    slots[81] = (void *)bus_id;
    slots[108] = (void *)enforced_power_limit;
    slots[213] = slots[214] = slots[215] = (void *)no_processes;
    slots[230] = (void *)host_max_link_generation;
    slots[240] = (void *)margin;
    *table = slots;
    return NVML_SUCCESS;
}
