/* A fake libcuda for tests/support/gpu_load.py: a process with a context is a line `0 PID` of the file that
 * FAKE_NVML_PROCESSES names, which the fake NVML lists. The line goes when the process exits.
 *
 * The GPU has 1,000 MiB; every other process with a context counts as half of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, TOTAL_MIB = 1000, MOST = 64 };
typedef unsigned long long u64;
static u64 held;

/* Rewrites the file without the lines of processes that have exited, and of `left`; adds `added`. Returns the number of others. */
static int list(int added, int left) {
    const char *path = getenv("FAKE_NVML_PROCESSES");
    FILE *file = path ? fopen(path, "a+") : NULL;
    int gpu[MOST], pid[MOST], count = 0, others = 0;
    if (!file) return 0;
    flock(fileno(file), LOCK_EX);
    rewind(file);
    while (count < MOST && fscanf(file, "%d %d", &gpu[count], &pid[count]) == 2) count++;
    if (ftruncate(fileno(file), 0)) abort();
    for (int i = 0; i < count; i++) {
        char proc[32];
        snprintf(proc, sizeof proc, "/proc/%d", pid[i]);
        if (pid[i] == left || pid[i] == added || access(proc, F_OK)) continue;
        fprintf(file, "%d %d\n", gpu[i], pid[i]);
        others += pid[i] != getpid();
    }
    if (added) fprintf(file, "0 %d\n", added);
    fclose(file);
    return others;
}
static void leave(void) { list(0, getpid()); }

int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return SUCCESS; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)attribute, (void)device;
    *value = 1;
    return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    *context = &held;
    list(getpid(), 0);
    atexit(leave);
    return SUCCESS;
}
int cuCtxSetCurrent(void *context) { return context != &held; }
int cuMemAlloc_v2(u64 *address, size_t bytes) {
    u64 others = (u64)list(getpid(), 0) * TOTAL_MIB / 2;
    if (((held + bytes) >> 20) + others > TOTAL_MIB) return OUT_OF_MEMORY;
    *address = 4096 + held;
    held += bytes;
    return SUCCESS;
}
int cuMemsetD8_v2(u64 address, unsigned char byte, size_t bytes) { (void)byte, (void)bytes; return address == 0; }
int cuModuleLoadData(void **module, const char *text) { *module = &held; return !strstr(text, ".entry work("); }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = module;
    return strcmp(name, "work") != 0;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
    return function != &held || !*(u64 *)arguments[0] || !*(unsigned *)arguments[1];
}
int cuCtxSynchronize(void) { usleep(6000); return SUCCESS; }
int cuGetErrorName(int code, const char **name) {
    *name = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
    return SUCCESS;
}
