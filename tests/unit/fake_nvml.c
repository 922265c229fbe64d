/* A fake libnvidia-ml with two GPUs, for the tests of rlsched_node.gpu.nvml: what it lacks, the driver lacks. */
#include <string.h>

#ifndef GPUS
#define GPUS 2 /* on the second, somebody else computes */
#endif

enum { POWER, ENERGY, UUID, INIT, UTILISATION, MEMORY, CALLS };
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, INSUFFICIENT_SIZE = 7 };

static int error_of[CALLS];
static int open_count;

void fake_set_error(int call, int code) { error_of[call] = code; }
void fake_reset(void) { memset(error_of, 0, sizeof error_of); open_count = 0; }
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
struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
    (void)device;
    memory->total = 1000ull << 20;
    memory->used = 250ull << 20;
    memory->free = 750ull << 20;
    return error_of[MEMORY];
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
