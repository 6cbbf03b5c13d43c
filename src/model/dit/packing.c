#include "model/dit/packing.h"

#include <string.h>

/* Audio runs at eight latents to one video latent; its last token stands on the last one. */
#define AUDIO_PER_VIDEO 8

static m2_status check_shape(const m2_preview_shape *shape)
{
    if (shape->frames < 1 || shape->height < 1 || shape->width < 1 || shape->audio_len < 1)
        return m2_fail(M2_ERR_ARG,
                       "preview latents must not be empty: video %lld x %lld x %lld, audio %lld",
                       (long long)shape->frames, (long long)shape->height, (long long)shape->width,
                       (long long)shape->audio_len);
    if (shape->text_len[0] < 0 || shape->text_len[1] < 0)
        return m2_fail(M2_ERR_ARG, "preview text lengths must not be negative: %lld, %lld",
                       (long long)shape->text_len[0], (long long)shape->text_len[1]);
    if (shape->n_images < 0 || shape->n_images > M2_PREVIEW_IMAGES_MAX)
        return m2_fail(M2_ERR_ARG, "%d reference images; from 0 to %d are possible",
                       shape->n_images, M2_PREVIEW_IMAGES_MAX);
    for (int k = 0; k < shape->n_images; k++)
        if (shape->image_height[k] < 1 || shape->image_width[k] < 1)
            return m2_fail(M2_ERR_ARG, "latent of image %d must not be empty: %lld x %lld", k + 1,
                           (long long)shape->image_height[k], (long long)shape->image_width[k]);
    return M2_OK;
}

/* a * b, or INT32_MAX + 1 where that is passed: token counts are kept in 32 bits. */
static int64_t bounded_product(int64_t a, int64_t b)
{
    const int64_t limit = (int64_t)INT32_MAX + 1;
    if (a >= limit || b >= limit || a * b >= limit) return limit;
    return a * b;
}

m2_status m2_packing_init(m2_packing *packing, const m2_preview_shape *shape)
{
    M2_TRY(check_shape(shape));
    const int64_t limit = INT32_MAX;
    const int64_t n_video =
        bounded_product(bounded_product(shape->frames, shape->height), shape->width);
    int64_t n_patches = 0;
    for (int k = 0; k < shape->n_images; k++)
        n_patches += bounded_product(shape->image_height[k], shape->image_width[k]);
    int64_t n_text = 0, n_tokens = 0;
    for (int b = 0; b < M2_BRANCHES; b++) {
        if (shape->text_len[b] > limit || shape->audio_len > limit || n_video > limit) {
            n_tokens = limit + 1;
            break;
        }
        n_text += shape->text_len[b] + shape->n_images;
        n_tokens += n_video + n_patches + shape->audio_len + shape->text_len[b] + shape->n_images;
    }
    if (n_tokens > limit)
        return m2_fail(M2_ERR_ARG,
                       "preview would have over %lld tokens: video latent %lld x %lld x %lld",
                       (long long)limit, (long long)shape->frames, (long long)shape->height,
                       (long long)shape->width);

    *packing = (m2_packing){
        .shape = *shape, .n_tokens = n_tokens, .n_video = n_video, .n_patches = n_patches
    };
    const int64_t audio = M2_BRANCHES * (n_video + n_patches);
    const int64_t text = audio + M2_BRANCHES * shape->audio_len;
    packing->groups = (m2_groups){ .n_groups = 3, .begin = { 0, audio, text, text + n_text } };
    int64_t text_row = text;
    for (int b = 0; b < M2_BRANCHES; b++) {
        packing->segments[b + 1] = packing->segments[b] + n_video + n_patches + shape->audio_len +
                                   shape->text_len[b] + shape->n_images;
        packing->video_begin[b] = b * (n_video + n_patches);
        packing->patches_begin[b] = packing->video_begin[b] + n_video;
        packing->audio_begin[b] = audio + b * shape->audio_len;
        packing->text_begin[b] = text_row;
        packing->special_begin[b] = text_row + shape->text_len[b];
        text_row = packing->special_begin[b] + shape->n_images;
    }
    return M2_OK;
}

/* A run of tokens that are consecutive in the sequence and share modality, sizes and references. */
typedef struct token_run {
    m2_modality modality;
    int64_t count;
    int64_t row;     /* first row in modality order                 */
    int64_t time;    /* t of the first token                        */
    int64_t size[3]; /* time, height, width                         */
    int64_t reference[3];
    int is_special; /* y and x stand at -1                         */
} token_run;

typedef void run_visit(void *user, int64_t seq, const token_run *run);

static void visit_runs(const m2_packing *packing, run_visit *visit, void *user)
{
    const m2_preview_shape *shape = &packing->shape;
    const int64_t T = shape->frames, A = shape->audio_len;
    for (int b = 0; b < M2_BRANCHES; b++) {
        const int64_t L = shape->text_len[b];
        int64_t seq = packing->segments[b], patches = packing->patches_begin[b];

        visit(user, seq,
              &(token_run){ M2_VIDEO,
                            packing->n_video,
                            packing->video_begin[b],
                            0,
                            { T, shape->height, shape->width },
                            { T, shape->height, shape->width },
                            0 });
        seq += packing->n_video;
        visit(user, seq,
              &(token_run){ M2_AUDIO,
                            A,
                            packing->audio_begin[b],
                            0,
                            { A, 1, 1 },
                            { (A - 1) / AUDIO_PER_VIDEO + 1, 1, 1 },
                            0 });
        seq += A;
        visit(user, seq,
              &(token_run){ M2_TEXT, L, packing->text_begin[b], -L, { L, 1, 1 }, { 1, 1, 1 }, 0 });
        seq += L;
        for (int k = 0; k < shape->n_images; k++) {
            const int64_t h = shape->image_height[k], w = shape->image_width[k];
            visit(user, seq,
                  &(token_run){ M2_TEXT,
                                1,
                                packing->special_begin[b] + k,
                                T + 2 + k,
                                { 1, h, w },
                                { 1, h, w },
                                1 });
            visit(user, seq + 1,
                  &(token_run){ M2_VIDEO, h * w, patches, T + 2 + k, { 1, h, w }, { 1, h, w }, 0 });
            seq += 1 + h * w;
            patches += h * w;
        }
    }
}

typedef struct order_pair {
    int32_t *seq_of_row, *row_of_seq;
} order_pair;

static void put_orders(void *user, int64_t seq, const token_run *run)
{
    const order_pair *orders = user;
    for (int64_t i = 0; i < run->count; i++) {
        if (orders->seq_of_row) orders->seq_of_row[run->row + i] = (int32_t)(seq + i);
        if (orders->row_of_seq) orders->row_of_seq[seq + i] = (int32_t)(run->row + i);
    }
}

void m2_packing_orders(const m2_packing *packing, int32_t *seq_of_row, int32_t *row_of_seq)
{
    visit_runs(packing, put_orders, &(order_pair){ seq_of_row, row_of_seq });
}

static void put_modalities(void *user, int64_t seq, const token_run *run)
{
    for (int64_t i = 0; i < run->count; i++) ((int32_t *)user)[seq + i] = (int32_t)run->modality;
}

void m2_packing_modalities(const m2_packing *packing, int32_t *modality)
{
    visit_runs(packing, put_modalities, modality);
}

static void put_coords(void *user, int64_t seq, const token_run *run)
{
    const int64_t height = run->size[1], width = run->size[2];
    for (int64_t i = 0; i < run->count; i++) {
        float *coord = (float *)user + (seq + i) * M2_COORDS;
        coord[0] = (float)(run->time + i / (height * width));
        coord[1] = run->is_special ? -1.0f : (float)(i / width % height);
        coord[2] = run->is_special ? -1.0f : (float)(i % width);
        for (int axis = 0; axis < 3; axis++) {
            coord[3 + axis] = (float)run->size[axis];
            coord[6 + axis] = (float)run->reference[axis];
        }
    }
}

void m2_packing_coords(const m2_packing *packing, float *coords)
{
    visit_runs(packing, put_coords, coords);
}
