/* The JSON configs of the text encoder and of both decoders; the first byte says which. */
#include "fuzz.h"

#include "model/audio/oobleck_config.h"
#include "model/text/encoder_config.h"
#include "model/vae/turbo_config.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0) return 0;
    const char *path = m2_fuzz_file(data + 1, bytes - 1);
    m2_text_config text;
    m2_turbo_config video;
    m2_oobleck_config audio;
    switch (data[0]) {
    case 't':
        if (m2_text_config_load(path, &text) == M2_OK && (text.n_layers < 1 || text.head_dim < 1))
            abort();
        break;
    case 'v':
        if (m2_turbo_config_load(path, &video) == M2_OK && m2_turbo_n_frames(&video, 32) < 1)
            abort();
        break;
    default:
        if (m2_oobleck_config_load(path, &audio) == M2_OK && m2_oobleck_n_samples(&audio, 250) < 1)
            abort();
        break;
    }
    return 0;
}
