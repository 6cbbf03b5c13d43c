/* The config of a TurboVAED decoder: read in the decoder's order, strict, by name. */
#include "support/check.h"
#include "support/files.h"
#include "support/tensor_list.h"

#include "model/vae/turbo.h"
#include "release_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Write the release's config with `from` replaced by `to`, and load it. */
static m2_status load_changed(const char *from, const char *to, m2_turbo_config *config)
{
    char *dir = m2_test_make_dir();
    char *path = m2_test_join(dir, "config.json");
    char text[4096];
    const char *at = strstr(turbo_release_config, from);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - turbo_release_config), turbo_release_config,
             to, at + strlen(from));
    m2_test_write_file(path, text, strlen(text));
    const m2_status status = m2_turbo_config_load(path, config);
    m2_test_remove_tree(dir);
    free(path);
    return status;
}

/* Lists are written from the picture to the latent and read the other way round, the longer ones
 * starting with the mid block.  Catches a list that was not reversed or shifted by one. */
static void lists_are_reversed(void **state)
{
    (void)state;
    m2_turbo_config config;
    check_ok(load_changed("[2, 2, 2, 3, 3]", "[1, 2, 3, 4, 5]", &config));
    assert_int_equal(config.n_blocks, 4);
    static const int channels[] = { 512, 256, 128, 64 }, upsamplers[] = { 1, 1, 1, 0 };
    static const int spatial[] = { 0, 0, 1, 0 };
    for (int b = 0; b < 4; b++) {
        assert_int_equal(config.channels[b], channels[b]);
        assert_int_equal(config.has_upsampler[b], upsamplers[b]);
        assert_int_equal(config.is_spatial_only[b], spatial[b]);
    }
    for (int b = 0; b <= 4; b++) assert_int_equal(config.n_resnets[b], 5 - b);
    assert_int_equal(config.spatial_ratio, 16);
    assert_int_equal(config.temporal_ratio, 4);
    assert_int_equal(config.has_shuffle_head, 0);
    assert_true(config.shortcut_eps == 1e-6f);
}

/* Every value that would need other maths is refused by its name, and nothing is written. */
static void values_not_implemented_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        m2_status status;
        const char *part;
    } cases[] = {
        { "\"latent_channels\": 48", "\"latent_channels\": 16", M2_ERR_UNSUPPORTED,
          "latent_channels" },
        { "\"out_channels\": 3", "\"out_channels\": 4", M2_ERR_UNSUPPORTED, "out_channels" },
        { "\"patch_size\": 2", "\"patch_size\": 4", M2_ERR_UNSUPPORTED, "patch_size" },
        { "\"patch_size_t\": 1", "\"patch_size_t\": 2", M2_ERR_UNSUPPORTED, "patch_size_t" },
        { "\"scaling_factor\": 1.0", "\"scaling_factor\": 0.5", M2_ERR_UNSUPPORTED,
          "scaling_factor" },
        { "\"decoder_causal\": false", "\"decoder_causal\": true", M2_ERR_UNSUPPORTED,
          "decoder_causal" },
        { "\"in_channels\": 3", "\"decoder_inject_noise\": [false, true]", M2_ERR_UNSUPPORTED,
          "decoder_inject_noise" },
        { "\"spatial_compression_ratio\": 16", "\"spatial_compression_ratio\": 8",
          M2_ERR_UNSUPPORTED, "upsamplers make 16 and 4" },
        { "\"temporal_compression_ratio\": 4", "\"temporal_compression_ratio\": 8",
          M2_ERR_UNSUPPORTED, "upsamplers make" },
        { "\"resnet_norm_eps\": 1e-06,", "", M2_ERR_FORMAT, "resnet_norm_eps" },
        { "\"resnet_norm_eps\": 1e-06", "\"resnet_norm_eps\": -1", M2_ERR_FORMAT,
          "resnet_norm_eps" },
        { "\"use_unpatchify\": true", "\"use_unpatchify\": 1", M2_ERR_FORMAT, "use_unpatchify" },
        { "[64, 128, 256, 512]", "[]", M2_ERR_FORMAT, "decoder_block_out_channels" },
        { "[64, 128, 256, 512]", "[64, 128, 0, 512]", M2_ERR_FORMAT, "decoder_block_out_channels" },
        { "[64, 128, 256, 512]", "[64, 128, 2.5, 512]", M2_ERR_FORMAT,
          "decoder_block_out_channels" },
        { "[2, 2, 2, 3, 3]", "[2, 2, 2, 3]", M2_ERR_FORMAT, "decoder_layers_per_block" },
        { "[false, true, true, true]", "[false, 1, true, true]", M2_ERR_FORMAT,
          "decoder_spatio_temporal_scaling" },
        { "\"first_chunk_size\": 7", "\"first_chunk_size\": 0", M2_ERR_FORMAT, "first_chunk_size" },
        { "\"step_size\": 7", "\"step_size\": \"7\"", M2_ERR_FORMAT, "step_size" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        m2_turbo_config config = { .n_blocks = -7 };
        check_fails(load_changed(cases[i].from, cases[i].to, &config), cases[i].status,
                    cases[i].part);
        assert_int_equal(config.n_blocks, -7);
    }
}

/* Files of a training run name other parts' settings too; those do not concern the decoder. */
static void settings_of_other_parts_are_ignored(void **state)
{
    (void)state;
    m2_turbo_config config;
    check_ok(load_changed("\"in_channels\": 3",
                          "\"encoder_layers_per_block\": [1], \"distill_weight\": 0.5, "
                          "\"decoder_inject_noise\": [false, false]",
                          &config));
    check_ok(load_changed("\"scaling_factor\": 1.0,", "", &config));
}

/* What is built in is what the released file says; measuring without a file stands on it. */
static void the_built_in_config_is_that_of_the_file(void **state)
{
    (void)state;
    m2_turbo_config read, own;
    check_ok(load_changed("48", "48", &read));
    m2_turbo_config_init(&own);
    assert_int_equal(own.n_blocks, read.n_blocks);
    assert_memory_equal(own.channels, read.channels, sizeof read.channels);
    assert_memory_equal(own.has_upsampler, read.has_upsampler, sizeof read.has_upsampler);
    assert_memory_equal(own.is_spatial_only, read.is_spatial_only, sizeof read.is_spatial_only);
    assert_memory_equal(own.n_resnets, read.n_resnets, sizeof read.n_resnets);
    assert_memory_equal(own.is_depthwise, read.is_depthwise, sizeof read.is_depthwise);
    assert_int_equal(own.depthwise_kernel, read.depthwise_kernel);
    assert_int_equal(own.has_shuffle_head, read.has_shuffle_head);
    assert_true(own.shortcut_eps == read.shortcut_eps);
    assert_int_equal(own.first_chunk, read.first_chunk);
    assert_int_equal(own.step, read.step);
    assert_int_equal(own.spatial_ratio, read.spatial_ratio);
    assert_int_equal(own.temporal_ratio, read.temporal_ratio);
}

static void tables_at_the_release_sizes_equal_the_list(void **state)
{
    (void)state;
    m2_turbo_config config;
    check_ok(load_changed("48", "48", &config));
    tensor_list *list = calloc(1, sizeof *list);
    assert_non_null(list);
    check_ok(m2_turbo_describe(&config, tensor_list_add, list));
    tensor_list_check(list, m2_test_path("data/fixtures/tensors/turbo_vae.tsv"));
    free(list);
}

/* ---- windows ---- */

/* The figures of the reference for 7/7: {latents, windows, frames of the last one}. */
static void released_windows_have_the_known_sizes(void **state)
{
    (void)state;
    static const int64_t known[][4] = { /* latents, windows, latents and frames of the last */
                                        { 1, 1, 7, 1 },   { 7, 1, 7, 25 },  { 8, 2, 8, 4 },
                                        { 13, 2, 8, 24 }, { 14, 2, 8, 28 }, { 15, 3, 8, 4 },
                                        { 32, 5, 8, 16 }, { 63, 9, 8, 28 }
    };
    m2_turbo_config config;
    check_ok(load_changed("48", "48", &config));
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const int64_t n = known[i][0], n_windows = m2_turbo_n_windows(&config, n);
        assert_int_equal(n_windows, known[i][1]);
        const m2_turbo_window last = m2_turbo_window_at(&config, n, n_windows - 1);
        assert_int_equal(last.n_latents, known[i][2]);
        assert_int_equal(last.n_frames, known[i][3]);
    }
    const m2_turbo_window first = m2_turbo_window_at(&config, 32, 0);
    assert_int_equal(first.n_latents, 8);
    assert_int_equal(first.n_frames, 25);
    const m2_turbo_window second = m2_turbo_window_at(&config, 32, 1);
    assert_int_equal(second.latent_begin, 6);
    assert_int_equal(second.n_latents, 9);
    assert_int_equal(second.n_drop, 4);
    assert_int_equal(second.first_frame, 25);
    assert_int_equal(second.n_frames, 28);
    assert_int_equal(m2_turbo_n_frames(&config, 32), 125);
    assert_int_equal(m2_turbo_n_frames(&config, 63), 249);
}

/* For any sizes of chunks the kept frames tile the clip, and every kept frame has its latent, and
 * the neighbours of its latent, inside the window (but at the clip's ends). */
static void kept_frames_tile_any_clip(void **state)
{
    (void)state;
    m2_turbo_config config = { .temporal_ratio = 4 };
    for (config.first_chunk = 1; config.first_chunk <= 5; config.first_chunk++) {
        for (config.step = 1; config.step <= 5; config.step++) {
            for (int64_t n = 1; n <= 24; n++) {
                int64_t next = 0;
                const int64_t n_windows = m2_turbo_n_windows(&config, n);
                for (int64_t i = 0; i < n_windows; i++) {
                    const m2_turbo_window w = m2_turbo_window_at(&config, n, i);
                    const int64_t made = 4 * w.n_latents - (w.is_first ? 3 : 0);
                    assert_int_equal(w.is_first, i == 0);
                    assert_int_equal(w.first_frame, next);
                    assert_true(w.n_frames >= 1 && w.n_drop + w.n_frames <= made);
                    /* Frame 0 is latent 0's, frames 4 l - 3 ... 4 l are latent l's. */
                    const int64_t first_latent = (w.first_frame + 3) / 4;
                    const int64_t last_latent = (w.first_frame + w.n_frames + 2) / 4;
                    assert_true(i == 0 || first_latent - 1 >= w.latent_begin);
                    assert_true(i == n_windows - 1 ||
                                last_latent + 1 < w.latent_begin + w.n_latents);
                    next += w.n_frames;
                }
                assert_int_equal(next, 4 * n - 3);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_reversed),
        cmocka_unit_test(values_not_implemented_are_refused_by_name),
        cmocka_unit_test(settings_of_other_parts_are_ignored),
        cmocka_unit_test(the_built_in_config_is_that_of_the_file),
        cmocka_unit_test(tables_at_the_release_sizes_equal_the_list),
        cmocka_unit_test(released_windows_have_the_known_sizes),
        cmocka_unit_test(kept_frames_tile_any_clip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
