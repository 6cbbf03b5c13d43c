/* e2e.h - golden runs of the whole pipeline: an engine over given parts, a clip over given noise. */
#ifndef M2_TESTS_GOLDEN_E2E_H
#define M2_TESTS_GOLDEN_E2E_H

#include "golden.h"
#include "pipeline/clip.h"

typedef struct e2e_case {
    golden_run *run;
    golden_file *file;
    const char *name, *path;
    m2_engine *engine;
    m2_clip clip;
    magi2_request request;
    m2_trace trace;
    double later_factor;  /* of the error rule behind the first step  */
    const json_t *report; /* the reference's recorded errors, or NULL */
} e2e_case;

/* An engine with the run's instruction set and threads; NULL after a recorded failure. */
m2_engine *e2e_engine(golden_run *run, const m2_model_paths *paths);

/* A clip whose sizes are those of the file's noise, which it will start from.
 *   text, null_text  recorded features (data NULL: no tokens)
 * 0 after a recorded failure. */
int e2e_begin(e2e_case *it, const m2_tensor *text, const m2_tensor *null_text, int n_steps);
void e2e_end(e2e_case *it);

/* Denoise; every "stepN..." entry of the file is judged as it comes by. */
void e2e_denoise(e2e_case *it);

/* A tensor of the engine on the host: itself, or a copy that lives until the run ends. */
m2_tensor e2e_fetch(golden_run *run, const m2_engine *engine, const m2_tensor *tensor);

/* Frames (u8 [n, H, W, 3]) and sound ([n, 2] f32, 44.1 kHz) of latents, by the decoders of `engine`;
 * memory of the run.  Latents stand on the host.  `dtype` is that of the video decoder. */
m2_tensor e2e_frames(golden_run *run, const m2_engine *engine, const m2_model_paths *paths,
                     const m2_tensor *video, m2_dtype dtype, m2_dtype frames_dtype);
m2_tensor e2e_sound(golden_run *run, const m2_engine *engine, const m2_tensor *audio);

/* Features of a prompt, as `dtype`; data NULL after a recorded failure. */
m2_tensor e2e_features(golden_run *run, const m2_engine *engine, const m2_model_paths *paths,
                       const char *prompt, m2_dtype dtype);

#endif
