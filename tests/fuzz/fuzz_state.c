/* The state file of an unfinished or undecoded clip. */
#include "fuzz.h"

#include "pipeline/state.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    m2_clip_state state;
    if (m2_state_read(m2_fuzz_file(data, bytes), &state) == M2_OK) {
        /* What a state that was taken promises to the code behind it. */
        if (!state.prompt || state.n_done < 0 || state.n_done > state.settings.n_steps) abort();
        if (!state.video.data || !state.audio.data) abort();
        if (state.n_done < state.settings.n_steps && !state.audio_history[0].data) abort();
        m2_state_free(&state);
    }
    return 0;
}
