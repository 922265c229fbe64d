/* A fake libnvidia-ml with two GPUs, for the tests of rlsched_node.gpu.nvml: what it lacks, the driver lacks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef GPUS
#define GPUS 2 /* on the second, somebody else computes */
#endif

enum { POWER, ENERGY, UUID, INIT, UTILISATION, MEMORY, CLOCKS, LOCK, PERSISTENCE, CALLS };
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };

static int error_of[CALLS];
static int open_count;

void fake_set_error(int call, int code) { error_of[call] = code; }
static void fake_unlock(void);
void fake_reset(void) { memset(error_of, 0, sizeof error_of); open_count = 0; fake_unlock(); }
int fake_open_count(void) { return open_count; }

static char gpu_0, gpu_1;

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (!error_of[INIT]) open_count++;
    return error_of[INIT];
}
int nvmlShutdown(void) { open_count--; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = GPUS; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index >= GPUS) return INVALID_ARGUMENT;
    *device = index ? &gpu_1 : &gpu_0;
    return SUCCESS;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    strncpy(uuid, device == &gpu_1 ? "GPU-fake-1" : "GPU-fake-0", length);
    return error_of[UUID];
}
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    (void)device;
    strncpy(name, "Fake H200", length);
    return SUCCESS;
}
/* The GPUs fall off the bus when the file that FAKE_NVML_LOST names is there. */
static int is_lost(void) {
    const char *path = getenv("FAKE_NVML_LOST");
    return path && access(path, F_OK) == 0;
}
struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
    (void)device;
    memory->total = 1000ull << 20;
    memory->used = 250ull << 20;
    memory->free = 750ull << 20;
    return is_lost() ? GPU_IS_LOST : error_of[MEMORY];
}
struct utilisation { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(void *device, struct utilisation *rates) {
    (void)device;
    rates->gpu = 42;
    rates->memory = 7;
    return error_of[UTILISATION];
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    (void)device;
    *milliwatts = 301500;
    return error_of[POWER];
}
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    (void)device;
    *millijoules = 1234500;
    return error_of[ENERGY];
}
int nvmlDeviceGetClockInfo(void *device, unsigned kind, unsigned *mhz) {
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
    unsigned room = *count;
    (void)device;
    *count = memory == 2619 ? COUNT : 1;
    if (room < *count || !clocks) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++) clocks[i] = HIGHEST - STEP * i;
    return SUCCESS;
}
int nvmlDeviceGetPersistenceMode(void *device, unsigned *mode) { (void)device; *mode = 1; return SUCCESS; }
int nvmlDeviceSetPersistenceMode(void *device, unsigned mode) {
    (void)device;
    if (getenv("FAKE_NVML_NO_ROOT")) return 4;
    return mode == 1 ? error_of[PERSISTENCE] : INVALID_ARGUMENT;
}
int nvmlDeviceSetGpuLockedClocks(void *device, unsigned low, unsigned high) {
    unsigned gpu = device == &gpu_1;
    if (lock_error()) return lock_error();
    if (low > high || high > HIGHEST || (HIGHEST - high) % STEP) return INVALID_ARGUMENT;
    locked[gpu] = high;
    note("lock", gpu, low, high);
    return SUCCESS;
}
int nvmlDeviceResetGpuLockedClocks(void *device) {
    unsigned gpu = device == &gpu_1;
    if (lock_error()) return lock_error();
    locked[gpu] = 0;
    note("reset", gpu, 0, 0);
    return SUCCESS;
}
struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *processes) {
    unsigned room = *count;
    *count = device == &gpu_1 ? 2 : 0;
    if (*count == 0) return SUCCESS;
    if (room < *count || !processes) return INSUFFICIENT_SIZE;
    processes[0] = (struct process){4711, 18432ull << 20, 0, 0};
    processes[1] = (struct process){4712, ~0ull, 0, 0};
    return SUCCESS;
}
