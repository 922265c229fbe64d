/* A fake libcuda for tests/support/gpu_load.py: a process with a context is a line `0 PID MIB` of the file that
 * FAKE_NVML_PROCESSES names, which the fake NVML lists. The line goes when the process exits.
 *
 * With CUDA_MPS_PIPE_DIRECTORY a process becomes a client of the control daemon of fake_mps.py, as CUDA does: if no
 * daemon can be reached, it runs without MPS. A client is a line of the file FAKE_NVML_MPS_PROCESSES instead, and
 * holds no more than the first limit of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT. A client whose connection the daemon has
 * ended cannot work any more. One that exits reports this to the daemon; one that is killed does not.
 *
 * The GPU has FAKE_NVML_MEMORY_MIB, by default 1,000 MiB. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, CLIENT_TERMINATED = 810, MOST = 64 };
typedef unsigned long long u64;
static u64 held;
static int is_client, daemon_link = -1;

/* Rewrites a file without the lines of this process and of processes that have exited; adds a line if asked. Returns
 * the memory of the others, MiB. */
static u64 rewrite(const char *variable, int is_here) {
    const char *path = getenv(variable);
    FILE *file = path ? fopen(path, "a+") : NULL;
    char lines[MOST][64];
    int count = 0, gpu, pid;
    u64 mib, others = 0;
    if (!file) return 0;
    flock(fileno(file), LOCK_EX);
    rewind(file);
    while (count < MOST && fgets(lines[count], sizeof *lines, file)) count++;
    if (ftruncate(fileno(file), 0)) abort();
    for (int i = 0; i < count; i++) {
        char proc[32];
        mib = 0;
        if (sscanf(lines[i], "%d %d %llu", &gpu, &pid, &mib) < 2) continue;
        snprintf(proc, sizeof proc, "/proc/%d", pid);
        if (pid == getpid() || access(proc, F_OK)) continue;
        fputs(lines[i], file);
        others += gpu == 0 ? mib : 0;
    }
    if (is_here) fprintf(file, "0 %d %llu\n", getpid(), held >> 20);
    fclose(file);
    return others;
}
static u64 list(int is_here) {
    return rewrite("FAKE_NVML_PROCESSES", is_here && !is_client) +
           rewrite("FAKE_NVML_MPS_PROCESSES", is_here && is_client);
}
static void leave(void) {
    char answer[16];
    list(0);
    if (is_client && send(daemon_link, "leave 0\n", 8, MSG_NOSIGNAL) == 8)
        (void)!read(daemon_link, answer, sizeof answer);
}
static int is_terminated(void) {
    char answer;
    return is_client && recv(daemon_link, &answer, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}
/* The socket stays open, so that the process is a client until it exits. */
static void become_client(void) {
    const char *pipes = getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char answer[16];
    int link = daemon_link = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (link < 0 || !pipes) return;
    snprintf(address.sun_path, sizeof address.sun_path, "%s/control", pipes);
    if (connect(link, (struct sockaddr *)&address, sizeof address)) return;
    dprintf(link, "client %d\n", getpid());
    is_client = read(link, answer, sizeof answer) == 2;
}
static u64 total_mib(void) {
    const char *mib = getenv("FAKE_NVML_MEMORY_MIB");
    return mib ? strtoull(mib, NULL, 10) : 1000;
}
static u64 limit_mib(void) {
    const char *limits = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    u64 mib;
    return is_client && limits && sscanf(limits, "0=%lluM", &mib) == 1 ? mib : total_mib();
}

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
    become_client();
    list(1);
    atexit(leave);
    return SUCCESS;
}
int cuCtxSetCurrent(void *context) { return context != &held; }
int cuMemAlloc_v2(u64 *address, size_t bytes) {
    u64 mib = (held + bytes) >> 20;
    if (mib > limit_mib() || mib + list(1) > total_mib()) return OUT_OF_MEMORY;
    *address = 4096 + held;
    held += bytes;
    list(1);
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
int cuCtxSynchronize(void) {
    usleep(6000);
    return is_terminated() ? CLIENT_TERMINATED : SUCCESS;
}
int cuGetErrorName(int code, const char **name) {
    *name = code == OUT_OF_MEMORY       ? "CUDA_ERROR_OUT_OF_MEMORY"
            : code == CLIENT_TERMINATED ? "CUDA_ERROR_MPS_CLIENT_TERMINATED"
                                        : "CUDA_ERROR_UNKNOWN";
    return SUCCESS;
}
