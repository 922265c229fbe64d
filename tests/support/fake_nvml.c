/* A fake libnvidia-ml with two GPUs, or -DGPUS=N, for the tests of rlsched_node.gpu.nvml: what it lacks, the driver
 * lacks.
 *
 * Every function begins with FAIL: `fake_fail`, or the file that FAKE_NVML_FAIL names, makes it return an error.
 * A line of the file is `FUNCTION GPU CODE`; GPU -1: of all GPUs, and of none; FUNCTION `*`: all that name the GPU. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef GPUS
#define GPUS 2 /* on the second, somebody else computes */
#endif

enum { POWER, ENERGY, UUID, INIT, UTILISATION, MEMORY, CLOCKS, LOCK, PERSISTENCE,
       REASONS, TEMPERATURE, PCIE, PROCESS_UTILISATION, GPM, GPM_SAMPLE, GPM_METRICS, PROCESSES, CALLS };
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       GPU_IS_LOST = 15, IN_USE = 19, INSUFFICIENT_RESOURCES = 23 };
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
/* FAKE_NVML_MIG_STATE names a file of instances that calls create and destroy, in place of those of FAKE_NVML_MIG: a
 * line for each GPU instance, with its compute instance (-1: none), profile (its number in `shapes`) and memory
 * slices. Instances outlive the process, as the driver's do. The serial number goes into the UUID. */
struct made { int gpu, instance, profile, start, compute, serial; };
enum { MOST_MADE = 64 };
static const char *state_path(void) { return getenv("FAKE_NVML_MIG_STATE"); }
static int read_made(struct made *made) {
    FILE *file = state_path() ? fopen(state_path(), "r") : NULL;
    int count = 0;
    while (file && count < MOST_MADE) {
        struct made *one = &made[count];
        if (fscanf(file, "%d %d %d %d %d %d", &one->gpu, &one->instance, &one->profile, &one->start, &one->compute,
                   &one->serial) != 6) break;
        count++;
    }
    if (file) fclose(file);
    return count;
}
static void write_made(const struct made *made, int count) {
    char draft[512];
    snprintf(draft, sizeof draft, "%s.%d", state_path(), (int)getpid());
    FILE *file = fopen(draft, "w");
    if (!file) abort();
    for (int i = 0; i < count; i++)
        fprintf(file, "%d %d %d %d %d %d\n", made[i].gpu, made[i].instance, made[i].profile, made[i].start,
                made[i].compute, made[i].serial);
    fclose(file);
    if (rename(draft, state_path())) abort();
}
/* The GPU instance with this number on a GPU, of `made`; NULL: there is none. */
static struct made *find_made(struct made *made, int count, int gpu, int instance) {
    for (int i = 0; i < count; i++)
        if (made[i].gpu == gpu && made[i].instance == instance) return &made[i];
    return NULL;
}
/* Only a GPU instance with a compute instance is a MIG device. */
static int has_instance(int gpu, int instance) {
    int first, last;
    struct made made[MOST_MADE], *found;
    if (!mig_of(gpu, &first, &last)) return 0;
    if (!state_path()) return first <= instance && instance <= last;
    found = find_made(made, read_made(made), gpu, instance);
    return found && found->compute >= 0;
}
/* Profiles of an H200, by NVML_GPU_INSTANCE_PROFILE_*: ID, compute and memory slices, instances, possible starts. */
struct shape { unsigned id, compute, memory, most; const char *name; int starts[8]; };
static const struct shape shapes[] = {
    [0] = {19, 1, 1, 7, "1g.18gb", {0, 1, 2, 3, 4, 5, 6, -1}},
    [1] = {14, 2, 2, 3, "2g.35gb", {0, 2, 4, -1}},
    [2] = {9, 3, 4, 2, "3g.71gb", {0, 4, -1}},
    [3] = {5, 4, 4, 1, "4g.71gb", {0, -1}},
    [4] = {0, 7, 8, 1, "7g.141gb", {0, -1}},
    [7] = {20, 1, 1, 1, "1g.18gb+me", {0, 1, 2, 3, 4, 5, 6, -1}},
    [9] = {15, 1, 2, 4, "1g.35gb", {0, 2, 4, 6, -1}},
};
enum { PROFILES = sizeof shapes / sizeof *shapes };
static int profile_by_id(unsigned id) {
    for (int i = 0; i < PROFILES; i++)
        if (shapes[i].name && shapes[i].id == id) return i;
    return -1;
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
/* FAKE_NVML_KILL is `FUNCTION N` or `FUNCTION+ N`: kill -9 of this process at the Nth call, before it has an effect or
 * after it. */
static void killing(const char *function, const char *when) {
    static int calls;
    char wanted[96], at[96];
    int number;
    const char *text = getenv("FAKE_NVML_KILL");
    if (!text || sscanf(text, "%95s %d", wanted, &number) != 2) return;
    snprintf(at, sizeof at, "%s%s", function, when);
    if (!strcmp(wanted, at) && ++calls == number) kill(getpid(), SIGKILL);
}
static int failing(const char *function, int gpu) {
    killing(function, "");
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
    struct made made[MOST_MADE], *found = NULL;
    if (is_instance(device)) found = find_made(made, read_made(made), gpu_of(device), instance_of(device));
    if (found) snprintf(uuid, length, "MIG-fake-%d-%d-%d", found->gpu, found->instance, found->serial);
    else if (is_instance(device)) snprintf(uuid, length, "MIG-fake-%d-%d", gpu_of(device), instance_of(device));
    else snprintf(uuid, length, "GPU-fake-%d", gpu_of(device));
    return error_of[UUID];
}
/* FAKE_NVML_PROFILES has the profiles of the instances 0, 1, ..., by default all of 1g.18gb. */
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    FAIL_ANY(device);
    const char *profiles = getenv("FAKE_NVML_PROFILES");
    char one[32] = "1g.18gb";
    struct made made[MOST_MADE], *found = find_made(made, read_made(made), gpu_of(device), instance_of(device));
    if (is_instance(device) && found) strcpy(one, shapes[found->profile].name);
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
    if (!has_instance(gpu_of(device), instance)) return NOT_FOUND;
    *found = &instances[gpu_of(device)][instance];
    return SUCCESS;
}
int nvmlDeviceGetGpuInstanceId(void *device, unsigned *id) {
    FAIL_ANY(device);
    if (!is_instance(device)) return INVALID_ARGUMENT;
    *id = 7 + instance_of(device);
    return SUCCESS;
}
int nvmlDeviceGetComputeInstanceId(void *device, unsigned *id) {
    FAIL_ANY(device);
    if (!is_instance(device)) return INVALID_ARGUMENT;
    *id = 0; /* the first one of its GPU instance */
    return SUCCESS;
}
/* The GPUs fall off the bus when the file that FAKE_NVML_LOST names is there. */
static int is_lost(void) {
    const char *path = getenv("FAKE_NVML_LOST");
    return path && access(path, F_OK) == 0;
}
struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };
static int is_alive(unsigned pid) {
    char path[32];
    snprintf(path, sizeof path, "/proc/%u", pid);
    return access(path, F_OK) == 0;
}
/* Lines `GPU PID`, `GPU PID MIB` or `GPU PID MIB PERCENT` of the file that FAKE_NVML_PROCESSES names, in place of the
 * two processes that are always there. A line without MIB is a process with 100 MiB; a line with MIB counts while its
 * process lives. PERCENT is its part of the GPU's time, -1 without one. The instance I of a GPU G with MIG is `GPU`
 * 100 (G + 1) + I. */
enum { MOST_LINES = 64 };
struct line { unsigned pid; u64 mib; int percent; };
static unsigned lines_of(const char *path, int gpu, struct line *lines) {
    FILE *file = path ? fopen(path, "r") : NULL;
    char text[64];
    unsigned count = 0;
    while (file && count < MOST_LINES && fgets(text, sizeof text, file)) {
        int of;
        struct line one = {0, 100, -1};
        int fields = sscanf(text, "%d %u %llu %d", &of, &one.pid, &one.mib, &one.percent);
        if (fields < 2 || of != gpu || (fields > 2 && !is_alive(one.pid))) continue;
        lines[count++] = one;
    }
    if (file) fclose(file);
    return count;
}
static int processes_of(const char *path, int gpu, unsigned *count, unsigned room, struct process *processes) {
    struct line lines[MOST_LINES];
    unsigned found = lines_of(path, gpu, lines);
    for (unsigned i = 0; i < found && i < room && processes; i++)
        processes[i] = (struct process){lines[i].pid, lines[i].mib << 20, 0, 0};
    *count = found;
    return found > room || (found && !processes) ? INSUFFICIENT_SIZE : SUCCESS;
}
/* With FAKE_NVML_SUMS, memory in use and utilisation are sums over the listed processes: 250 MiB and their MIB, and
 * their PERCENT. Processes without PERCENT divide the remaining time evenly. */
static unsigned working(int gpu, struct line *lines, unsigned *percent) {
    unsigned count = lines_of(getenv("FAKE_NVML_PROCESSES"), gpu, lines), without = 0;
    count += lines_of(getenv("FAKE_NVML_MPS_PROCESSES"), gpu, lines + count);
    *percent = 0;
    for (unsigned i = 0; i < count; i++) {
        without += lines[i].percent < 0;
        *percent += lines[i].percent < 0 ? 0 : lines[i].percent;
    }
    for (unsigned i = 0; i < count && without; i++)
        if (lines[i].percent < 0) lines[i].percent = *percent < 100 ? (100 - *percent) / without : 0;
    if (without || *percent > 100) *percent = 100;
    return count;
}
static u64 used_mib(int gpu) {
    struct line lines[2 * MOST_LINES];
    unsigned percent, count = working(gpu, lines, &percent);
    u64 mib = 250;
    if (!getenv("FAKE_NVML_SUMS")) return mib;
    for (unsigned i = 0; i < count; i++) mib += lines[i].mib;
    count = lines_of(getenv("FAKE_NVML_GRAPHICS_PROCESSES"), gpu, lines);
    for (unsigned i = 0; i < count; i++) mib += lines[i].mib;
    return mib;
}
struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
    FAIL_ANY(device);
    const char *mib = getenv("FAKE_NVML_MEMORY_MIB"); /* of a whole GPU, in place of 1000 */
    memory->total = (is_instance(device) ? 300ull : mib ? strtoull(mib, NULL, 10) : 1000ull) << 20;
    memory->used = (is_instance(device) ? 250 : used_mib(gpu_of(device))) << 20;
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
    struct line lines[2 * MOST_LINES];
    if (has_mig(device)) return NOT_SUPPORTED;
    rates->gpu = 42;
    rates->memory = 7;
    if (getenv("FAKE_NVML_SUMS")) working(gpu_of(device), lines, &rates->gpu);
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
    if (getenv("FAKE_NVML_NO_ROOT")) return NO_PERMISSION;
    return mode == 1 ? error_of[PERSISTENCE] : INVALID_ARGUMENT;
}
int nvmlDeviceSetGpuLockedClocks(void *device, unsigned low, unsigned high) {
    FAIL(device);
    unsigned gpu = gpu_of(device);
    if (lock_error()) return lock_error();
    if (low > high || high > HIGHEST || (HIGHEST - high) % STEP) return INVALID_ARGUMENT;
    locked[gpu] = high;
    note("lock", gpu, low, high);
    killing(__func__, "+");
    return SUCCESS;
}
int nvmlDeviceResetGpuLockedClocks(void *device) {
    FAIL(device);
    unsigned gpu = gpu_of(device);
    if (lock_error()) return lock_error();
    locked[gpu] = 0;
    note("reset", gpu, 0, 0);
    killing(__func__, "+");
    return SUCCESS;
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
/* Creating and destroying MIG instances. The handle of a GPU instance is the address of its number in `gpu_instances`,
 * and that of its compute instance the address in `compute_instances`. */
struct gpu_profile {
    unsigned version, id, is_p2p, compute, most, multiprocessors, engines[5];
    u64 memory_mb;
    char name[96];
};
struct compute_profile { unsigned version, id, compute, most, multiprocessors, engines[5]; char name[96]; };
struct placement { unsigned start, size; };
struct gpu_instance_info { void *device; unsigned id, profile; struct placement placement; };
struct compute_instance_info { void *device, *gpu_instance; unsigned id, profile; struct placement placement; };
static char gpu_instances[GPUS][INSTANCES], compute_instances[GPUS][INSTANCES];
static const unsigned compute_slices[] = {1, 2, 3, 4, 7}; /* by NVML_COMPUTE_INSTANCE_PROFILE_*, which are the IDs */
enum { COMPUTE_PROFILES = sizeof compute_slices / sizeof *compute_slices, FIRST_ID = 7 };
static int number_in(const void *handle, const char (*handles)[INSTANCES], int *gpu, int *instance) {
    long at = (const char *)handle - handles[0];
    if (at < 0 || at >= GPUS * INSTANCES) return 0;
    *gpu = at / INSTANCES, *instance = at % INSTANCES;
    return 1;
}
#define FAIL_MIG(gpu, is_privileged) do { \
        int first_, last_; \
        FAIL_OF(gpu); \
        if (!mig_of(gpu, &first_, &last_) || !state_path()) return NOT_SUPPORTED; \
        if ((is_privileged) && getenv("FAKE_NVML_NO_ROOT")) return NO_PERMISSION; \
    } while (0)
int nvmlDeviceGetGpuInstanceProfileInfoV(void *device, unsigned profile, struct gpu_profile *info) {
    FAIL_MIG(gpu_of(device), 0);
    if (info->version != (2u << 24 | sizeof *info)) return INVALID_ARGUMENT;
    if (profile >= PROFILES || !shapes[profile].name) return NOT_SUPPORTED;
    const struct shape *shape = &shapes[profile];
    info->id = shape->id, info->compute = shape->compute, info->most = shape->most;
    info->multiprocessors = 16 * shape->compute, info->memory_mb = 17000ull * shape->memory;
    snprintf(info->name, sizeof info->name, "MIG %s", shape->name);
    return SUCCESS;
}
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *device, unsigned id, struct placement *places,
                                                  unsigned *count) {
    FAIL_MIG(gpu_of(device), 1);
    int profile = profile_by_id(id);
    if (profile < 0) return NOT_SUPPORTED;
    for (*count = 0; shapes[profile].starts[*count] >= 0; ++*count)
        if (places) places[*count] = (struct placement){shapes[profile].starts[*count], shapes[profile].memory};
    return SUCCESS;
}
int nvmlDeviceGetGpuInstances(void *device, unsigned id, void **found, unsigned *count) {
    FAIL_MIG(gpu_of(device), 1);
    struct made made[MOST_MADE];
    int gpu = gpu_of(device), all = read_made(made);
    *count = 0;
    for (int i = 0; i < all; i++)
        if (made[i].gpu == gpu && shapes[made[i].profile].id == id)
            found[(*count)++] = &gpu_instances[gpu][made[i].instance];
    return SUCCESS;
}
int nvmlDeviceGetGpuInstanceById(void *device, unsigned id, void **found) {
    FAIL_MIG(gpu_of(device), 1);
    struct made made[MOST_MADE];
    int gpu = gpu_of(device);
    if (!find_made(made, read_made(made), gpu, (int)id - FIRST_ID)) return NOT_FOUND;
    *found = &gpu_instances[gpu][id - FIRST_ID];
    return SUCCESS;
}
/* For calls with a handle of an instance; `found` is its GPU instance. */
#define FAIL_WITHOUT(handle, handles) \
    int gpu, instance; \
    if (!number_in(handle, handles, &gpu, &instance)) return INVALID_ARGUMENT; \
    FAIL_MIG(gpu, 1); \
    struct made made[MOST_MADE]; \
    int count = read_made(made); \
    struct made *found = find_made(made, count, gpu, instance); \
    if (!found) return INVALID_ARGUMENT
int nvmlGpuInstanceGetInfo(void *handle, struct gpu_instance_info *info) {
    FAIL_WITHOUT(handle, gpu_instances);
    const struct shape *shape = &shapes[found->profile];
    *info = (struct gpu_instance_info){&boards[gpu], FIRST_ID + instance, shape->id, {found->start, shape->memory}};
    return SUCCESS;
}
int nvmlDeviceCreateGpuInstanceWithPlacement(void *device, unsigned id, const struct placement *place, void **created) {
    FAIL_MIG(gpu_of(device), 1);
    struct made made[MOST_MADE];
    int gpu = gpu_of(device), profile = profile_by_id(id), count = read_made(made), slot = 0, serial = 0, may_start = 0;
    if (profile < 0) return NOT_SUPPORTED;
    const struct shape *shape = &shapes[profile];
    for (int i = 0; shape->starts[i] >= 0; i++) may_start |= shape->starts[i] == (int)place->start;
    if (!may_start || place->size != shape->memory) return INVALID_ARGUMENT;
    unsigned compute = shape->compute, alike = 1;
    for (int i = 0; i < count; i++) {
        const struct shape *other = &shapes[made[i].profile];
        if (made[i].serial >= serial) serial = made[i].serial + 1;
        if (made[i].gpu != gpu) continue;
        compute += other->compute, alike += made[i].profile == profile;
        if (made[i].start < (int)(place->start + place->size) && (int)place->start < made[i].start + (int)other->memory)
            return INSUFFICIENT_RESOURCES;
    }
    if (compute > 7 || alike > shape->most) return INSUFFICIENT_RESOURCES;
    while (find_made(made, count, gpu, slot)) slot++;
    if (slot >= INSTANCES || count == MOST_MADE) return INSUFFICIENT_RESOURCES;
    made[count++] = (struct made){gpu, slot, profile, (int)place->start, -1, serial};
    write_made(made, count);
    *created = &gpu_instances[gpu][slot];
    killing(__func__, "+");
    return SUCCESS;
}
int nvmlGpuInstanceDestroy(void *handle) {
    FAIL_WITHOUT(handle, gpu_instances);
    if (found->compute >= 0) return IN_USE;
    *found = made[count - 1];
    write_made(made, count - 1);
    killing(__func__, "+");
    return SUCCESS;
}
int nvmlGpuInstanceGetComputeInstanceProfileInfoV(void *handle, unsigned profile, unsigned engines,
                                                  struct compute_profile *info) {
    FAIL_WITHOUT(handle, gpu_instances);
    if (info->version != (2u << 24 | sizeof *info) || engines) return INVALID_ARGUMENT;
    if (profile >= COMPUTE_PROFILES || compute_slices[profile] > shapes[found->profile].compute) return NOT_SUPPORTED;
    info->id = profile, info->compute = compute_slices[profile];
    info->most = shapes[found->profile].compute / info->compute;
    return SUCCESS;
}
int nvmlGpuInstanceGetComputeInstances(void *handle, unsigned id, void **into, unsigned *number) {
    FAIL_WITHOUT(handle, gpu_instances);
    *number = found->compute >= 0 && id < COMPUTE_PROFILES && compute_slices[id] == shapes[found->profile].compute;
    if (*number) into[0] = &compute_instances[gpu][instance];
    return SUCCESS;
}
int nvmlGpuInstanceGetComputeInstanceById(void *handle, unsigned id, void **compute) {
    FAIL_WITHOUT(handle, gpu_instances);
    if (found->compute != (int)id) return NOT_FOUND;
    *compute = &compute_instances[gpu][instance];
    return SUCCESS;
}
int nvmlComputeInstanceGetInfo_v2(void *handle, struct compute_instance_info *info) {
    FAIL_WITHOUT(handle, compute_instances);
    if (found->compute < 0) return INVALID_ARGUMENT;
    memset(info, 0, sizeof *info);
    info->id = found->compute;
    return SUCCESS;
}
/* Only a compute instance of the whole GPU instance. */
int nvmlGpuInstanceCreateComputeInstance(void *handle, unsigned id, void **created) {
    FAIL_WITHOUT(handle, gpu_instances);
    if (id >= COMPUTE_PROFILES || compute_slices[id] != shapes[found->profile].compute) return NOT_SUPPORTED;
    if (found->compute >= 0) return INSUFFICIENT_RESOURCES;
    found->compute = 0;
    write_made(made, count);
    *created = &compute_instances[gpu][instance];
    killing(__func__, "+");
    return SUCCESS;
}
int nvmlComputeInstanceDestroy(void *handle) {
    FAIL_WITHOUT(handle, compute_instances);
    unsigned processes;
    const char *path = getenv("FAKE_NVML_PROCESSES");
    if (found->compute < 0) return INVALID_ARGUMENT;
    if (path && (processes_of(path, 100 * (gpu + 1) + instance, &processes, 0, NULL), processes)) return IN_USE;
    found->compute = -1;
    write_made(made, count);
    killing(__func__, "+");
    return SUCCESS;
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned *count, struct process *processes) {
    FAIL(device);
    unsigned room = *count;
    const char *path = getenv("FAKE_NVML_MPS_PROCESSES");
    *count = 0;
    return path ? processes_of(path, gpu_of(device), count, room, processes) : SUCCESS;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, struct process *processes) {
    FAIL(device);
    unsigned room = *count;
    const char *path = getenv("FAKE_NVML_GRAPHICS_PROCESSES");
    *count = 0;
    return path ? processes_of(path, gpu_of(device), count, room, processes) : SUCCESS;
}
/* The first of the two has had the GPU for 30 % of the time since the clock was moved on last. With FAKE_NVML_SUMS,
 * each listed process has a sample of this moment. */
struct process_sample { unsigned pid; u64 at_us; unsigned sm, memory, encoder, decoder; };
static int samples_of(int gpu, struct process_sample *samples, unsigned *count, u64 since_us) {
    struct line lines[2 * MOST_LINES];
    struct timespec now;
    unsigned percent, room = *count, found = working(gpu, lines, &percent);
    clock_gettime(CLOCK_REALTIME, &now);
    u64 at_us = now.tv_sec * 1000000ull + now.tv_nsec / 1000;
    if (!found || at_us <= since_us) return NOT_FOUND;
    *count = found;
    if (room < found || !samples) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++)
        samples[i] = (struct process_sample){lines[i].pid, at_us, lines[i].percent, 0, 0, 0};
    return SUCCESS;
}
int nvmlDeviceGetProcessUtilization(void *device, struct process_sample *samples, unsigned *count, u64 since_us) {
    FAIL(device);
    unsigned room = *count;
    if (error_of[PROCESS_UTILISATION]) return error_of[PROCESS_UTILISATION];
    if (getenv("FAKE_NVML_SUMS")) return samples_of(gpu_of(device), samples, count, since_us);
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
