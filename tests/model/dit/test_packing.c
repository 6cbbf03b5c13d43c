/* Token orders and coordinates of the preview transformer. */
#include "support/check.h"

#include "model/dit/packing.h"

#include <stdlib.h>
#include <string.h>

/* Two images of different sizes, texts of different lengths. */
static const m2_preview_shape two_images = { .frames = 3,
                                             .height = 2,
                                             .width = 4,
                                             .audio_len = 17,
                                             .text_len = { 5, 2 },
                                             .n_images = 2,
                                             .image_height = { 2, 3 },
                                             .image_width = { 3, 1 },
                                             .use_ref_for_uncond = 1 };

/* Branch 0 then branch 1, each video, audio, text, then special token and patches of each image;
 * rows sorted by modality keep the sequence's order.  Catches an unstable sort, patches filed under
 * text, and runs that overlap or leave gaps. */
static void rows_are_a_stable_sort_of_the_sequence(void **state)
{
    (void)state;
    m2_packing packing;
    check_ok(m2_packing_init(&packing, &two_images));
    const int64_t n = packing.n_tokens;
    assert_int_equal(n, 2 * (24 + 17 + 2 + 6 + 3) + 5 + 2);
    assert_int_equal(packing.segments[0], 0);
    assert_int_equal(packing.segments[1], 24 + 17 + 5 + 2 + 6 + 3);
    assert_int_equal(packing.segments[2], n);

    int32_t *seq = malloc((size_t)n * 4), *row = malloc((size_t)n * 4);
    int32_t *modality = malloc((size_t)n * 4);
    m2_packing_orders(&packing, seq, row);
    m2_packing_modalities(&packing, modality);
    for (int64_t r = 0; r < n; r++) {
        assert_int_equal(row[seq[r]], r);
        for (int m = 0; m < 3; m++) {
            const int is_inside = r >= packing.groups.begin[m] && r < packing.groups.begin[m + 1];
            assert_int_equal(modality[seq[r]] == m, is_inside);
        }
        if (r > 0 && modality[seq[r]] == modality[seq[r - 1]]) assert_true(seq[r] > seq[r - 1]);
    }
    for (int b = 0; b < M2_BRANCHES; b++) {
        const int64_t begin = packing.segments[b], text = begin + 24 + 17;
        const int64_t special = text + two_images.text_len[b];
        assert_int_equal(seq[packing.video_begin[b]], begin);
        assert_int_equal(seq[packing.audio_begin[b]], begin + 24);
        assert_int_equal(seq[packing.text_begin[b]], text);
        assert_int_equal(seq[packing.special_begin[b]], special);
        assert_int_equal(seq[packing.patches_begin[b]], special + 1);
        assert_int_equal(seq[packing.special_begin[b] + 1], special + 7);
        assert_int_equal(seq[packing.patches_begin[b] + 6], special + 8);
    }
    free(seq);
    free(row);
    free(modality);
}

static void check_coords(const float *got, const float *wanted, const char *what)
{
    for (int i = 0; i < M2_COORDS; i++)
        if (got[i] != wanted[i])
            fail_msg("%s: coordinate %d is %g, must be %g", what, i, (double)got[i],
                     (double)wanted[i]);
}

/* One token of every kind, by hand.  Catches text that counts up from 0, an audio reference off by
 * one, a special token in the picture instead of beside it, and images not two frames after the
 * video. */
static void every_kind_of_token_stands_where_it_should(void **state)
{
    (void)state;
    m2_packing packing;
    check_ok(m2_packing_init(&packing, &two_images));
    float *coords = malloc((size_t)packing.n_tokens * M2_COORDS * sizeof *coords);
    m2_packing_coords(&packing, coords);
    check_coords(coords + 15 * 9, (float[]){ 1, 1, 3, 3, 2, 4, 3, 2, 4 }, "video");
    check_coords(coords + (24 + 9) * 9, (float[]){ 9, 0, 0, 17, 1, 1, 3, 1, 1 }, "audio");
    check_coords(coords + 41 * 9, (float[]){ -5, 0, 0, 5, 1, 1, 1, 1, 1 }, "first of text");
    check_coords(coords + 45 * 9, (float[]){ -1, 0, 0, 5, 1, 1, 1, 1, 1 }, "last of text");
    check_coords(coords + 46 * 9, (float[]){ 5, -1, -1, 1, 2, 3, 1, 2, 3 }, "special 1");
    check_coords(coords + 51 * 9, (float[]){ 5, 1, 1, 1, 2, 3, 1, 2, 3 }, "patch of 1");
    check_coords(coords + 53 * 9, (float[]){ 6, -1, -1, 1, 3, 1, 1, 3, 1 }, "special 2");
    check_coords(coords + 56 * 9, (float[]){ 6, 2, 0, 1, 3, 1, 1, 3, 1 }, "last patch of 2");
    const float *uncond = coords + packing.segments[1] * 9;
    check_coords(uncond + 41 * 9, (float[]){ -2, 0, 0, 2, 1, 1, 1, 1, 1 }, "text of branch 1");
    free(coords);

    m2_preview_shape released = {
        .frames = 32, .height = 17, .width = 30, .audio_len = 250, .text_len = { 100, 0 }
    };
    check_ok(m2_packing_init(&packing, &released));
    coords = malloc((size_t)packing.n_tokens * M2_COORDS * sizeof *coords);
    m2_packing_coords(&packing, coords);
    check_coords(coords + (32 * 17 * 30 + 8) * 9, (float[]){ 8, 0, 0, 250, 1, 1, 32, 1, 1 },
                 "audio of the release");
    assert_int_equal(packing.segments[2] - packing.segments[1], 32 * 17 * 30 + 250);
    free(coords);
}

/* Sizes come from a request: empty latents, negative texts and counts past 32 bits are refused. */
static void impossible_sizes_are_refused(void **state)
{
    (void)state;
    m2_packing packing;
    m2_preview_shape shape = two_images;
    shape.frames = 0;
    check_fails(m2_packing_init(&packing, &shape), M2_ERR_ARG, "must not be empty");
    shape = two_images;
    shape.text_len[1] = -1;
    check_fails(m2_packing_init(&packing, &shape), M2_ERR_ARG, "text lengths");
    shape = two_images;
    shape.n_images = M2_PREVIEW_IMAGES_MAX + 1;
    check_fails(m2_packing_init(&packing, &shape), M2_ERR_ARG, "images");
    shape = two_images;
    shape.image_width[1] = 0;
    check_fails(m2_packing_init(&packing, &shape), M2_ERR_ARG, "image 2");
    shape = two_images;
    shape.frames = shape.height = shape.width = INT64_MAX / 2;
    check_fails(m2_packing_init(&packing, &shape), M2_ERR_ARG, "tokens");
    shape = two_images;
    shape.text_len[0] = INT64_MAX;
    check_fails(m2_packing_init(&packing, &shape), M2_ERR_ARG, "tokens");
    shape = two_images;
    shape.frames = (int64_t)1 << 29; /* 2^32 tokens in two branches */
    check_fails(m2_packing_init(&packing, &shape), M2_ERR_ARG, "tokens");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_a_stable_sort_of_the_sequence),
        cmocka_unit_test(every_kind_of_token_stands_where_it_should),
        cmocka_unit_test(impossible_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
