/* packing.h - which tokens the preview transformer sees, in which two orders.
 *
 * Both guidance branches go through in one forward: branch 0 conditional, branch 1 unconditional.
 *
 *   sequence order   [b0: video, audio, text, (special k, patches k)*][b1: the same]
 *                    attention works here, each branch on its own
 *   modality order   [video group][audio group][text group], stable: everything row-wise works here
 *     video group    b0 video, b0 patches, b1 video, b1 patches   (image patches are video tokens)
 *     audio group    b0 audio, b1 audio
 *     text group     b0 text, b0 specials, b1 text, b1 specials
 *
 * Pure arithmetic on the host; nothing here knows values or devices.
 */
#ifndef M2_MODEL_DIT_PACKING_H
#define M2_MODEL_DIT_PACKING_H

#include "backend/ops.h"

#define M2_BRANCHES           2
#define M2_PREVIEW_IMAGES_MAX 16
#define M2_COORDS             9 /* t y x, sizes, references */

typedef enum m2_modality { M2_VIDEO = 0, M2_AUDIO = 1, M2_TEXT = 2 } m2_modality;

/* What a request asks for, in latent units. */
typedef struct m2_preview_shape {
    int64_t frames, height, width; /* of the video latent, each >= 1       */
    int64_t audio_len;             /* of the audio latent, >= 1            */
    int64_t text_len[M2_BRANCHES]; /* tokens; 0 is allowed                 */
    int n_images;                  /* 0 ... M2_PREVIEW_IMAGES_MAX          */
    int64_t image_height[M2_PREVIEW_IMAGES_MAX], image_width[M2_PREVIEW_IMAGES_MAX];
    int use_ref_for_uncond; /* 0: zero patches in branch 1          */
} m2_preview_shape;

typedef struct m2_packing {
    m2_preview_shape shape;
    int64_t n_tokens;
    int64_t n_video, n_patches;         /* of one branch                           */
    int64_t segments[M2_BRANCHES + 1];  /* of the sequence order                   */
    m2_groups groups;                   /* of the modality order: three modalities */
    int64_t video_begin[M2_BRANCHES];   /* first row in modality order ...         */
    int64_t patches_begin[M2_BRANCHES]; /* ... all images of a branch together     */
    int64_t audio_begin[M2_BRANCHES];
    int64_t text_begin[M2_BRANCHES], special_begin[M2_BRANCHES];
} m2_packing;

/* Errors  M2_ERR_ARG: a size out of range, or more tokens than 2^31 - 1 */
m2_status m2_packing_init(m2_packing *packing, const m2_preview_shape *shape);

/* Sequence row of every modality row, and the reverse; [n_tokens] each, either may be NULL. */
void m2_packing_orders(const m2_packing *packing, int32_t *seq_of_row, int32_t *row_of_seq);
/* Modality of every token in sequence order, [n_tokens]. */
void m2_packing_modalities(const m2_packing *packing, int32_t *modality);
/* Coordinates in sequence order, [n_tokens, 9]. */
void m2_packing_coords(const m2_packing *packing, float *coords);

#endif
