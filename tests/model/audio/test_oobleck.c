/* The sound decoder: config, tables, recorded waves, folding of weight norm, plans, stops. */
#include "support/check.h"
#include "support/files.h"
#include "support/tensor_list.h"

#include "backend/cpu/cpu.h"
#include "model/audio/oobleck.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char release_config[] =
    "{\"model_type\": \"diffusion_cond\", \"sample_rate\": 44100, \"model\": {\n"
    " \"pretransform\": {\"type\": \"autoencoder\", \"iterate_batch\": true, \"config\": {\n"
    "  \"encoder\": {\"type\": \"oobleck\", \"config\": {\"use_snake\": true}},\n"
    "  \"decoder\": {\"type\": \"oobleck\", \"config\": {\"out_channels\": 2, \"channels\": 128,\n"
    "   \"c_mults\": [1, 2, 4, 8, 16], \"strides\": [2, 4, 4, 8, 8], \"latent_dim\": 64,\n"
    "   \"use_snake\": true, \"final_tanh\": false}},\n"
    "  \"bottleneck\": {\"type\": \"vae\"}, \"latent_dim\": 64,\n"
    "  \"downsampling_ratio\": 2048, \"io_channels\": 2}}}}\n";

static m2_status load_changed(const char *from, const char *to, m2_oobleck_config *config)
{
    char *dir = m2_test_make_dir();
    char *path = m2_test_join(dir, "model_config.json");
    char text[4096];
    const char *at = strstr(release_config, from);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - release_config), release_config, to,
             at + strlen(from));
    m2_test_write_file(path, text, strlen(text));
    const m2_status status = m2_oobleck_config_load(path, config);
    m2_test_remove_tree(dir);
    free(path);
    return status;
}

/* Blocks are listed from the sound to the latent, channels as multiples; the lowest multiple is an
 * implied 1.  Catches lists that were not reversed, or the last block halving its channels. */
static void blocks_run_from_the_latent_to_the_sound(void **state)
{
    (void)state;
    m2_oobleck_config config;
    check_ok(load_changed("64", "64", &config));
    static const int c_in[] = { 2048, 1024, 512, 256, 128 }, c_out[] = { 1024, 512, 256, 128, 128 };
    static const int strides[] = { 8, 8, 4, 4, 2 };
    assert_int_equal(config.n_blocks, 5);
    for (int b = 0; b < 5; b++) {
        assert_int_equal(config.c_in[b], c_in[b]);
        assert_int_equal(config.c_out[b], c_out[b]);
        assert_int_equal(config.strides[b], strides[b]);
    }
    assert_int_equal(m2_oobleck_n_samples(&config, 250), 512000);
}

static void values_not_implemented_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        m2_status status;
        const char *part;
    } cases[] = {
        { "\"decoder\": {\"type\": \"oobleck\"", "\"decoder\": {\"type\": \"dac\"",
          M2_ERR_UNSUPPORTED, "'dac'" },
        { "\"type\": \"autoencoder\"", "\"type\": \"autoencoder\", \"scale\": 2.0",
          M2_ERR_UNSUPPORTED, "scale" },
        { "\"type\": \"vae\"", "\"type\": \"rvq\"", M2_ERR_UNSUPPORTED, "bottleneck" },
        { "\"out_channels\": 2", "\"out_channels\": 1", M2_ERR_UNSUPPORTED, "out_channels" },
        { "\"final_tanh\": false", "\"final_tanh\": false, \"antialias_activation\": true",
          M2_ERR_UNSUPPORTED, "antialias_activation" },
        { "\"downsampling_ratio\": 2048", "\"downsampling_ratio\": 1024", M2_ERR_UNSUPPORTED,
          "downsampling_ratio" },
        { "\"io_channels\": 2", "\"io_channels\": 1", M2_ERR_UNSUPPORTED, "sound channels" },
        { "\"latent_dim\": 64,\n  \"down", "\"latent_dim\": 32,\n  \"down", M2_ERR_UNSUPPORTED,
          "32 latent" },
        { "[1, 2, 4, 8, 16]", "[1, 2, 4, 8]", M2_ERR_FORMAT, "c_mults" },
        { "[1, 2, 4, 8, 16]", "[1, 2, 4, 8, -16]", M2_ERR_FORMAT, "c_mults" },
        { "[2, 4, 4, 8, 8]", "[2, 4, 4, 8, 0]", M2_ERR_FORMAT, "strides" },
        { "\"channels\": 128,", "", M2_ERR_FORMAT, "channels" },
        { "\"use_snake\": true, ", "\"use_snake\": 1, ", M2_ERR_FORMAT, "use_snake" },
        { "\"decoder\"", "\"dekoder\"", M2_ERR_FORMAT, "decoder" },
        { "{\"type\": \"vae\"}", "[]", M2_ERR_FORMAT, "bottleneck" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        m2_oobleck_config config = { .n_blocks = -7 };
        check_fails(load_changed(cases[i].from, cases[i].to, &config), cases[i].status,
                    cases[i].part);
        assert_int_equal(config.n_blocks, -7);
    }
}

/* What is built in is what the released file says; measuring without a file stands on it. */
static void the_built_in_config_is_that_of_the_file(void **state)
{
    (void)state;
    m2_oobleck_config read, own;
    check_ok(load_changed("64", "64", &read));
    m2_oobleck_config_init(&own);
    assert_int_equal(own.latent_dim, read.latent_dim);
    assert_int_equal(own.n_blocks, read.n_blocks);
    assert_memory_equal(own.c_in, read.c_in, sizeof read.c_in);
    assert_memory_equal(own.c_out, read.c_out, sizeof read.c_out);
    assert_memory_equal(own.strides, read.strides, sizeof read.strides);
    assert_int_equal(own.use_snake, read.use_snake);
    assert_int_equal(own.use_nearest_upsample, read.use_nearest_upsample);
    assert_int_equal(own.final_tanh, read.final_tanh);
    assert_int_equal(own.soft_clip, read.soft_clip);
}

static void tables_at_the_release_sizes_equal_the_list(void **state)
{
    (void)state;
    m2_oobleck_config config;
    check_ok(load_changed("64", "64", &config));
    tensor_list *list = calloc(1, sizeof *list);
    assert_non_null(list);
    check_ok(m2_oobleck_describe(&config, tensor_list_add, list));
    tensor_list_check(list, m2_test_path("data/fixtures/tensors/audio.tsv"));
    free(list);
}

/* ---- the network ---- */

typedef struct test_env {
    m2_arena weights, step;
    m2_ops ops;
} test_env;

static int set_up(void **state)
{
    test_env *env = calloc(1, sizeof *env);
    check_ok(m2_arena_create(&env->weights, "weights", (size_t)64 << 20));
    check_ok(m2_arena_create(&env->step, "step", (size_t)256 << 20));
    check_ok(m2_ops_init_cpu(&env->ops, NULL, M2_ISA_BEST));
    *state = env;
    return 0;
}

static int tear_down(void **state)
{
    test_env *env = *state;
    m2_arena_destroy(&env->weights);
    m2_arena_destroy(&env->step);
    free(env);
    return 0;
}

static m2_status open_network(test_env *env, const char *path, const m2_oobleck_config *config,
                              m2_oobleck **oobleck_out)
{
    m2_checkpoint *checkpoint = NULL;
    m2_arena_reset(&env->weights);
    m2_arena_reset(&env->step);
    M2_TRY(m2_checkpoint_open(path, &checkpoint));
    const m2_status status =
        m2_oobleck_create(config, checkpoint, &env->ops, &env->weights, oobleck_out);
    m2_checkpoint_close(checkpoint);
    return status;
}

static m2_oobleck *recorded_network(test_env *env, const char *folder, m2_oobleck_config *config)
{
    char path[700];
    m2_oobleck *oobleck = NULL;
    snprintf(path, sizeof path, "%s/model_config.json", folder);
    check_ok(m2_oobleck_config_load(path, config));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    check_ok(open_network(env, path, config, &oobleck));
    return oobleck;
}

/* Snakes with transposed convolutions, and ELU with repeats and two tanh, against f64. */
static void recorded_waves_meet_the_error_rule(void **state)
{
    test_env *env = *state;
    static const char *const cases[][2] = { { "short_strides", "L1" },
                                            { "short_strides", "L10" },
                                            { "short_strides", "L250" },
                                            { "elu_tanh_nearest", "L1" },
                                            { "elu_tanh_nearest", "L7" } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char folder[512], path[700], name[64];
        m2_oobleck_config config;
        m2_checkpoint *file = NULL;
        snprintf(name, sizeof name, "data/audio/%s", cases[i][0]);
        snprintf(folder, sizeof folder, "%s", m2_test_path(name));
        m2_oobleck *oobleck = recorded_network(env, folder, &config);
        snprintf(path, sizeof path, "%s/decode.safetensors", folder);
        check_ok(m2_checkpoint_open(path, &file));
        snprintf(name, sizeof name, "%s.latent", cases[i][1]);
        const m2_ckpt_tensor *from = m2_checkpoint_find(file, name);
        m2_tensor latent = m2_tensor_new(&env->step, M2_F32, 2, from->shape);
        m2_checkpoint_read(from, M2_F32, latent.data);
        snprintf(name, sizeof name, "%s.wave.truth", cases[i][1]);
        const m2_ckpt_tensor *truth = m2_checkpoint_find(file, name);
        const int64_t n = truth->shape[2];
        float *expected = malloc((size_t)n * 2 * sizeof *expected);
        float *ours = malloc((size_t)n * 2 * sizeof *ours);
        assert_true(expected && ours);
        m2_checkpoint_read(truth, M2_F32, expected);
        m2_tensor wave;
        check_ok(m2_oobleck_decode(oobleck, &env->ops, &env->step, &latent, NULL, NULL, &wave));
        assert_int_equal(wave.shape[0], n);
        assert_int_equal(n, m2_oobleck_n_samples(&config, latent.shape[0]));
        for (int64_t s = 0; s < 2 * n; s++) ours[s % 2 * n + s / 2] = ((float *)wave.data)[s];
        /* Measured: 2.7e-7; the reference's own error is up to 5.6e-7. */
        check_near(m2_test_relative_error(ours, M2_F32, expected, M2_F32, 2 * n), 0, 4e-7, "%s %s",
                   cases[i][0], cases[i][1]);
        free(expected);
        free(ours);
        m2_checkpoint_close(file);
        m2_oobleck_destroy(oobleck);
    }
}

/* Odd strides, one block: a tiny network that f64 can follow by the definition, transposed
 * convolution and weight norm over dimension 0 (input channels there) included.  Catches a norm over
 * the wrong dimension, a shifted or shortened output for odd strides. */
static const m2_oobleck_config tiny = {
    .latent_dim = 4, .n_blocks = 1, .c_in = { 3 }, .c_out = { 2 }, .strides = { 3 }, .use_snake = 1
};

typedef struct file_values {
    m2_checkpoint *checkpoint;
} file_values;

static const double *values_of(file_values *file, const char *layer, const char *part)
{
    char name[160];
    snprintf(name, sizeof name, "pretransform.model.decoder.%s.%s", layer, part);
    const m2_ckpt_tensor *tensor = m2_checkpoint_find(file->checkpoint, name);
    assert_true(tensor && tensor->count <= 4096);
    double *values = malloc((size_t)tensor->count * sizeof *values);
    m2_checkpoint_read(tensor, M2_F64, values);
    return values;
}

static double *folded(file_values *file, const char *layer, int outer, int rest)
{
    const double *v = values_of(file, layer, "weight_v"), *g = values_of(file, layer, "weight_g");
    double *w = malloc((size_t)(outer * rest) * sizeof *w);
    for (int o = 0; o < outer; o++) {
        double squares = 0;
        for (int i = 0; i < rest; i++) squares += v[o * rest + i] * v[o * rest + i];
        for (int i = 0; i < rest; i++) w[o * rest + i] = v[o * rest + i] * g[o] / sqrt(squares);
    }
    free((void *)(uintptr_t)v);
    free((void *)(uintptr_t)g);
    return w;
}

static double *conv_f64(file_values *file, const char *layer, const double *x, int n, int c_in,
                        int c_out, int taps, int dilation, int has_bias)
{
    double *w = folded(file, layer, c_out, c_in * taps),
           *y = calloc((size_t)(n * c_out), sizeof *y);
    const double *bias = has_bias ? values_of(file, layer, "bias") : NULL;
    for (int t = 0; t < n; t++)
        for (int o = 0; o < c_out; o++) {
            double sum = bias ? bias[o] : 0;
            for (int k = 0; k < taps; k++) {
                const int from = t + (k - taps / 2) * dilation;
                for (int i = 0; i < c_in && from >= 0 && from < n; i++)
                    sum += x[from * c_in + i] * w[(o * c_in + i) * taps + k];
            }
            y[t * c_out + o] = sum;
        }
    free(w);
    free((void *)(uintptr_t)bias);
    return y;
}

static void snake_f64(file_values *file, const char *layer, double *x, int n, int channels)
{
    const double *alpha = values_of(file, layer, "alpha"), *beta = values_of(file, layer, "beta");
    for (int i = 0; i < n * channels; i++) {
        const int c = i % channels;
        x[i] += pow(sin(exp(alpha[c]) * x[i]), 2) / (exp(beta[c]) + 1e-9);
    }
    free((void *)(uintptr_t)alpha);
    free((void *)(uintptr_t)beta);
}

static double *transposed_f64(file_values *file, const char *layer, const double *x, int n,
                              int c_in, int c_out, int stride, int n_out)
{
    double *w = folded(file, layer, c_in, c_out * 2 * stride);
    double *y = calloc((size_t)(n_out * c_out), sizeof *y);
    const double *bias = values_of(file, layer, "bias");
    for (int t = 0; t < n_out * c_out; t++) y[t] = bias[t % c_out];
    for (int j = 0; j < n; j++)
        for (int k = 0; k < 2 * stride; k++) {
            const int t = j * stride + k - (stride + 1) / 2;
            for (int o = 0; o < c_out && t >= 0 && t < n_out; o++)
                for (int i = 0; i < c_in; i++)
                    y[t * c_out + o] += x[j * c_in + i] * w[(i * c_out + o) * 2 * stride + k];
        }
    free(w);
    free((void *)(uintptr_t)bias);
    return y;
}

static double *tiny_in_f64(file_values *file, const double *latent, int n, int *n_out)
{
    double *x = conv_f64(file, "layers.0", latent, n, 4, 3, 7, 1, 1);
    snake_f64(file, "layers.1.layers.0", x, n, 3);
    *n_out = 3 * n - 1;
    double *y = transposed_f64(file, "layers.1.layers.1", x, n, 3, 2, 3, *n_out);
    free(x);
    for (int u = 2, dilation = 1; u <= 4; u++, dilation *= 3) {
        char name[64];
        double *a = malloc((size_t)(*n_out * 2) * sizeof *a);
        memcpy(a, y, (size_t)(*n_out * 2) * sizeof *a);
        snprintf(name, sizeof name, "layers.1.layers.%d.layers.0", u);
        snake_f64(file, name, a, *n_out, 2);
        snprintf(name, sizeof name, "layers.1.layers.%d.layers.1", u);
        double *b = conv_f64(file, name, a, *n_out, 2, 2, 7, dilation, 1);
        snprintf(name, sizeof name, "layers.1.layers.%d.layers.2", u);
        snake_f64(file, name, b, *n_out, 2);
        snprintf(name, sizeof name, "layers.1.layers.%d.layers.3", u);
        double *c = conv_f64(file, name, b, *n_out, 2, 2, 1, 1, 1);
        for (int i = 0; i < *n_out * 2; i++) y[i] += c[i];
        free(a);
        free(b);
        free(c);
    }
    snake_f64(file, "layers.2", y, *n_out, 2);
    double *out = conv_f64(file, "layers.3", y, *n_out, 2, 2, 7, 1, 0);
    free(y);
    return out;
}

static char *write_tiny(const char *dir, tensor_list *list)
{
    char *path = m2_test_join(dir, "model.safetensors");
    check_ok(m2_oobleck_describe(&tiny, tensor_list_add, list));
    tensor_list_write(list, path, "", 0, 21);
    return path;
}

static void an_odd_stride_follows_the_definition(void **state)
{
    test_env *env = *state;
    char *dir = m2_test_make_dir();
    tensor_list *list = calloc(1, sizeof *list);
    char *path = write_tiny(dir, list);
    m2_oobleck *oobleck = NULL;
    check_ok(open_network(env, path, &tiny, &oobleck));
    const int n = 6;
    double latent[6 * 4];
    m2_test_random random = { 4 };
    m2_tensor in = m2_tensor_make(&env->step, M2_F32, n, 4), wave;
    for (int i = 0; i < n * 4; i++)
        latent[i] = ((float *)in.data)[i] = 0.5f * m2_test_random_normal(&random);
    check_ok(m2_oobleck_decode(oobleck, &env->ops, &env->step, &in, NULL, NULL, &wave));

    file_values file = { 0 };
    int n_out = 0;
    check_ok(m2_checkpoint_open(path, &file.checkpoint));
    double *expected = tiny_in_f64(&file, latent, n, &n_out);
    assert_int_equal(wave.shape[0], n_out);
    assert_int_equal(m2_oobleck_n_samples(&tiny, n), n_out);
    const double error =
        m2_test_relative_error(wave.data, M2_F32, expected, M2_F64, m2_tensor_count(&wave));
    /* Eight snakes in a row steepen a rounding error up to threefold each; measured: 8e-7. */
    check_near(error, 0, 2e-6, "stride 3");
    free(expected);
    m2_checkpoint_close(file.checkpoint);
    m2_oobleck_destroy(oobleck);
    m2_test_remove_tree(dir);
    free(path);
    free(list);
}

static void all_faults_of_a_checkpoint_are_reported_at_once(void **state)
{
    test_env *env = *state;
    char *dir = m2_test_make_dir();
    tensor_list *list = calloc(1, sizeof *list);
    char *path = write_tiny(dir, list);
    m2_oobleck *oobleck = NULL;
    strcpy(list->rows[0].name, "pretransform.model.encoder.layers.0.weight_v");
    list->rows[1].shape[0]++;
    strcpy(list->rows[2].name, "pretransform.model.decoder.layers.0.bias2");
    tensor_list_write(list, path, "", 0, 21);
    check_fails(open_network(env, path, &tiny, &oobleck), M2_ERR_MODEL,
                "2 missing, 1 of another shape or type, 1 unexpected");
    assert_null(oobleck);
    m2_test_remove_tree(dir);
    free(path);
    free(list);
}

typedef struct stop {
    int n_asked, at;
} stop;

static m2_status ask(void *user)
{
    stop *s = user;
    return ++s->n_asked == s->at ? m2_fail(M2_ERR_INTERRUPTED, "stopped") : M2_OK;
}

/* The plan is the run's peak to the byte; threads and instruction sets give the same bits; a check
 * is asked between layers and its status comes back. */
static void plan_threads_and_stops(void **state)
{
    test_env *env = *state;
    char folder[512];
    m2_oobleck_config config;
    m2_ops measure;
    m2_arena planned, exact;
    m2_tensor wave, again;
    m2_ops_init_measure(&measure);
    m2_arena_init_measuring(&planned, "step");
    snprintf(folder, sizeof folder, "%s", m2_test_path("data/audio/short_strides"));
    m2_oobleck *oobleck = recorded_network(env, folder, &config);
    m2_tensor latent = m2_tensor_make(&env->step, M2_F32, 9, 64);
    m2_test_random random = { 9 };
    for (int i = 0; i < 9 * 64; i++) ((float *)latent.data)[i] = m2_test_random_normal(&random);
    check_ok(m2_oobleck_decode(oobleck, &measure, &planned, &latent, NULL, NULL, &wave));
    check_ok(m2_oobleck_decode(oobleck, &env->ops, &env->step, &latent, NULL, NULL, &wave));
    check_ok(m2_arena_create(&exact, "step", planned.peak));
    for (int isa = M2_ISA_REF; isa <= (int)m2_isa_detect(); isa++) {
        m2_pool *pool = NULL;
        m2_ops ops;
        check_ok(m2_pool_create(3, &pool));
        check_ok(m2_ops_init_cpu(&ops, pool, (m2_isa)isa));
        m2_arena_reset(&exact);
        check_ok(m2_oobleck_decode(oobleck, &ops, &exact, &latent, NULL, NULL, &again));
        assert_int_equal(exact.peak, planned.peak);
        assert_memory_equal(again.data, wave.data, m2_tensor_bytes(&wave));
        m2_pool_destroy(pool);
    }
    m2_arena_reset(&exact);
    stop s = { .at = 4 };
    check_fails(m2_oobleck_decode(oobleck, &env->ops, &exact, &latent, ask, &s, &again),
                M2_ERR_INTERRUPTED, "stopped");
    assert_int_equal(s.n_asked, 4);
    m2_arena_destroy(&exact);
    m2_oobleck_destroy(oobleck);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_run_from_the_latent_to_the_sound),
        cmocka_unit_test(values_not_implemented_are_refused_by_name),
        cmocka_unit_test(the_built_in_config_is_that_of_the_file),
        cmocka_unit_test(tables_at_the_release_sizes_equal_the_list),
        cmocka_unit_test(recorded_waves_meet_the_error_rule),
        cmocka_unit_test(an_odd_stride_follows_the_definition),
        cmocka_unit_test(all_faults_of_a_checkpoint_are_reported_at_once),
        cmocka_unit_test(plan_threads_and_stops),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
