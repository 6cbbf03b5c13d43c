/* model.safetensors.index.json beside two whole shards. */
#include "fuzz.h"

#include "io/checkpoint.h"
#include "io/safetensors_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char dir[] = "/tmp/magi2-fuzz-XXXXXX";
static char shards[2][64], index_path[64];

static void remove_files(void)
{
    unlink(shards[0]);
    unlink(shards[1]);
    unlink(index_path);
    rmdir(dir);
}

static void make_files(void)
{
    static const float values[4] = { 1, 2, 3, 4 };
    const m2_tensor tensor = m2_tensor_over((void *)(uintptr_t)values, M2_F32, 2, 2);
    const m2_named_tensor first[] = { { "a", tensor }, { "b", tensor } };
    const m2_named_tensor second[] = { { "b", tensor }, { "c", tensor } };
    if (!mkdtemp(dir)) abort();
    snprintf(shards[0], sizeof shards[0], "%s/1.safetensors", dir);
    snprintf(shards[1], sizeof shards[1], "%s/2.safetensors", dir);
    snprintf(index_path, sizeof index_path, "%s/model.safetensors.index.json", dir);
    if (m2_safetensors_write(shards[0], first, 2, NULL, 0) != M2_OK ||
        m2_safetensors_write(shards[1], second, 2, NULL, 0) != M2_OK)
        abort();
    atexit(remove_files);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (!index_path[0]) make_files();
    FILE *file = fopen(index_path, "wb");
    if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) abort();
    m2_checkpoint *checkpoint = NULL;
    if (m2_checkpoint_open(dir, &checkpoint) == M2_OK) {
        for (int64_t i = 0; i < m2_checkpoint_n_tensors(checkpoint); i++) {
            const m2_ckpt_tensor *tensor = m2_checkpoint_at(checkpoint, i);
            if (m2_checkpoint_find(checkpoint, tensor->name) != tensor) abort();
        }
        m2_checkpoint_close(checkpoint);
    }
    return 0;
}
