/* Configs: the release's values, the files that override them, and every way they can be wrong. */
#include "support/check.h"
#include "support/files.h"

#include "io/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct test_env {
    char *dir, *file;
    m2_model_config config;
} test_env;

static int set_up(void **state)
{
    test_env *env = calloc(1, sizeof *env);
    env->dir = m2_test_make_dir();
    env->file = m2_test_join(env->dir, "magi2.json");
    m2_model_config_init(&env->config);
    *state = env;
    return 0;
}

static int tear_down(void **state)
{
    test_env *env = *state;
    m2_model_config_free(&env->config);
    m2_test_remove_tree(env->dir);
    free(env->file);
    free(env);
    return 0;
}

static m2_status load_text(test_env *env, const char *text)
{
    m2_test_write_file(env->file, text, strlen(text));
    return m2_model_config_load(&env->config, env->file);
}

/* Catches: the reference's code defaults (shift 5, audio guidance 5, no negative prompt) taken for
 * the released values. */
static void release_values_are_built_in(void **state)
{
    const test_env *env = *state;
    const m2_arch_config *arch = &env->config.arch;
    const m2_eval_config *eval = &env->config.eval;
    int n_mm = 0, n_moe = 0;
    for (int i = 0; i < M2_LAYERS_MAX; i++) {
        n_mm += arch->is_mm_layer[i];
        n_moe += arch->is_moe_layer[i];
    }
    assert_int_equal(n_mm, 4);
    assert_int_equal(n_moe, 36);
    assert_true(arch->is_mm_layer[39] && arch->is_moe_layer[2] && arch->is_moe_layer[37]);
    assert_int_equal(arch->moe_top_k, 6);
    assert_true(arch->moe_route_scale == 4.9);
    assert_true(eval->shift == 7.0);
    assert_true(eval->video_guidance == 5.0);
    assert_true(eval->audio_guidance == 7.0);
    assert_true(eval->use_negative_prompt && eval->use_ref_for_uncond && !eval->use_cfg_trick);
    assert_null(eval->negative_prompt);
    const m2_tier *tier = m2_model_config_tier(&env->config, "1080p");
    assert_int_equal(tier->width, 896);
    assert_int_equal(tier->height, 512);
    assert_true(tier->needs_refiner);
    assert_int_equal(m2_model_config_tier(&env->config, "272p")->width, 448);
    assert_null(m2_model_config_tier(&env->config, "720p"));
    assert_non_null(strstr(m2_last_error(), "272p, 540p, 1080p"));
}

/* Catches: a field bound to the wrong member, lists added to instead of replaced. */
static void demo_model_overrides_the_release(void **state)
{
    test_env *env = *state;
    check_ok(m2_model_config_load(&env->config, M2_DEMO_DIR "/magi2.json"));
    const m2_arch_config *arch = &env->config.arch;
    const m2_eval_config *eval = &env->config.eval;
    assert_int_equal(arch->num_layers, 6);
    assert_int_equal(arch->hidden_size, 192);
    assert_int_equal(arch->head_dim, 32);
    assert_int_equal(arch->num_query_groups, 3);
    assert_int_equal(arch->text_in_channels, 128);
    assert_true(arch->intermediate_factor == 1.0);
    static const unsigned char mm[] = { 1, 0, 0, 0, 0, 1, 0 }, moe[] = { 0, 1, 1, 1, 1, 0, 0 };
    assert_memory_equal(arch->is_mm_layer, mm, sizeof mm);
    assert_memory_equal(arch->is_moe_layer, moe, sizeof moe);
    assert_int_equal(arch->is_mm_layer[38], 0);
    assert_int_equal(arch->moe_num_experts, 16);
    assert_int_equal(arch->moe_top_k, 2);
    assert_int_equal(arch->moe_num_heads, 3);
    assert_true(arch->moe_route_scale == 2.0);
    assert_int_equal(arch->moe_expert_intermediate, 32);
    assert_int_equal(arch->moe_shared_intermediate, 64);
    assert_int_equal(arch->moe_modality_intermediate, 64);
    assert_true(eval->shift == 3.0 && eval->video_guidance == 3.0 && eval->audio_guidance == 3.0);
    assert_int_equal(eval->num_inference_steps, 30);
    assert_string_equal(eval->negative_prompt, "low quality, blurry, noise, distortion");
    assert_string_equal(env->config.default_tier, "demo");
    assert_int_equal(m2_model_config_tier(&env->config, "demo")->height, 64);
    assert_int_equal(m2_model_config_tier(&env->config, "540p")->height, 512);
}

/* The layout of the reference's own configs. */
static void reference_configs_load(void **state)
{
    static const struct {
        const char *path;
        int layers, hidden;
    } files[] = { { "data/fixtures/configs/dit_a.json", 4, 128 },
                  { "data/fixtures/configs/dit_b.json", 2, 256 },
                  { "data/dit/c/config.json", 2, 128 } };
    test_env *env = *state;
    for (int i = 0; i < 3; i++) {
        check_ok(m2_model_config_load(&env->config, m2_test_path(files[i].path)));
        assert_int_equal(env->config.arch.num_layers, files[i].layers);
        assert_int_equal(env->config.arch.hidden_size, files[i].hidden);
    }
}

/* Every field that has a number or switch of its own must arrive where it belongs. */
static void each_field_reaches_its_place(void **state)
{
    test_env *env = *state;
    check_ok(load_text(
        env,
        "{\"engine_config\":{\"seed\":9223372036854775807},"
        "\"arch_config\":{\"audio_in_channels\":65,\"video_in_channels\":49,"
        "\"attn_gating\":{\"enable\":false},"
        "\"attn_sinks\":{\"enable\":false,\"sink_token_num\":3},\"mhc_config\":{\"enable\":true}},"
        "\"evaluation_config\":{\"fps\":13,\"vae_stride\":[4,8,32],\"z_dim\":49,"
        "\"use_cfg_trick\":true,\"cfg_trick_start_frame\":14,\"cfg_trick_value\":2.5,"
        "\"use_dynamic_cfg\":true,\"dynamic_cfg_start_t\":501,\"dynamic_cfg_cutoff_value\":2.25,"
        "\"use_negative_prompt\":false,\"use_ref_for_uncond\":false,\"use_skimmed_cfg_linear\":"
        "true,"
        "\"skimmed_cfg_scale\":3.5,\"cfg_rescale\":0.5,"
        "\"data_proxy_config\":{\"time_channel_dim\":66,\"audio_latent_fps\":26}}}"));
    const m2_arch_config *arch = &env->config.arch;
    const m2_eval_config *eval = &env->config.eval;
    assert_true(env->config.seed == INT64_MAX);
    assert_int_equal(arch->audio_in_channels, 65);
    assert_int_equal(arch->video_in_channels, 49);
    assert_true(!arch->attn_gating && !arch->attn_sinks);
    assert_int_equal(arch->sink_token_num, 3);
    assert_true(eval->fps == 13.0);
    assert_int_equal(eval->vae_stride[0], 4);
    assert_int_equal(eval->vae_stride[1], 8);
    assert_int_equal(eval->vae_stride[2], 32);
    assert_int_equal(eval->z_dim, 49);
    assert_true(eval->use_cfg_trick && eval->use_dynamic_cfg && eval->use_skimmed_cfg);
    assert_int_equal(eval->cfg_trick_start_frame, 14);
    assert_true(eval->cfg_trick_value == 2.5);
    assert_int_equal(eval->dynamic_cfg_start_t, 501);
    assert_true(eval->dynamic_cfg_cutoff == 2.25);
    assert_true(!eval->use_negative_prompt && !eval->use_ref_for_uncond);
    assert_true(eval->skimmed_cfg_scale == 3.5);
    assert_true(eval->cfg_rescale == 0.5);
    assert_int_equal(eval->time_channel_dim, 66);
    assert_true(eval->audio_latent_fps == 26.0);
}

/* Each is refused with the file and the field; the config must stay as it was. */
static void wrong_values_are_refused_by_field(void **state)
{
    test_env *env = *state;
    static const struct {
        m2_status status;
        const char *text, *part;
    } cases[] = {
        { M2_ERR_FORMAT, "{\"arch_config\":{\"num_layer\":3}}",
          "arch_config.num_layer is no field" },
        { M2_ERR_FORMAT, "{\"arch\":{}}", "magi2.json: arch is no field" },
        { M2_ERR_FORMAT, "{\"arch_config\":{\"moe_config\":{\"topk\":3}}}",
          "moe_config.topk is no" },
        { M2_ERR_FORMAT, "{\"arch_config\":[]}", "arch_config must be an object, it is an array" },
        { M2_ERR_FORMAT, "{\"arch_config\":{\"num_layers\":\"4\"}}",
          "num_layers must be an integer" },
        { M2_ERR_FORMAT, "{\"arch_config\":{\"num_layers\":4.0}}",
          "it is a number with a fraction" },
        { M2_ERR_FORMAT, "{\"arch_config\":{\"num_layers\":true}}", "it is true or false" },
        { M2_ERR_FORMAT, "{\"arch_config\":{\"num_layers\":null}}", "it is null" },
        { M2_ERR_FORMAT, "{\"arch_config\":{\"num_layers\":0}}",
          "num_layers is 0, it must be from 1" },
        { M2_ERR_FORMAT, "{\"arch_config\":{\"num_layers\":257}}", "from 1 to 256" },
        { M2_ERR_FORMAT, "{\"arch_config\":{\"hidden_size\":-1}}", "hidden_size is -1" },
        { M2_ERR_FORMAT, "{\"arch_config\":{\"hidden_size\":4294968320}}",
          "hidden_size is 4294968320" },
        { M2_ERR_FORMAT, "{\"arch_config\":{\"num_layers\":4}}", "moe_layers names layer 4," },
        { M2_ERR_FORMAT, "{\"arch_config\":{\"mm_layers\":[40]}}", "mm_layers names layer 40" },
        { M2_ERR_FORMAT, "{\"arch_config\":{\"mm_layers\":[1,1]}}", "names layer 1 twice" },
        { M2_ERR_FORMAT, "{\"arch_config\":{\"mm_layers\":[-1]}}", "mm_layers is -1" },
        { M2_ERR_FORMAT, "{\"arch_config\":{\"mm_layers\":[256]}}", "mm_layers is 256" },
        { M2_ERR_FORMAT, "{\"arch_config\":{\"mm_layers\":3}}", "array of layer numbers" },
        { M2_ERR_FORMAT, "{\"arch_config\":{\"moe_config\":{\"moe_layers\":[99]}}}",
          "moe_config.moe_layers names layer 99" },
        { M2_ERR_FORMAT, "{\"arch_config\":{\"hidden_size\":3080}}",
          "head_dim 128 does not divide" },
        { M2_ERR_FORMAT, "{\"arch_config\":{\"head_dim\":12}}", "multiple of 8" },
        { M2_ERR_FORMAT, "{\"arch_config\":{\"num_query_groups\":5}}", "does not divide the 24" },
        { M2_ERR_FORMAT, "{\"arch_config\":{\"moe_config\":{\"num_heads\":5}}}",
          "num_heads 5 does not" },
        { M2_ERR_FORMAT, "{\"arch_config\":{\"moe_config\":{\"top_k\":257}}}",
          "top_k 257 is more" },
        { M2_ERR_FORMAT, "{\"arch_config\":{\"intermediate_factor\":0.01}}", "leaves no width" },
        { M2_ERR_FORMAT, "{\"evaluation_config\":{\"z_dim\":16}}", "z_dim is 16" },
        { M2_ERR_FORMAT, "{\"evaluation_config\":{\"shift\":0}}", "shift is 0" },
        { M2_ERR_FORMAT, "{\"evaluation_config\":{\"shift\":\"7\"}}", "shift must be a number" },
        { M2_ERR_FORMAT, "{\"evaluation_config\":{\"fps\":-12.5}}", "fps is -12.5" },
        { M2_ERR_FORMAT, "{\"evaluation_config\":{\"cfg_rescale\":1.5}}", "cfg_rescale is 1.5" },
        { M2_ERR_FORMAT, "{\"evaluation_config\":{\"use_cfg_trick\":1}}", "must be true or false" },
        { M2_ERR_FORMAT, "{\"evaluation_config\":{\"vae_stride\":[8,16]}}",
          "array of three integers" },
        { M2_ERR_FORMAT, "{\"evaluation_config\":{\"vae_stride\":[8,16,0]}}", "vae_stride is 0" },
        { M2_ERR_FORMAT, "{\"evaluation_config\":{\"negative_prompt\":1}}", "must be text" },
        { M2_ERR_FORMAT, "{\"evaluation_config\":{\"num_inference_steps\":0}}", "steps is 0" },
        { M2_ERR_FORMAT,
          "{\"evaluation_config\":{\"data_proxy_config\":{\"time_channel_dim\":63}}}",
          "time_channel_dim is 63, it must be even" },
        { M2_ERR_FORMAT, "{\"engine_config\":{\"seed\":-1}}", "seed is -1" },
        { M2_ERR_FORMAT, "{\"engine_config\":{\"seed\":9223372036854775808}}", "not JSON" },
        { M2_ERR_UNSUPPORTED, "{\"arch_config\":{\"activation_type\":\"gelu\"}}",
          "activation_type is \"gelu\", only \"swiglu7\"" },
        { M2_ERR_UNSUPPORTED, "{\"arch_config\":{\"params_dtype\":\"float16\"}}", "params_dtype" },
        { M2_ERR_UNSUPPORTED, "{\"arch_config\":{\"attn_softcap\":50.0}}", "attn_softcap is 50" },
        { M2_ERR_UNSUPPORTED, "{\"arch_config\":{\"mhc_config\":{\"enable\":false}}}",
          "mhc_config.enable" },
        { M2_ERR_UNSUPPORTED, "{\"arch_config\":{\"mhc_config\":{\"num_stream\":2}}}",
          "num_stream is 2" },
        { M2_ERR_UNSUPPORTED, "{\"arch_config\":{\"moe_config\":{\"score_func\":\"softmax\"}}}",
          "moe_config.score_func" },
        { M2_ERR_UNSUPPORTED, "{\"arch_config\":{\"moe_config\":{\"route_norm\":false}}}",
          "route_norm" },
        { M2_ERR_UNSUPPORTED, "{\"evaluation_config\":{\"patch_size\":[1,2,2]}}",
          "patch_size is [1,2,2]" },
        { M2_ERR_UNSUPPORTED, "{\"evaluation_config\":{\"ref_image_type\":\"none\"}}",
          "ref_image_type" },
        { M2_ERR_UNSUPPORTED, "{\"evaluation_config\":{\"use_turbo_vae\":false}}",
          "use_turbo_vae" },
        { M2_ERR_UNSUPPORTED,
          "{\"evaluation_config\":{\"data_proxy_config\":{\"add_time_token\":true}}}",
          "add_time_token" },
        { M2_ERR_UNSUPPORTED,
          "{\"evaluation_config\":{\"data_proxy_config\":{\"spatial_rope_interpolation\":\"inter\"}"
          "}}",
          "data_proxy_config.spatial_rope_interpolation" },
        { M2_ERR_FORMAT, "{\"tiers\":[]}", "tiers must be an object" },
        { M2_ERR_FORMAT, "{\"tiers\":{\"x\":3}}", "tiers.x must be an object" },
        { M2_ERR_FORMAT, "{\"tiers\":{\"x\":{\"width\":96}}}", "both needed" },
        { M2_ERR_FORMAT, "{\"tiers\":{\"x\":{\"width\":96,\"height\":72}}}", "multiples of 16" },
        { M2_ERR_FORMAT, "{\"tiers\":{\"x\":{\"width\":96,\"height\":0}}}", "height is 0" },
        { M2_ERR_FORMAT, "{\"tiers\":{\"x\":{\"width\":96,\"height\":64,\"fps\":3}}}",
          "tiers.x.fps is no" },
        { M2_ERR_FORMAT, "{\"tiers\":{\"\":{\"width\":96,\"height\":64}}}", "a tier's name" },
        { M2_ERR_FORMAT, "{\"tiers\":{\"a b\":{\"width\":96,\"height\":64}}}", "a tier's name" },
        { M2_ERR_FORMAT, "{\"default_tier\":\"4k\"}", "default_tier is '4k', the tiers are 272p" },
        { M2_ERR_FORMAT, "{\"default_tier\":4}", "default_tier must be text" },
        { M2_ERR_FORMAT, "{\"seed\":1,\"seed\":2}", "not JSON" },
        { M2_ERR_FORMAT, "[]", "must be a JSON object" },
        { M2_ERR_FORMAT, "{", "not JSON" },
        { M2_ERR_FORMAT, "", "not JSON" },
    };
    check_ok(load_text(env, "{\"evaluation_config\":{\"negative_prompt\":\"kept\"}}"));
    const m2_model_config before = env->config;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_fails(load_text(env, cases[i].text), cases[i].status, cases[i].part);
        if (!strstr(m2_last_error(), env->file)) fail_msg("no file name: %s", m2_last_error());
        assert_memory_equal(&before, &env->config, sizeof before);
    }
    assert_string_equal(env->config.eval.negative_prompt, "kept");
}

/* A fault behind a field that was taken must not leak or half-apply (the sanitizers see leaks). */
static void failing_file_leaves_the_config_unchanged(void **state)
{
    test_env *env = *state;
    check_fails(load_text(env, "{\"evaluation_config\":{\"negative_prompt\":\"gone\",\"shift\":1},"
                               "\"engine_config\":{\"seed\":-1}}"),
                M2_ERR_FORMAT, "seed");
    assert_null(env->config.eval.negative_prompt);
    assert_true(env->config.eval.shift == 7.0);
    check_fails(m2_model_config_load(&env->config, "/nonexistent/magi2.json"), M2_ERR_IO,
                "/nonexistent/magi2.json");
}

/* At most 16 tiers; one of a known name is replaced. */
static void tiers_are_added_and_replaced(void **state)
{
    test_env *env = *state;
    char text[2000];
    size_t used = (size_t)snprintf(text, sizeof text, "{\"tiers\":{");
    for (int i = 0; i < 13; i++)
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "\"t%d\":{\"width\":%d,\"height\":16},", i, 16 * (i + 1));
    snprintf(text + used, sizeof text - used,
             "\"540p\":{\"width\":32,\"height\":48,\"needs_refiner\":true}}}");
    check_ok(load_text(env, text));
    assert_int_equal(env->config.n_tiers, 16);
    assert_int_equal(m2_model_config_tier(&env->config, "t12")->width, 208);
    assert_int_equal(m2_model_config_tier(&env->config, "540p")->height, 48);
    assert_true(m2_model_config_tier(&env->config, "540p")->needs_refiner);
    check_fails(load_text(env, "{\"tiers\":{\"more\":{\"width\":16,\"height\":16}}}"),
                M2_ERR_FORMAT, "more than 16 tiers");
}

/* Catches an open that waits for ever for who writes to a pipe. */
static void a_pipe_is_refused_at_once(void **state)
{
    test_env *env = *state;
    assert_int_equal(mkfifo(env->file, 0600), 0);
    check_fails(m2_model_config_load(&env->config, env->file), M2_ERR_FORMAT, "is a pipe");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(release_values_are_built_in, set_up, tear_down),
        cmocka_unit_test_setup_teardown(demo_model_overrides_the_release, set_up, tear_down),
        cmocka_unit_test_setup_teardown(reference_configs_load, set_up, tear_down),
        cmocka_unit_test_setup_teardown(each_field_reaches_its_place, set_up, tear_down),
        cmocka_unit_test_setup_teardown(wrong_values_are_refused_by_field, set_up, tear_down),
        cmocka_unit_test_setup_teardown(failing_file_leaves_the_config_unchanged, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(tiers_are_added_and_replaced, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_pipe_is_refused_at_once, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
