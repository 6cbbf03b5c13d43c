/* noise.c - the latents that denoising starts from: drawn as the reference draws, or given. */
#include "pipeline/clip.h"

#include "core/rng.h"

#include <math.h>
#include <stdlib.h>

/* Leading dimensions of 1 are the reference's batch axis. */
static int same_shape(const m2_ckpt_tensor *given, const m2_tensor *wanted)
{
    const int extra = given->n_dims - wanted->n_dims;
    if (extra < 0 || extra > 1 || (extra == 1 && given->shape[0] != 1)) return 0;
    for (int i = 0; i < wanted->n_dims; i++) {
        if (given->shape[i + extra] != wanted->shape[i]) return 0;
    }
    return 1;
}

static m2_status read_noise(m2_clip *clip, const m2_checkpoint *file, const char *name,
                            m2_tensor *latent)
{
    const char *path = m2_checkpoint_path(file);
    char wanted[96];
    m2_tensor_shape_text(latent, wanted, sizeof wanted);
    const m2_ckpt_tensor *given = m2_checkpoint_find(file, name);
    if (!given)
        return m2_fail(M2_ERR_FORMAT, "%s: holds no '%s'; noise is '%s' %s, f32", path, name, name,
                       wanted);
    if (!same_shape(given, latent)) {
        const m2_tensor like = m2_tensor_wrap(NULL, given->dtype, given->n_dims, given->shape);
        char has[96];
        return m2_fail(M2_ERR_FORMAT, "%s: '%s' is %s; tier %s needs %s", path, name,
                       m2_tensor_shape_text(&like, has, sizeof has), clip->settings.tier, wanted);
    }
    float *values = malloc((size_t)given->count * sizeof *values);
    if (!values) return m2_fail(M2_ERR_MEMORY, "%s: no memory to read it", path);
    m2_checkpoint_read(given, M2_F32, values);
    m2_status status = M2_OK;
    for (int64_t i = 0; i < given->count && status == M2_OK; i++) {
        if (!isfinite(values[i]))
            status =
                m2_fail(M2_ERR_NUMERIC, "%s: '%s' holds a value that is not finite", path, name);
    }
    if (status == M2_OK) clip->engine->ops.upload(&clip->engine->ops, latent, values);
    free(values);
    return status;
}

static m2_status draw_noise(m2_clip *clip, m2_rng *rng, m2_tensor *latent)
{
    const int64_t n = m2_tensor_count(latent);
    float *values = malloc((size_t)n * sizeof *values);
    if (!values) return m2_fail(M2_ERR_MEMORY, "no memory to draw noise");
    m2_rng_normal(rng, clip->engine->pool, values, n);
    clip->engine->ops.upload(&clip->engine->ops, latent, values);
    free(values);
    return M2_OK;
}

m2_status m2_clip_noise(m2_clip *clip)
{
    if (clip->request->noise) {
        m2_checkpoint *file = NULL;
        M2_TRY(m2_checkpoint_open(clip->request->noise, &file));
        m2_status status = read_noise(clip, file, "noise.video", &clip->video);
        if (status == M2_OK) status = read_noise(clip, file, "noise.audio", &clip->audio);
        m2_checkpoint_close(file);
        return status;
    }
    /* One generator, video first: the order is part of what a seed means. */
    m2_rng rng;
    M2_TRY(m2_rng_init(&rng, (uint64_t)clip->settings.seed,
                       (m2_rng_grid){ clip->settings.noise_sms, clip->settings.noise_threads }));
    M2_TRY(draw_noise(clip, &rng, &clip->video));
    return draw_noise(clip, &rng, &clip->audio);
}
