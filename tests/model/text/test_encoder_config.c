/* config.json of the text encoder: both layouts, the release's numbers, and what must be refused. */
#include "support/check.h"

#include "model/text/encoder_config.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char flat_layout[] =
    "{\"hidden_size\": 96, \"intermediate_size\": 192, \"num_hidden_layers\": 8,"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32,"
    " \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-6, \"vocab_size\": 2048,"
    " \"attention_bias\": false, \"linear_conv_kernel_dim\": 4, \"linear_num_key_heads\": 2,"
    " \"linear_key_head_dim\": 32, \"linear_num_value_heads\": 4, \"linear_value_head_dim\": 16,"
    " \"full_attention_interval\": 4, \"rope_parameters\": {\"rope_type\": \"default\","
    " \"rope_theta\": 10000000.0, \"partial_rotary_factor\": 0.25}}";

static char *write_config(const char *dir, const json_t *root)
{
    char *path = malloc(strlen(dir) + 32);
    sprintf(path, "%s/config.json", dir);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    return path;
}

/* Load the flat layout with the fields of `change` (a JSON object; null removes) laid over it, at
 * the top or below "text_config". */
static m2_status load_changed(const char *change, int is_nested, m2_text_config *config)
{
    char *dir = m2_test_make_dir();
    json_t *root = json_loads(flat_layout, 0, NULL);
    json_t *changes = json_loads(change, JSON_DECODE_ANY, NULL);
    assert_non_null(root);
    assert_non_null(changes);
    const char *name;
    json_t *value;
    json_object_foreach(changes, name, value) json_object_set(root, name, value);
    if (is_nested) root = json_pack("{s:o, s:s}", "text_config", root, "model_type", "qwen3_5");
    char *path = write_config(dir, root);
    const m2_status status = m2_text_config_load(path, config);
    free(path);
    json_decref(root);
    json_decref(changes);
    m2_test_remove_tree(dir);
    return status;
}

/* Catches the top level taken for the sizes when they are below text_config, and the other way. */
static void both_layouts_give_the_same_sizes(void **state)
{
    (void)state;
    m2_text_config flat, nested;
    memset(&flat, 0, sizeof flat);
    memset(&nested, 0xff, sizeof nested);
    check_ok(load_changed("{}", 0, &flat));
    check_ok(load_changed("{}", 1, &nested));
    assert_memory_equal(&flat, &nested, sizeof flat);
    assert_int_equal(flat.n_layers, 8);
    assert_int_equal(flat.hidden_size, 96);
    assert_int_equal(flat.mlp_size, 192);
    assert_int_equal(flat.vocab_size, 2048);
    assert_int_equal(flat.n_heads, 4);
    assert_int_equal(flat.n_kv_heads, 2);
    assert_int_equal(flat.head_dim, 32);
    assert_int_equal(flat.n_rot, 4); /* pairs: 32 * 0.25 / 2 */
    assert_int_equal(flat.n_key_heads, 2);
    assert_int_equal(flat.key_dim, 32);
    assert_int_equal(flat.n_value_heads, 4);
    assert_int_equal(flat.value_dim, 16);
    assert_int_equal(flat.conv_kernel, 4);
    assert_true(flat.rope_theta == 1e7 && flat.rms_eps == 1e-6);
}

/* Catches an interval counted from the wrong layer, and layer_types that lose to the interval. */
static void layer_types_come_from_the_list_or_else_the_interval(void **state)
{
    (void)state;
    m2_text_config config;
    check_ok(load_changed("{\"full_attention_interval\": 3}", 0, &config));
    for (int i = 0; i < 8; i++) assert_int_equal(config.is_full[i], i == 2 || i == 5);
    check_ok(load_changed("{\"num_hidden_layers\": 3, \"layer_types\": [\"full_attention\","
                          " \"linear_attention\", \"full_attention\"]}",
                          0, &config));
    for (int i = 0; i < 3; i++) assert_int_equal(config.is_full[i], i != 1);
}

/* Older files keep these two beside the sizes. */
static void rope_numbers_may_stand_at_the_top(void **state)
{
    (void)state;
    m2_text_config config;
    check_ok(load_changed("{\"rope_parameters\": null, \"rope_theta\": 500.0,"
                          " \"partial_rotary_factor\": 0.5}",
                          0, &config));
    assert_true(config.rope_theta == 500.0);
    assert_int_equal(config.n_rot, 8);
}

/* The committed config of a model saved by the reference's library. */
static void a_saved_multimodal_config_loads(void **state)
{
    (void)state;
    m2_text_config config;
    check_ok(m2_text_config_load(m2_test_path("data/text/nested/config.json"), &config));
    assert_int_equal(config.hidden_size, 48);
    assert_int_equal(config.n_layers, 8);
    for (int i = 0; i < 8; i++) assert_int_equal(config.is_full[i], i % 4 == 3);
}

/* Each would silently give other features. */
static void other_maths_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *change, *part;
        m2_status status;
    } cases[] = {
        { "{\"hidden_act\": \"gelu\"}", "hidden_act", M2_ERR_UNSUPPORTED },
        { "{\"hidden_act\": 3}", "hidden_act", M2_ERR_UNSUPPORTED },
        { "{\"attention_bias\": true}", "attention_bias", M2_ERR_UNSUPPORTED },
        { "{\"attention_bias\": 1}", "attention_bias", M2_ERR_UNSUPPORTED },
        { "{\"mlp_bias\": true}", "mlp_bias", M2_ERR_UNSUPPORTED },
        { "{\"use_sliding_window\": true}", "use_sliding_window", M2_ERR_UNSUPPORTED },
        { "{\"num_experts\": 8}", "num_experts", M2_ERR_UNSUPPORTED },
        { "{\"rope_scaling\": {\"type\": \"yarn\"}}", "rope_scaling", M2_ERR_UNSUPPORTED },
        { "{\"attn_output_gate\": false}", "attn_output_gate", M2_ERR_UNSUPPORTED },
        { "{\"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 1,"
          " \"partial_rotary_factor\": 0.25}}",
          "yarn", M2_ERR_UNSUPPORTED },
        { "{\"num_hidden_layers\": 1, \"layer_types\": [\"mamba\"]}", "num_hidden_layers",
          M2_ERR_FORMAT },
        { "{\"num_hidden_layers\": 2, \"layer_types\": [\"mamba\", \"full_attention\"]}", "mamba",
          M2_ERR_UNSUPPORTED },
        { "{\"layer_types\": [\"full_attention\"]}", "layer_types", M2_ERR_FORMAT },
        { "{\"layer_types\": \"full_attention\"}", "layer_types", M2_ERR_FORMAT },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        m2_text_config config, before;
        memset(&config, 0x5a, sizeof config);
        before = config;
        check_fails(load_changed(cases[i].change, i % 2 == 0, &config), cases[i].status,
                    cases[i].part);
        assert_memory_equal(&config, &before, sizeof config); /* written on success alone */
    }
}

/* Sizes decide how much is allocated and what divides what. */
static void sizes_out_of_range_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *change, *part;
    } cases[] = {
        { "{\"hidden_size\": null}", "hidden_size" },
        { "{\"hidden_size\": 0}", "hidden_size" },
        { "{\"hidden_size\": -4}", "hidden_size" },
        { "{\"hidden_size\": 4096.0}", "hidden_size" },
        { "{\"hidden_size\": \"96\"}", "hidden_size" },
        { "{\"vocab_size\": 4294967297}", "vocab_size" },
        { "{\"head_dim\": 9223372036854775807}", "head_dim" },
        { "{\"num_hidden_layers\": 257}", "num_hidden_layers" },
        { "{\"num_key_value_heads\": 3}", "key/value heads" },
        { "{\"linear_num_key_heads\": 3}", "key heads" },
        { "{\"num_attention_heads\": 65536, \"num_key_value_heads\": 1, \"head_dim\": 65536}",
          "heads times their width" },
        { "{\"rms_norm_eps\": 0}", "rms_norm_eps" },
        { "{\"rms_norm_eps\": null}", "rms_norm_eps" },
        { "{\"rope_parameters\": {\"rope_theta\": 1e7, \"partial_rotary_factor\": 0.26}}",
          "partial_rotary_factor" },
        { "{\"rope_parameters\": {\"rope_theta\": 1e7, \"partial_rotary_factor\": 1.5}}",
          "partial_rotary_factor" },
        { "{\"rope_parameters\": {\"rope_theta\": 1e7}}", "partial_rotary_factor" },
        { "{\"rope_parameters\": {\"partial_rotary_factor\": 0.25}}", "rope_theta" },
        { "{\"rope_parameters\": []}", "rope_parameters" },
        { "{\"full_attention_interval\": null}", "full_attention_interval" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        m2_text_config config;
        check_fails(load_changed(cases[i].change, i % 2 == 0, &config), M2_ERR_FORMAT,
                    cases[i].part);
    }
    m2_text_config config;
    check_fails(m2_text_config_load("/nowhere/config.json", &config), M2_ERR_IO, "/nowhere");
}

/* Catches a built-in number that is not the release's. */
static void the_built_in_config_is_the_release(void **state)
{
    (void)state;
    m2_text_config config;
    m2_text_config_init(&config);
    int n_full = 0;
    for (int i = 0; i < config.n_layers; i++) n_full += config.is_full[i];
    assert_int_equal(config.n_layers, 64);
    assert_int_equal(n_full, 16);
    assert_true(config.is_full[3] && !config.is_full[0] && config.is_full[63]);
    assert_int_equal(config.head_dim * config.n_heads, 6144);
    assert_int_equal(2 * config.n_rot, 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_layouts_give_the_same_sizes),
        cmocka_unit_test(layer_types_come_from_the_list_or_else_the_interval),
        cmocka_unit_test(rope_numbers_may_stand_at_the_top),
        cmocka_unit_test(a_saved_multimodal_config_loads),
        cmocka_unit_test(other_maths_is_refused_by_name),
        cmocka_unit_test(sizes_out_of_range_are_refused_by_name),
        cmocka_unit_test(the_built_in_config_is_the_release),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
