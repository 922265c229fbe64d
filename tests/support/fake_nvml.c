/* A fake libnvidia-ml with two GPUs, or -DGPUS=N, for the tests of rlsched_node.gpu.nvml: what it lacks, the driver
 * lacks.
 *
 * Every function begins with FAIL: `fake_fail`, or the file that FAKE_NVML_FAIL names, makes it return an error.
 * A line of the file is `FUNCTION GPU CODE`; GPU -1: of all GPUs, and of none; FUNCTION `*`: all that name the GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef GPUS
#define GPUS 2 /* on the second, somebody else computes */
#endif

enum { POWER, ENERGY, UUID, INIT, UTILISATION, MEMORY, CLOCKS, LOCK, PERSISTENCE,
       REASONS, TEMPERATURE, PCIE, PROCESS_UTILISATION, GPM, GPM_SAMPLE, GPM_METRICS, PROCESSES, CALLS };
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };
typedef unsigned long long u64;

static int error_of[CALLS];
static int open_count;

#define INSTANCES 7
static char boards[GPUS < 2 ? 2 : GPUS], instances[GPUS][INSTANCES]; /* their addresses are the handles */
#define gpu_0 boards[0]
#define gpu_1 boards[1]
static int is_instance(const void *device) {
    return (const char *)device >= instances[0] && (const char *)device < instances[0] + sizeof instances;
}
/* The number of a GPU, or of the GPU of a MIG instance. */
static int gpu_of(const void *device) {
    return is_instance(device) ? ((const char *)device - instances[0]) / INSTANCES : (const char *)device - boards;
}
static int instance_of(const void *device) { return ((const char *)device - instances[0]) % INSTANCES; }
/* FAKE_NVML_MIG has `GPU:FIRST-LAST` for each GPU with MIG on: the numbers of its instances; `GPU:` if it has none. */
static int mig_of(int gpu, int *first, int *last) {
    char wanted[16];
    const char *text = getenv("FAKE_NVML_MIG");
    *first = 0, *last = -1;
    snprintf(wanted, sizeof wanted, "%d:", gpu);
    text = text ? strstr(text, wanted) : NULL;
    if (text) sscanf(text + strlen(wanted), "%d-%d", first, last);
    return text != NULL;
}
static int has_mig(const void *device) { int first, last; return mig_of(gpu_of(device), &first, &last); }
static int has_instance(int gpu, int instance) {
    int first, last;
    return mig_of(gpu, &first, &last) && first <= instance && instance <= last;
}

struct failure { char function[64]; int gpu, code, times; };
static struct failure failures[8];
/* The function fails for a GPU (-1: any, or none) with this code so many times; -1: for ever. */
void fake_fail(const char *function, int gpu, int code, int times) {
    for (unsigned i = 0; i < sizeof failures / sizeof *failures; i++)
        if (!failures[i].times) {
            strncpy(failures[i].function, function, sizeof failures[i].function - 1);
            failures[i].gpu = gpu, failures[i].code = code, failures[i].times = times;
            return;
        }
}
static int is_meant(const char *meant, int gpu_meant, const char *function, int gpu) {
    if (!strcmp(meant, "*")) return gpu >= 0 && (gpu_meant < 0 || gpu_meant == gpu);
    return !strcmp(meant, function) && (gpu_meant < 0 || gpu_meant == gpu);
}
static int failing(const char *function, int gpu) {
    for (unsigned i = 0; i < sizeof failures / sizeof *failures; i++) {
        struct failure *one = &failures[i];
        if (one->times && is_meant(one->function, one->gpu, function, gpu)) {
            if (one->times > 0) one->times--;
            return one->code;
        }
    }
    const char *path = getenv("FAKE_NVML_FAIL");
    FILE *file = path ? fopen(path, "r") : NULL;
    char meant[64];
    int found = SUCCESS, meant_gpu, code;
    while (file && !found && fscanf(file, "%63s %d %d", meant, &meant_gpu, &code) == 3)
        if (is_meant(meant, meant_gpu, function, gpu)) found = code;
    if (file) fclose(file);
    return found;
}
#define FAIL_OF(gpu) do { int code_ = failing(__func__, gpu); if (code_) return code_; } while (0)
/* For calls that take handles of instances too; other calls refuse these. An instance that was removed has none. */
#define FAIL_ANY(device) do { \
        FAIL_OF(gpu_of(device)); \
        if (is_instance(device) && !has_instance(gpu_of(device), instance_of(device))) return INVALID_ARGUMENT; \
    } while (0)
#define FAIL(device) do { FAIL_ANY(device); if (is_instance(device)) return INVALID_ARGUMENT; } while (0)
#define FAIL_NONE FAIL_OF(-1)

void fake_set_error(int call, int code) { error_of[call] = code; }
static void fake_unlock(void);
static u64 clock_us = 1000000, energy_mj = 1234500;
static int old_gpu, open_samples;
void fake_reset(void) {
    memset(error_of, 0, sizeof error_of);
    memset(failures, 0, sizeof failures);
    open_count = old_gpu = open_samples = 0;
    clock_us = 1000000;
    energy_mj = 1234500;
    fake_unlock();
}
void fake_pass_time(unsigned s) { clock_us += s * 1000000ull; }
void fake_set_energy_mj(u64 mj) { energy_mj = mj; }
void fake_old_gpu(int is_old) { old_gpu = is_old; }
int fake_open_count(void) { return open_count; }

int nvmlInitWithFlags(unsigned flags) {
    FAIL_NONE;
    (void)flags;
    if (!error_of[INIT]) open_count++;
    return error_of[INIT];
}
int nvmlShutdown(void) { FAIL_NONE; open_count--; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { FAIL_NONE; *count = GPUS; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    FAIL_OF((int)index);
    if (index >= GPUS) return INVALID_ARGUMENT;
    *device = &boards[index];
    return SUCCESS;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    FAIL_ANY(device);
    if (is_instance(device)) snprintf(uuid, length, "MIG-fake-%d-%d", gpu_of(device), instance_of(device));
    else snprintf(uuid, length, "GPU-fake-%d", gpu_of(device));
    return error_of[UUID];
}
/* FAKE_NVML_PROFILES has the profiles of the instances 0, 1, ..., by default all of 1g.18gb. */
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    FAIL_ANY(device);
    const char *profiles = getenv("FAKE_NVML_PROFILES");
    char one[32] = "1g.18gb";
    for (int i = 0; is_instance(device) && profiles && i <= instance_of(device); i++) {
        sscanf(profiles, "%31s", one);
        profiles = strchr(profiles, ' ') ? strchr(profiles, ' ') + 1 : profiles;
    }
    snprintf(name, length, "Fake H200%s%s", is_instance(device) ? " MIG " : "", is_instance(device) ? one : "");
    return SUCCESS;
}
/* MIG: mode, and handles by index. Index and GPU instance ID run in opposite directions. */
int nvmlDeviceGetMigMode(void *device, unsigned *mode, unsigned *pending) {
    FAIL(device);
    *mode = *pending = has_mig(device);
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) {
    FAIL(device);
    *count = INSTANCES;
    return SUCCESS;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **found) {
    FAIL(device);
    int instance = INSTANCES - 1 - (int)index;
    if (!has_instance(gpu_of(device), instance)) return 6; /* not found */
    *found = &instances[gpu_of(device)][instance];
    return SUCCESS;
}
int nvmlDeviceGetGpuInstanceId(void *device, unsigned *id) {
    FAIL_ANY(device);
    if (!is_instance(device)) return INVALID_ARGUMENT;
    *id = 7 + instance_of(device);
    return SUCCESS;
}
/* The GPUs fall off the bus when the file that FAKE_NVML_LOST names is there. */
static int is_lost(void) {
    const char *path = getenv("FAKE_NVML_LOST");
    return path && access(path, F_OK) == 0;
}
struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
    FAIL_ANY(device);
    const char *mib = getenv("FAKE_NVML_MEMORY_MIB"); /* of a whole GPU, in place of 1000 */
    memory->total = (is_instance(device) ? 300ull : mib ? strtoull(mib, NULL, 10) : 1000ull) << 20;
    memory->used = 250ull << 20;
    memory->free = memory->total - memory->used;
    return is_lost() ? GPU_IS_LOST : error_of[MEMORY];
}
/* The first GPU hangs on the processors 0 to 3, the second on 64 and 65, where there are so many. */
int nvmlDeviceGetCpuAffinity(void *device, unsigned words, unsigned long *set) {
    FAIL(device);
    memset(set, 0, words * sizeof *set);
    if (device == &gpu_0) set[0] = 15;
    else if (words > 1) set[1] = 3;
    return SUCCESS;
}
int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) {
    FAIL(device);
    *minor = 7 * gpu_of(device);
    return SUCCESS;
}
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci) {
    FAIL(device);
    memset(pci, 0, sizeof *pci);
    strcpy(pci->bus_id, device == &gpu_1 ? "0000FFFF:02:00.0" : "0000FFFF:01:00.0");
    return SUCCESS;
}
int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    FAIL_NONE;
    strncpy(version, "000.00", length);
    return SUCCESS;
}
struct utilisation { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(void *device, struct utilisation *rates) {
    FAIL(device);
    if (has_mig(device)) return NOT_SUPPORTED;
    rates->gpu = 42;
    rates->memory = 7;
    return error_of[UTILISATION];
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    FAIL(device);
    (void)device;
    *milliwatts = 301500;
    return error_of[POWER];
}
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    FAIL(device);
    (void)device;
    *millijoules = energy_mj;
    return error_of[ENERGY];
}
int nvmlDeviceGetClockInfo(void *device, unsigned kind, unsigned *mhz) {
    FAIL(device);
    (void)device;
    *mhz = kind == 1 ? 1980 : 2619;
    return SUCCESS;
}
/* Clocks from 1980 MHz down to 345 in steps of 15, as on an H200. What is done to them is a line of the file that
 * FAKE_NVML_CLOCKS names; FAKE_NVML_LOCK_ERROR is the error that setting them comes to, FAKE_NVML_NO_ROOT
 * lets nothing be set. */
enum { HIGHEST = 1980, STEP = 15, COUNT = 110 };
static unsigned locked[GPUS];
static void fake_unlock(void) { memset(locked, 0, sizeof locked); }
unsigned fake_locked_mhz(int gpu) { return locked[gpu]; }
static int lock_error(void) {
    const char *code = getenv("FAKE_NVML_LOCK_ERROR");
    return error_of[LOCK] ? error_of[LOCK] : code ? atoi(code) : SUCCESS;
}
static void note(const char *what, unsigned gpu, unsigned low, unsigned high) {
    const char *path = getenv("FAKE_NVML_CLOCKS");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%s %u %u %u\n", what, gpu, low, high);
    fclose(file);
}
int nvmlDeviceGetSupportedMemoryClocks(void *device, unsigned *count, unsigned *clocks) {
    FAIL(device);
    unsigned room = *count;
    (void)device;
    if (error_of[CLOCKS]) return error_of[CLOCKS];
    *count = 2;
    if (room < 2 || !clocks) return INSUFFICIENT_SIZE;
    clocks[0] = 2619;
    clocks[1] = 1593;
    return SUCCESS;
}
int nvmlDeviceGetSupportedGraphicsClocks(void *device, unsigned memory, unsigned *count, unsigned *clocks) {
    FAIL(device);
    unsigned room = *count;
    (void)device;
    *count = memory == 2619 ? COUNT : 1;
    if (room < *count || !clocks) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++) clocks[i] = HIGHEST - STEP * i;
    return SUCCESS;
}
int nvmlDeviceGetPersistenceMode(void *device, unsigned *mode) {
    FAIL(device);
    *mode = 1;
    return SUCCESS;
}
int nvmlDeviceSetPersistenceMode(void *device, unsigned mode) {
    FAIL(device);
    (void)device;
    if (getenv("FAKE_NVML_NO_ROOT")) return 4;
    return mode == 1 ? error_of[PERSISTENCE] : INVALID_ARGUMENT;
}
int nvmlDeviceSetGpuLockedClocks(void *device, unsigned low, unsigned high) {
    FAIL(device);
    unsigned gpu = gpu_of(device);
    if (lock_error()) return lock_error();
    if (low > high || high > HIGHEST || (HIGHEST - high) % STEP) return INVALID_ARGUMENT;
    locked[gpu] = high;
    note("lock", gpu, low, high);
    return SUCCESS;
}
int nvmlDeviceResetGpuLockedClocks(void *device) {
    FAIL(device);
    unsigned gpu = gpu_of(device);
    if (lock_error()) return lock_error();
    locked[gpu] = 0;
    note("reset", gpu, 0, 0);
    return SUCCESS;
}
struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };
/* Lines `GPU PID` of the file that FAKE_NVML_PROCESSES names, in place of the two that are always there. The
 * instance I of a GPU G with MIG is `GPU` 100 (G + 1) + I. */
static int processes_of(const char *path, int gpu, unsigned *count, unsigned room, struct process *processes) {
    FILE *file = fopen(path, "r");
    int of;
    unsigned pid, found = 0;
    while (file && fscanf(file, "%d %u", &of, &pid) == 2) {
        if (of != gpu) continue;
        if (found < room && processes) processes[found] = (struct process){pid, 100ull << 20, 0, 0};
        found++;
    }
    if (file) fclose(file);
    *count = found;
    return found > room || (found && !processes) ? INSUFFICIENT_SIZE : SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *processes) {
    FAIL_ANY(device);
    unsigned room = *count;
    int gpu = is_instance(device) ? 100 * (gpu_of(device) + 1) + instance_of(device) : gpu_of(device);
    if (error_of[PROCESSES]) return error_of[PROCESSES];
    const char *path = getenv("FAKE_NVML_PROCESSES");
    if (path) return processes_of(path, gpu, count, room, processes);
    *count = device == &gpu_1 ? 2 : 0;
    if (*count == 0) return SUCCESS;
    if (room < *count || !processes) return INSUFFICIENT_SIZE;
    processes[0] = (struct process){4711, 18432ull << 20, 0, 0};
    processes[1] = (struct process){4712, ~0ull, 0, 0};
    return SUCCESS;
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned *count, struct process *processes) {
    FAIL(device);
    unsigned room = *count;
    const char *path = getenv("FAKE_NVML_MPS_PROCESSES");
    *count = 0;
    return path ? processes_of(path, device == &gpu_1, count, room, processes) : SUCCESS;
}
/* The first of the two has had the GPU for 30 % of the time since the clock was moved on last. */
struct process_sample { unsigned pid; u64 at_us; unsigned sm, memory, encoder, decoder; };
int nvmlDeviceGetProcessUtilization(void *device, struct process_sample *samples, unsigned *count, u64 since_us) {
    FAIL(device);
    unsigned room = *count;
    if (error_of[PROCESS_UTILISATION]) return error_of[PROCESS_UTILISATION];
    if (device != &gpu_1 || since_us >= clock_us) return 6; /* not found */
    *count = 2;
    if (room < 2 || !samples) return INSUFFICIENT_SIZE;
    samples[0] = (struct process_sample){4711, clock_us, 30, 5, 0, 0};
    samples[1] = (struct process_sample){99, since_us ? since_us - 1 : 0, 70, 0, 0, 0};
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksEventReasons(void *device, u64 *reasons) {
    FAIL(device);
    (void)device;
    *reasons = 0x4; /* software power cap */
    return error_of[REASONS];
}
int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *celsius) {
    FAIL(device);
    (void)device;
    *celsius = sensor == 0 ? 61 : 0;
    return error_of[TEMPERATURE];
}
int nvmlDeviceGetPcieThroughput(void *device, unsigned counter, unsigned *kib_s) {
    FAIL(device);
    (void)device;
    *kib_s = (counter ? 20 : 10) * 1024;
    return error_of[PCIE];
}
/* GPM: a sample is the time at which it was taken, shifted by 8 bits; metrics are those of a second between two. */
struct support { unsigned version, supported; };
struct info { const char *names[3]; };
struct metric { unsigned id; int code; double value; struct info info; };
struct metrics { unsigned version, count; u64 *before, *after; struct metric metrics[400]; };
int fake_open_samples(void) { return open_samples; }
int nvmlGpmQueryDeviceSupport(void *device, struct support *support) {
    FAIL(device);
    (void)device;
    support->supported = !old_gpu;
    return error_of[GPM];
}
int nvmlGpmSampleAlloc(u64 **sample) {
    FAIL_NONE;
    open_samples++;
    *sample = calloc(1, sizeof **sample);
    return SUCCESS;
}
int nvmlGpmSampleFree(u64 *sample) { FAIL_NONE; open_samples--; free(sample); return SUCCESS; }
int nvmlGpmSampleGet(void *device, u64 *sample) {
    FAIL(device);
    *sample = clock_us << 8;
    return error_of[GPM_SAMPLE];
}
/* The metrics of an instance are those of a GPU, except the first: its GPU instance ID, from the sample's low bits. */
int nvmlGpmMigSampleGet(void *device, unsigned instance_id, u64 *sample) {
    FAIL(device);
    if (instance_id < 7 || !has_instance(gpu_of(device), (int)instance_id - 7)) return INVALID_ARGUMENT;
    *sample = clock_us << 8 | instance_id;
    return error_of[GPM_SAMPLE];
}
int nvmlGpmMetricsGet(struct metrics *asked) {
    FAIL_NONE;
    if (error_of[GPM_METRICS]) return error_of[GPM_METRICS];
    if (asked->version != 1 || *asked->after <= *asked->before) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < asked->count; i++) {
        struct metric *one = &asked->metrics[i];
        one->code = SUCCESS;
        switch (one->id) {
        case 2: one->value = (*asked->after & 0xff) ? (double)(*asked->after & 0xff) : 80; break;
        case 3: one->value = 40; break;
        case 5: one->value = 25; break;
        case 10: one->value = 55; break;
        case 20: one->value = 100; break;
        case 21: one->value = 250; break;
        default: one->code = 3;
        }
    }
    return SUCCESS;
}
