/* Any checkpoint file: opened, and if that succeeds every value read. */
#include "fuzz.h"

#include "io/checkpoint.h"

#include <stdlib.h>

#define COUNT_MAX 100000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    m2_checkpoint *checkpoint = NULL;
    if (m2_checkpoint_open(m2_fuzz_file(data, bytes), &checkpoint) != M2_OK) return 0;
    int64_t left = 50 * COUNT_MAX;
    for (int64_t i = 0; i < m2_checkpoint_n_tensors(checkpoint) && left > 0; i++) {
        const m2_ckpt_tensor *tensor = m2_checkpoint_at(checkpoint, i);
        if (m2_checkpoint_find(checkpoint, tensor->name) != tensor) abort();
        if (!m2_checkpoint_has_prefix(checkpoint, tensor->name)) abort();
        left -= tensor->count < COUNT_MAX ? tensor->count : 1;
        if (tensor->count > COUNT_MAX) continue;
        void *values = malloc((size_t)tensor->count * m2_dtype_bytes(tensor->dtype) + 1);
        float *converted = malloc((size_t)tensor->count * sizeof *converted + 1);
        if (values && converted) {
            m2_checkpoint_read(tensor, tensor->dtype, values);
            m2_checkpoint_read(tensor, M2_F32, converted);
        }
        free(values);
        free(converted);
    }
    (void)m2_checkpoint_metadata(checkpoint, "format");
    m2_checkpoint_close(checkpoint);
    return 0;
}
