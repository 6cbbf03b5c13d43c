#include "pipeline/memory.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MIB 1048576.0

size_t m2_memory_resident(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file) return 0;
    size_t total = 0, resident = 0;
    if (fscanf(file, "%zu %zu", &total, &resident) != 2) resident = 0;
    fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

/* The value of "KEY:   N kB" in a file of such lines; 0 without it. */
static size_t read_kib(const char *path, const char *key)
{
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    char line[256];
    size_t kib = 0;
    while (fgets(line, sizeof line, file)) {
        const size_t n = strlen(key);
        if (strncmp(line, key, n) == 0 && line[n] == ':' && sscanf(line + n + 1, "%zu", &kib) == 1)
            break;
    }
    fclose(file);
    return kib * 1024;
}

size_t m2_memory_peak(void)
{
    return read_kib("/proc/self/status", "VmHWM");
}

static size_t read_number(const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file) return SIZE_MAX;
    uint64_t value = 0;
    const int n = fscanf(file, "%" SCNu64, &value); /* "max" reads as no number */
    fclose(file);
    return n == 1 ? (size_t)value : SIZE_MAX;
}

size_t m2_memory_available(void)
{
    size_t available = read_kib("/proc/meminfo", "MemAvailable");
    const size_t limit = read_number("/sys/fs/cgroup/memory.max");
    const size_t used = read_number("/sys/fs/cgroup/memory.current");
    if (limit != SIZE_MAX && used != SIZE_MAX) {
        const size_t left = limit > used ? limit - used : 0;
        if (left < available) available = left;
    }
    return available;
}

m2_status m2_memory_check(const m2_memory_plan *plan, size_t limit)
{
    if (limit && plan->wanted == 0 && plan->mapped + plan->copied + M2_MEMORY_PROGRAM_BYTES > limit)
        return m2_fail(M2_ERR_MEMORY,
                       "the weights alone need %.0f MiB (and the program and its encoder %.0f), "
                       "--ram-limit allows %.0f MiB; the clip comes on top, `magi2 plan` says how "
                       "much; raise the limit",
                       (double)(plan->mapped + plan->copied) / MIB, M2_MEMORY_PROGRAM_BYTES / MIB,
                       (double)limit / MIB);
    const size_t total = plan->mapped + plan->copied + plan->wanted + M2_MEMORY_PROGRAM_BYTES;
    if (limit && total > limit)
        return m2_fail(
            M2_ERR_MEMORY,
            "the plan needs %.0f MiB (weights %.0f, the clip %.0f, the program and its "
            "encoder %.0f), --ram-limit allows %.0f MiB; raise it or use a smaller --tier",
            (double)total / MIB, (double)(plan->mapped + plan->copied) / MIB,
            (double)plan->wanted / MIB, M2_MEMORY_PROGRAM_BYTES / MIB, (double)limit / MIB);
    const size_t available = m2_memory_available();
    if (available && plan->wanted > available)
        return m2_fail(M2_ERR_MEMORY,
                       "the clip needs %.0f MiB, %.0f MiB are free; end other programs "
                       "or use a smaller --tier",
                       (double)plan->wanted / MIB, (double)available / MIB);
    return M2_OK;
}
