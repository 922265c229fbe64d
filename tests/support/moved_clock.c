/* A clock that a test moves: loaded by LD_PRELOAD, see moved_clock.py.
 *
 * The clocks of the wall, of the boot and the monotonic ones run ahead of the kernel's by the nanoseconds that
 * the file at $MOVED_CLOCK holds, which every process maps. A wait for a length of time is the kernel's; one
 * until a time is put back by as much as the clock is ahead. sigtimedwait, in which a shim waits for hours, goes
 * by the moved clock: it ends when the clock is moved past its end.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)
#define SLICE (SECOND / 50)

static const volatile int64_t *moved;

__attribute__((constructor)) static void map_file(void)
{
    const char *path = getenv("MOVED_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED)
        moved = page;
}

static int64_t ahead(clockid_t id)
{
    switch (id) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_BOOTTIME:
        return moved ? *moved : 0;
    default: /* CPU time, and what else does not pass by itself */
        return 0;
    }
}

static int64_t as_ns(const struct timespec *at)
{
    return at->tv_sec * SECOND + at->tv_nsec;
}

static struct timespec as_timespec(int64_t ns)
{
    if (ns < 0)
        ns = 0;
    return (struct timespec){.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND};
}

static struct timespec put_back(const struct timespec *at, clockid_t id)
{
    return as_timespec(as_ns(at) - ahead(id));
}

int clock_gettime(clockid_t id, struct timespec *at)
{
    if (syscall(SYS_clock_gettime, id, at) != 0)
        return -1;
    *at = as_timespec(as_ns(at) + ahead(id));
    return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

/* The library's own function; `version`: of its symbol, where an older one of that name has another form. */
static void *next(const char *name, const char *version)
{
    void *found = version ? dlvsym(RTLD_NEXT, name, version) : NULL;
    return found ? found : dlsym(RTLD_NEXT, name);
}

int clock_nanosleep(clockid_t id, int flags, const struct timespec *wanted, struct timespec *left)
{
    static int (*own)(clockid_t, int, const struct timespec *, struct timespec *);
    if (!own)
        own = next("clock_nanosleep", "GLIBC_2.17");
    struct timespec at = flags & TIMER_ABSTIME ? put_back(wanted, id) : *wanted;
    return own(id, flags, &at, left);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until)
{
    static int (*own)(sem_t *, const struct timespec *);
    if (!own)
        own = next("sem_timedwait", NULL);
    struct timespec at = put_back(until, CLOCK_REALTIME);
    return own(semaphore, &at);
}

int sem_clockwait(sem_t *restrict semaphore, clockid_t id, const struct timespec *restrict until)
{
    static int (*own)(sem_t *, clockid_t, const struct timespec *);
    if (!own)
        own = next("sem_clockwait", NULL);
    struct timespec at = put_back(until, id);
    return own(semaphore, id, &at);
}

int pthread_cond_timedwait(
    pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, const struct timespec *restrict until)
{
    static int (*own)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!own)
        own = next("pthread_cond_timedwait", "GLIBC_2.3.2");
    struct timespec at = put_back(until, CLOCK_MONOTONIC);
    return own(cond, mutex, &at);
}

int pthread_cond_clockwait(
    pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, clockid_t id,
    const struct timespec *restrict until)
{
    static int (*own)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
    if (!own)
        own = next("pthread_cond_clockwait", NULL);
    struct timespec at = put_back(until, id);
    return own(cond, mutex, id, &at);
}

int sigtimedwait(
    const sigset_t *restrict set, siginfo_t *restrict info, const struct timespec *restrict wanted)
{
    static int (*own)(const sigset_t *, siginfo_t *, const struct timespec *);
    if (!own)
        own = next("sigtimedwait", NULL);
    if (!wanted)
        return own(set, info, NULL);
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    int64_t end = as_ns(&at) + as_ns(wanted);
    for (;;) {
        int64_t left = end - as_ns(&at);
        struct timespec slice = as_timespec(left < SLICE ? left : SLICE);
        int found = own(set, info, &slice);
        if (found >= 0 || errno != EAGAIN || left <= SLICE)
            return found;
        clock_gettime(CLOCK_MONOTONIC, &at);
    }
}
