#include "gpu/stranger.h"

#include "backend/gpu/launch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct stranger {
    int device;
    atomic_int is_ending;
    long n_refused;
    pthread_t thread;
};

static void *allocate_and_free(void *context)
{
    stranger *it = context;
    gpuSetDevice(it->device);
    while (!atomic_load(&it->is_ending)) {
        void *memory = NULL;
        if (gpuMalloc(&memory, 4096) == gpuSuccess) {
            gpuFree(memory);
            continue;
        }
        gpuGetLastError();
        it->n_refused++;
    }
    return NULL;
}

stranger *stranger_start(int device)
{
    stranger *it = calloc(1, sizeof *it);
    if (!it) return NULL;
    it->device = device;
    if (pthread_create(&it->thread, NULL, allocate_and_free, it) == 0) return it;
    free(it);
    return NULL;
}

long stranger_end(stranger *it)
{
    atomic_store(&it->is_ending, 1);
    pthread_join(it->thread, NULL);
    const long n_refused = it->n_refused;
    free(it);
    return n_refused;
}
