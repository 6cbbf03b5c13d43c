/* draw_release.h - cases in the sizes of the released model, of few tokens, and of the demo. */
#ifndef M2_TESTS_BACKEND_DRAW_RELEASE_H
#define M2_TESTS_BACKEND_DRAW_RELEASE_H

#include "backend/draw.h"

/* Each runs one layer's part on `ops` with n tokens; n may be small, never 0. */
typedef void release_part(random_case *c, const m2_ops *ops, int64_t n);

release_part release_attention_part, release_far_scores, release_streams, release_products,
    release_experts, release_heads_of_experts, demo_layer, release_text, release_decoder;

#endif
