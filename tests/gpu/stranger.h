/* stranger.h - somebody in the process who uses the GPU beside us, with the vendor's own calls. */
#ifndef M2_TESTS_GPU_STRANGER_H
#define M2_TESTS_GPU_STRANGER_H

typedef struct stranger stranger;

/* Allocates and frees without pause, in a thread of its own; NULL in a build without a GPU. */
stranger *stranger_start(int device);
/* Ends it; gives back how many of its allocations were refused, as they are during a recording. */
long stranger_end(stranger *it);

#endif
