#include "core/temp_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdint.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* The one piece of process-wide state: a signal handler has no context to find it through. */
#define SLOTS 32
static struct {
    atomic_int is_used;
    char path[M2_TEMP_PATH_MAX];
} slots[SLOTS];
static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;

static int take_slot(const char *path)
{
    int taken = -1;
    pthread_mutex_lock(&slots_lock);
    for (int i = 0; i < SLOTS && taken < 0; i++) {
        if (atomic_load(&slots[i].is_used)) continue;
        snprintf(slots[i].path, sizeof slots[i].path, "%s", path);
        atomic_store(&slots[i].is_used, 1);
        taken = i;
    }
    pthread_mutex_unlock(&slots_lock);
    return taken;
}

static void free_slot(m2_temp_file *file)
{
    if (file->slot >= 0) atomic_store(&slots[file->slot].is_used, 0);
    file->slot = -1;
    file->path[0] = '\0';
}

/* A new file in the target's directory under a short name of its own: the target's name may already
 * be as long as names can be.  open() applies the umask; mkstemp() would not, and reading the umask
 * means to change it for every thread.  Gives back its descriptor, or -1 and errno. */
static int create_beside(char *path, size_t bytes, const char *target, int dir)
{
    /* The target's own name must be one that the file system takes. */
    const int own = open(target, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (own >= 0)
        close(own);
    else if (errno == ENAMETOOLONG)
        return -1;
    for (int attempt = 0; attempt < 100; attempt++) {
        uint64_t number;
        if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) return -1;
        const int n =
            snprintf(path, bytes, "%.*s.magi2-%016llx", dir, target, (unsigned long long)number);
        if (n < 0 || (size_t)n >= bytes) {
            errno = ENAMETOOLONG;
            return -1;
        }
        const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

m2_status m2_temp_create(m2_temp_file *file, const char *target)
{
    file->slot = -1;
    file->path[0] = '\0';
    if (strlen(target) + 32 > sizeof file->target)
        return m2_fail(M2_ERR_ARG, "%.200s...: the file name is too long", target);
    snprintf(file->target, sizeof file->target, "%s", target);
    struct stat info;
    if (stat(target, &info) == 0) {
        if (S_ISDIR(info.st_mode))
            return m2_fail(M2_ERR_IO, "%s: is a directory; give the name of a file", target);
        /* The rename would put a file in the place of the device: /dev/null would be gone. */
        if (!S_ISREG(info.st_mode))
            return m2_fail(M2_ERR_IO, "%s: is no regular file; give the name of a file", target);
        char *real = realpath(target, NULL); /* a link stays, the file behind it is replaced */
        if (real && strlen(real) + 32 <= sizeof file->target)
            snprintf(file->target, sizeof file->target, "%s", real);
        free(real);
    }
    target = file->target;
    /* Hidden, so that a listing of results does not show it. */
    const char *slash = strrchr(target, '/');
    const int dir = slash ? (int)(slash - target) + 1 : 0;
    const int fd = create_beside(file->path, sizeof file->path, target, dir);
    if (fd < 0) {
        const int error = errno;
        file->path[0] = '\0';
        return m2_fail(M2_ERR_IO, "%s: cannot be written: %s%s", target, strerror(error),
                       error == ENOENT ? "; make the folder first" : "");
    }
    close(fd);
    file->slot = take_slot(file->path);
    return M2_OK;
}

static m2_file_id id_from(const struct stat *info)
{
    return (m2_file_id){ .device = info->st_dev,
                         .inode = info->st_ino,
                         .seconds = info->st_mtim.tv_sec,
                         .nanoseconds = info->st_mtim.tv_nsec };
}

int m2_file_id_of(const char *path, m2_file_id *id_out)
{
    struct stat info;
    *id_out = (m2_file_id){ 0 };
    if (stat(path, &info) != 0) return 0;
    *id_out = id_from(&info);
    return 1;
}

int m2_file_is(const char *path, const m2_file_id *id)
{
    m2_file_id now;
    return m2_file_id_of(path, &now) && now.device == id->device && now.inode == id->inode &&
           now.seconds == id->seconds && now.nanoseconds == id->nanoseconds;
}

m2_status m2_temp_commit(m2_temp_file *file)
{
    const int fd = open(file->path, O_RDWR | O_CLOEXEC);
    struct stat info = { 0 };
    int error = 0;
    if (fd < 0 || fsync(fd) != 0 || fstat(fd, &info) != 0) error = errno;
    if (fd >= 0) close(fd);
    if (!error && rename(file->path, file->target) != 0) error = errno;
    if (error) {
        m2_temp_discard(file);
        return m2_fail(M2_ERR_IO, "%s: cannot be written: %s", file->target, strerror(error));
    }
    file->id = id_from(&info);
    free_slot(file);
    return M2_OK;
}

void m2_temp_discard(m2_temp_file *file)
{
    if (!file || !file->path[0]) return;
    unlink(file->path);
    free_slot(file);
}

/* The folder of `path`, and its last part in *name_out. */
static int stat_folder(const char *path, struct stat *info, const char **name_out)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    *name_out = slash ? slash + 1 : path;
    const int n = slash ? (int)(slash - path) + 1 : 0;
    if (snprintf(folder, sizeof folder, "%.*s.", n, path) >= (int)sizeof folder) return 0;
    return stat(folder, info) == 0;
}

int m2_is_same_file(const char *a, const char *b)
{
    struct stat info_a, info_b;
    const char *name_a, *name_b;
    if (strcmp(a, b) == 0) return 1;
    if (stat(a, &info_a) == 0 && stat(b, &info_b) == 0)
        return info_a.st_dev == info_b.st_dev && info_a.st_ino == info_b.st_ino;
    /* What is not there yet is known by its folder and its name. */
    return stat_folder(a, &info_a, &name_a) && stat_folder(b, &info_b, &name_b) &&
           strcmp(name_a, name_b) == 0 && info_a.st_dev == info_b.st_dev &&
           info_a.st_ino == info_b.st_ino;
}

void m2_temp_remove_all(void)
{
    for (int i = 0; i < SLOTS; i++) {
        if (atomic_load(&slots[i].is_used)) unlink(slots[i].path);
    }
}
