#include "io/map.h"

#include "core/temp_file.h"
#include "io/no_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Entries are reused but never freed, so that the handler may follow the list at any moment.  It is
 * the one piece of process-wide state: a signal handler has no other way to find anything. */
typedef struct map_entry {
    _Atomic(uintptr_t) base; /* 0: free */
    size_t bytes;
    const char *path;
    struct map_entry *next;
} map_entry;

static _Atomic(map_entry *) registry;
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;

static map_entry *register_map(const m2_map *map)
{
    pthread_mutex_lock(&registry_lock);
    map_entry *entry = atomic_load(&registry);
    while (entry && atomic_load(&entry->base) != 0) entry = entry->next;
    const int is_new = !entry;
    if (is_new) entry = calloc(1, sizeof *entry);
    if (entry) {
        entry->bytes = map->bytes;
        entry->path = map->path;
        atomic_store(&entry->base, (uintptr_t)map->data);
        if (is_new) {
            entry->next = atomic_load(&registry);
            atomic_store(&registry, entry);
        }
    }
    pthread_mutex_unlock(&registry_lock);
    return entry;
}

static void unregister_map(map_entry *entry)
{
    pthread_mutex_lock(&registry_lock);
    atomic_store(&entry->base, 0);
    entry->path = NULL;
    pthread_mutex_unlock(&registry_lock);
}

static m2_status map_descriptor(m2_map *map, int descriptor)
{
    struct stat info;
    if (fstat(descriptor, &info) != 0)
        return m2_fail(M2_ERR_IO, "%s: cannot read its size: %s", map->path, strerror(errno));
    if (S_ISDIR(info.st_mode))
        return m2_fail(M2_ERR_IO, "%s: is a directory, a file was expected", map->path);
    if (!S_ISREG(info.st_mode)) return m2_fail(M2_ERR_IO, "%s: is not a regular file", map->path);
    if (info.st_size == 0) {
        map->data = (const unsigned char *)"";
        return M2_OK;
    }
    void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (data == MAP_FAILED)
        return m2_fail(M2_ERR_IO, "%s: cannot map %lld bytes: %s", map->path,
                       (long long)info.st_size, strerror(errno));
    map->data = data;
    map->bytes = (size_t)info.st_size;
    map->entry = register_map(map);
    if (!map->entry) return m2_fail(M2_ERR_MEMORY, "%s: no memory to map it", map->path);
    return M2_OK;
}

m2_status m2_map_open(const char *path, m2_map **map_out)
{
    m2_map *map = calloc(1, sizeof *map);
    if (map) map->path = strdup(path);
    if (!map || !map->path) {
        free(map);
        return m2_fail(M2_ERR_MEMORY, "%s: no memory to map it", path);
    }
    m2_status status;
    /* O_NONBLOCK: a pipe under the file's name must be refused, not waited for. */
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) {
        status = m2_fail_open(path);
    } else {
        status = map_descriptor(map, descriptor);
        close(descriptor);
    }
    if (status != M2_OK) {
        m2_map_close(map);
        return status;
    }
    *map_out = map;
    return M2_OK;
}

void m2_map_close(m2_map *map)
{
    if (!map) return;
    if (map->entry) unregister_map(map->entry);
    if (map->bytes) munmap((void *)(uintptr_t)map->data, map->bytes);
    free(map->path);
    free(map);
}

static void write_text(const char *text)
{
    size_t left = strlen(text);
    while (left) {
        const ssize_t n = write(STDERR_FILENO, text, left);
        if (n <= 0) return;
        text += n;
        left -= (size_t)n;
    }
}

/* Only what a signal handler may call. */
static void on_bus_error(int number, siginfo_t *info, void *context)
{
    (void)context;
    const uintptr_t address = (uintptr_t)info->si_addr;
    for (const map_entry *entry = atomic_load(&registry); entry; entry = entry->next) {
        const uintptr_t base = atomic_load(&entry->base);
        if (base == 0 || address < base || address - base >= entry->bytes) continue;
        write_text("error: ");
        write_text(entry->path ? entry->path : "a mapped file");
        write_text(": cannot be read any more: it was cut or its disk failed during the run\n");
        m2_temp_remove_all();
        _exit(1);
    }
    signal(number, SIG_DFL);
    raise(number);
}

void m2_map_guard_install(void)
{
    struct sigaction action = { .sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO };
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}
