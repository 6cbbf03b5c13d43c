/* magi2.json: loaded over the release's values. */
#include "fuzz.h"

#include "io/config.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    m2_model_config config;
    m2_model_config_init(&config);
    if (m2_model_config_load(&config, m2_fuzz_file(data, bytes)) == M2_OK) {
        /* What a loaded config promises to the code behind it. */
        if (config.arch.hidden_size % config.arch.head_dim != 0) abort();
        if (!m2_model_config_tier(&config, config.default_tier)) abort();
    }
    m2_model_config_free(&config);
    return 0;
}
