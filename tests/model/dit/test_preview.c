/* The preview transformer on a recorded tiny model (tests/data/dit/c: grouped queries, one dense
 * layer with weights per modality, one layer of experts). */
#include "support/check.h"
#include "support/tensor_list.h"

#include "backend/cpu/cpu.h"
#include "model/dit/preview.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RESIDUAL 512

typedef struct test_env {
    m2_model_config config;
    m2_checkpoint *checkpoint, *data;
    m2_arena weights, memory; /* memory: inputs and outputs */
    m2_pool *pool;
    m2_ops ops;
    m2_preview *net;
} test_env;

static int set_up(void **state)
{
    test_env *env = calloc(1, sizeof *env);
    m2_model_config_init(&env->config);
    check_ok(m2_model_config_load(&env->config, m2_test_path("data/dit/c/config.json")));
    check_ok(m2_checkpoint_open(m2_test_path("data/dit/c/ckpt"), &env->checkpoint));
    check_ok(m2_arena_create(&env->weights, "weights", (size_t)8 << 20));
    check_ok(m2_arena_create(&env->memory, "test", (size_t)32 << 20));
    check_ok(m2_pool_create(3, &env->pool));
    check_ok(m2_ops_init_cpu(&env->ops, env->pool, M2_ISA_BEST));
    check_ok(m2_preview_open(env->checkpoint, &env->config.arch, 64, &env->ops, &env->weights,
                             &env->net));
    *state = env;
    return 0;
}

static int tear_down(void **state)
{
    test_env *env = *state;
    m2_preview_close(env->net);
    m2_checkpoint_close(env->data);
    m2_checkpoint_close(env->checkpoint);
    m2_arena_destroy(&env->weights);
    m2_arena_destroy(&env->memory);
    m2_pool_destroy(env->pool);
    m2_model_config_free(&env->config);
    free(env);
    return 0;
}

/* ---- recorded data ---- */

static void open_data(test_env *env, const char *relative)
{
    m2_checkpoint_close(env->data);
    env->data = NULL;
    check_ok(m2_checkpoint_open(m2_test_path(relative), &env->data));
}

static m2_tensor take(test_env *env, const char *name, m2_dtype dtype)
{
    const m2_ckpt_tensor *entry = m2_checkpoint_find(env->data, name);
    if (!entry) fail_msg("%s is missing", name);
    m2_tensor tensor = m2_tensor_new(&env->memory, dtype, entry->n_dims, entry->shape);
    m2_checkpoint_read(entry, dtype, tensor.data);
    return tensor;
}

/* The error rule at twice the reference's own error. */
static void check_error(test_env *env, const m2_tensor *ours, const char *reference,
                        const char *truth)
{
    const m2_tensor theirs = take(env, reference, M2_F32), exact = take(env, truth, M2_F32);
    const int64_t n = m2_tensor_count(&exact);
    assert_int_equal(m2_tensor_count(ours), n);
    const double error = m2_test_relative_error(ours->data, ours->dtype, exact.data, M2_F32, n);
    const double limit = 2 * m2_test_relative_error(theirs.data, M2_F32, exact.data, M2_F32, n);
    if (!(error <= limit)) fail_msg("%s: error %.3e, limit %.3e", truth, error, limit);
}

/* ---- a request and its step ---- */

typedef struct scene {
    m2_preview_shape shape;
    m2_preview_conditions conditions;
    m2_tensor text[2], special, image;
    m2_tensor video, audio;
    int timestep;
} scene;

static scene recorded_scene(test_env *env)
{
    scene s = { .timestep = (int)*(int64_t *)take(env, "in.t", M2_I64).data };
    m2_tensor latent = take(env, "in.latent", M2_F32), audio = take(env, "in.audio_latent", M2_F32);
    s.video = m2_tensor_wrap(latent.data, M2_F32, 4, latent.shape + 1);
    s.audio = m2_tensor_wrap(audio.data, M2_F32, 2, audio.shape + 1);
    s.shape = (m2_preview_shape){ .frames = latent.shape[2],
                                  .height = latent.shape[3],
                                  .width = latent.shape[4],
                                  .audio_len = audio.shape[1],
                                  .use_ref_for_uncond = 1 };
    for (int b = 0; b < M2_BRANCHES; b++) {
        const m2_tensor text = take(env, b ? "in.null_txt_feat" : "in.txt_feat", M2_BF16);
        s.text[b] = m2_tensor_wrap(text.data, M2_BF16, 2, text.shape + 1);
        s.shape.text_len[b] = text.shape[1];
    }
    if (m2_checkpoint_find(env->data, "in.ref_image_feat")) {
        const m2_tensor image = take(env, "in.ref_image_feat", M2_F32);
        const m2_tensor special = take(env, "in.ref_special", M2_BF16);
        s.shape.n_images = 1;
        s.shape.image_height[0] = image.shape[4];
        s.shape.image_width[0] = image.shape[5];
        s.image =
            m2_tensor_over(image.data, M2_F32, image.shape[2], image.shape[4] * image.shape[5]);
        s.special = m2_tensor_wrap(special.data, M2_BF16, 2, special.shape + 1);
    }
    return s;
}

typedef struct velocities {
    m2_tensor video, audio;
} velocities;

static velocities new_velocities(test_env *env, const scene *s)
{
    return (velocities){ m2_tensor_make(&env->memory, M2_F32, 2, s->video.shape[0], s->shape.frames,
                                        s->shape.height, s->shape.width),
                         m2_tensor_make(&env->memory, M2_F32, 2, s->shape.audio_len,
                                        s->audio.shape[1]) };
}

/* Bytes of the request and step arenas, by the same code on measuring arenas. */
static void plan(const m2_preview *net, const scene *s, size_t *request_out, size_t *step_out)
{
    m2_ops measure;
    m2_arena request, step;
    m2_preview_request laid;
    m2_ops_init_measure(&measure);
    m2_arena_init_measuring(&request, "request");
    m2_arena_init_measuring(&step, "step");
    check_ok(m2_preview_prepare(net, &measure, &request, &step, &s->shape, NULL, NULL, &laid));
    m2_tensor video = s->video, audio = s->audio;
    m2_tensor video_out = m2_tensor_over(NULL, M2_F32, 2, m2_tensor_count(&video));
    m2_tensor audio_out = m2_tensor_over(NULL, M2_F32, 2, audio.shape[0], audio.shape[1]);
    m2_preview_forward(net, &measure, &step, &laid,
                       &(m2_preview_step){ .video = &video,
                                           .audio = &audio,
                                           .timestep = 1,
                                           .video_out = &video_out,
                                           .audio_out = &audio_out },
                       NULL);
    *request_out = request.peak;
    *step_out = step.peak;
}

/* A whole run in arenas of exactly the planned size, filled with NaN before. */
static velocities run(test_env *env, const m2_ops *ops, const scene *s,
                      const m2_preview_hooks *hooks)
{
    size_t request_bytes, step_bytes;
    plan(env->net, s, &request_bytes, &step_bytes);
    m2_arena request, step;
    check_ok(m2_arena_create(&request, "request", request_bytes));
    check_ok(m2_arena_create(&step, "step", step_bytes));
    memset(m2_arena_alloc(&request, request_bytes), 0xff, request_bytes);
    memset(m2_arena_alloc(&step, step_bytes), 0xff, step_bytes);
    m2_arena_reset(&request);
    m2_arena_reset(&step);

    m2_preview_conditions conditions = { .text = { &s->text[0], &s->text[1] },
                                         .images = { &s->image },
                                         .special = &s->special };
    m2_preview_request laid;
    velocities out = new_velocities(env, s);
    check_ok(
        m2_preview_prepare(env->net, ops, &request, &step, &s->shape, &conditions, hooks, &laid));
    m2_preview_forward(env->net, ops, &step, &laid,
                       &(m2_preview_step){ .video = &s->video,
                                           .audio = &s->audio,
                                           .timestep = s->timestep,
                                           .video_out = &out.video,
                                           .audio_out = &out.audio },
                       hooks);
    assert_int_equal(request.peak, request_bytes);
    assert_int_equal(step.peak, step_bytes);
    assert_int_equal(step.used, 0);
    m2_arena_destroy(&request);
    m2_arena_destroy(&step);
    return out;
}

static int is_same(const m2_tensor *a, const m2_tensor *b)
{
    return memcmp(a->data, b->data, m2_tensor_bytes(a)) == 0;
}

/* Both branches or one of a velocity. */
static m2_tensor branch(const m2_tensor *velocity, int b)
{
    return m2_tensor_rows(velocity, b, b + 1);
}

/* ---- tests ---- */

/* [heads, n, k] ids of the truth, from sequence to modality order. */
static m2_tensor truth_ids(test_env *env, const scene *s)
{
    m2_packing packing;
    check_ok(m2_packing_init(&packing, &s->shape));
    const m2_tensor ids = take(env, "moe1.topk_idx.truth", M2_I32);
    m2_tensor rows = m2_tensor_new(&env->memory, M2_I32, 3, ids.shape);
    int32_t *seq = m2_new(&env->memory, int32_t, packing.n_tokens);
    m2_packing_orders(&packing, seq, NULL);
    const size_t bytes = (size_t)ids.shape[2] * 4;
    for (int64_t h = 0; h < ids.shape[0]; h++)
        for (int64_t r = 0; r < ids.shape[1]; r++)
            memcpy((char *)rows.data + (size_t)(h * ids.shape[1] + r) * bytes,
                   (char *)ids.data + (size_t)(h * ids.shape[1] + seq[r]) * bytes, bytes);
    return rows;
}

/* Text alone, and a first-frame picture, with the truth's experts put in: what remains is rounding. */
static void velocities_meet_the_error_rule_with_the_truths_experts(void **state)
{
    static const char *const cases[] = { "data/dit/c/t2va_small.safetensors",
                                         "data/dit/c/i2va_one_image.safetensors" };
    test_env *env = *state;
    for (int i = 0; i < 2; i++) {
        open_data(env, cases[i]);
        const scene s = recorded_scene(env);
        m2_tensor forced[2] = { 0 };
        forced[1] = truth_ids(env, &s);
        const velocities out = run(env, &env->ops, &s, &(m2_preview_hooks){ .forced = forced });
        check_error(env, &out.video, "out.video", "out.video.truth");
        check_error(env, &out.audio, "out.audio", "out.audio.truth");
    }
}

static void copy_experts(void *user, const char *name, m2_tensor *tensor)
{
    m2_tensor *to = user;
    if (strcmp(name, "preview.01.topk_idx") == 0)
        memcpy(to->data, tensor->data, m2_tensor_bytes(tensor));
}

/* Each layer from its recorded input, and the experts that it then chooses: with the raw router bias
 * instead of the averaged one the sets would differ. */
static void layers_follow_their_recorded_inputs(void **state)
{
    test_env *env = *state;
    open_data(env, "data/dit/c/t2va_small.safetensors");
    const scene s = recorded_scene(env);
    m2_arena request, step;
    check_ok(m2_arena_create(&request, "request", (size_t)4 << 20));
    check_ok(m2_arena_create(&step, "step", (size_t)16 << 20));
    m2_preview_conditions conditions = { .text = { &s.text[0], &s.text[1] } };
    m2_preview_request laid;
    check_ok(m2_preview_prepare(env->net, &env->ops, &request, &step, &s.shape, &conditions, NULL,
                                &laid));
    const int64_t n = laid.packing.n_tokens;
    int32_t *seq = m2_new(&env->memory, int32_t, n);
    m2_packing_orders(&laid.packing, seq, NULL);
    /* On the CPU nobody reads the way back. */
    for (int64_t r = 0; r < n; r++) assert_int_equal(((const int32_t *)laid.row.data)[seq[r]], r);
    m2_tensor chosen = m2_tensor_make(&env->memory, M2_I32, 2, n, 2);
    const m2_trace trace = { .show = copy_experts, .user = &chosen };

    static const char *const names[2][3] = {
        { "h.pre", "h.layer0", "h.layer0.truth_local" },
        { "h.layer0", "h.layer1", "h.layer1.truth_local" },
    };
    for (int i = 0; i < 2; i++) {
        const m2_tensor in = take(env, names[i][0], M2_BF16);
        m2_tensor rows = m2_tensor_make(&env->memory, M2_BF16, n, M2_STREAMS, RESIDUAL / 4);
        m2_tensor out = m2_tensor_make(&env->memory, M2_BF16, n, RESIDUAL);
        for (int64_t r = 0; r < n; r++)
            memcpy((m2_bf16 *)rows.data + r * RESIDUAL, (m2_bf16 *)in.data + seq[r] * RESIDUAL,
                   RESIDUAL * sizeof(m2_bf16));
        m2_preview_layer(env->net, &env->ops, &step, &laid, i, &rows,
                         &(m2_preview_hooks){ .trace = &trace });
        for (int64_t r = 0; r < n; r++)
            memcpy((m2_bf16 *)out.data + seq[r] * RESIDUAL, (m2_bf16 *)rows.data + r * RESIDUAL,
                   RESIDUAL * sizeof(m2_bf16));
        check_error(env, &out, names[i][1], names[i][2]);
    }
    const m2_tensor recorded = take(env, "moe1.topk_idx", M2_I32);
    for (int64_t h = 0; h < 2; h++) {
        for (int64_t r = 0; r < n; r++) {
            const int32_t *ours = (int32_t *)chosen.data + (h * n + r) * 2;
            const int32_t *theirs = (int32_t *)recorded.data + (h * n + seq[r]) * 2;
            assert_true((ours[0] == theirs[0] && ours[1] == theirs[1]) ||
                        (ours[0] == theirs[1] && ours[1] == theirs[0]));
        }
    }
    m2_arena_destroy(&request);
    m2_arena_destroy(&step);
}

/* attention_gated as the table has it, and how often it was called. */
static void (*cpu_attention_gated)(const m2_ops *ops, const m2_attention_gated_args *args);
static int n_gated;

static void check_orders(const m2_ops *ops, const m2_attention_gated_args *args)
{
    const int64_t n = args->gate.y->shape[0];
    const int32_t *seq = args->gate.seq->data, *row = args->row->data;
    assert_int_equal(m2_tensor_count(args->gate.seq), n);
    assert_int_equal(m2_tensor_count(args->row), n);
    int64_t n_moved = 0;
    for (int64_t r = 0; r < n; r++) {
        assert_in_range(seq[r], 0, n - 1);
        assert_int_equal(row[seq[r]], r);
        n_moved += row[r] != seq[r];
    }
    /* Orders that are their own inverse would tell nothing. */
    assert_true(n_moved > 0);
    assert_ptr_equal(args->gate.a, args->attention.y);
    n_gated++;
    cpu_attention_gated(ops, args);
}

/* A GPU gates and files the rows of its attention as it makes them, by the inverse of the order that the
 * CPU reads.  Catches one given for the other, which no result of the CPU shows. */
static void attention_is_told_its_rows_both_ways(void **state)
{
    test_env *env = *state;
    static const char *const cases[] = { "data/dit/c/t2va_small.safetensors",
                                         "data/dit/c/i2va_one_image.safetensors" };
    m2_ops ops = env->ops;
    cpu_attention_gated = ops.attention_gated;
    ops.attention_gated = check_orders;
    for (int i = 0; i < 2; i++) {
        open_data(env, cases[i]);
        const scene s = recorded_scene(env);
        n_gated = 0;
        run(env, &ops, &s, NULL);
        assert_int_equal(n_gated, env->config.arch.num_layers);
    }
}

/* One thread or three, scalar or the best instruction set: the same bits. */
static void bits_do_not_depend_on_threads_or_instruction_set(void **state)
{
    test_env *env = *state;
    open_data(env, "data/dit/c/i2va_one_image.safetensors");
    const scene s = recorded_scene(env);
    const velocities best = run(env, &env->ops, &s, NULL);
    for (int isa = M2_ISA_REF; isa <= (int)m2_isa_detect(); isa++) {
        m2_ops ops;
        check_ok(m2_ops_init_cpu(&ops, NULL, (m2_isa)isa));
        const velocities other = run(env, &ops, &s, NULL);
        assert_true(is_same(&best.video, &other.video) && is_same(&best.audio, &other.audio));
    }
}

/* Catches attention across the branches, rows filed under the wrong branch, and branches that do
 * not see the same latents. */
static void branches_are_alike_for_equal_texts_and_apart_for_others(void **state)
{
    test_env *env = *state;
    open_data(env, "data/dit/c/t2va_small.safetensors");
    scene s = recorded_scene(env);
    const velocities recorded = run(env, &env->ops, &s, NULL);
    m2_tensor a = branch(&recorded.video, 0), b = branch(&recorded.video, 1);
    assert_false(is_same(&a, &b));

    s.text[1] = s.text[0];
    s.shape.text_len[1] = s.shape.text_len[0];
    const velocities equal = run(env, &env->ops, &s, NULL);
    b = branch(&equal.video, 1);
    assert_true(is_same(&a, &b));
    a = branch(&equal.audio, 0);
    b = branch(&equal.audio, 1);
    assert_true(is_same(&a, &b));
    a = branch(&recorded.video, 0);
    b = branch(&equal.video, 0);
    assert_true(is_same(&a, &b));
}

/* An empty negative prompt is a branch without text. */
static void a_branch_may_have_no_text(void **state)
{
    test_env *env = *state;
    open_data(env, "data/dit/c/t2va_small.safetensors");
    scene s = recorded_scene(env);
    const velocities recorded = run(env, &env->ops, &s, NULL);
    s.shape.text_len[1] = 0;
    s.text[1] = m2_tensor_over(NULL, M2_BF16, 0, 16);
    const velocities empty = run(env, &env->ops, &s, NULL);
    m2_tensor a = branch(&recorded.video, 0), b = branch(&empty.video, 0);
    assert_true(is_same(&a, &b));
    a = branch(&recorded.video, 1);
    b = branch(&empty.video, 1);
    assert_false(is_same(&a, &b));
    for (int64_t i = 0; i < m2_tensor_count(&empty.video); i++)
        assert_true(isfinite(((float *)empty.video.data)[i]));
}

/* Without a reference the unconditional branch keeps the picture's tokens but does not see it. */
static void the_unconditional_branch_can_be_blind_to_the_picture(void **state)
{
    test_env *env = *state;
    open_data(env, "data/dit/c/i2va_one_image.safetensors");
    scene s = recorded_scene(env);
    const velocities seeing = run(env, &env->ops, &s, NULL);
    s.shape.use_ref_for_uncond = 0;
    const velocities blind = run(env, &env->ops, &s, NULL);
    for (int64_t i = 0; i < m2_tensor_count(&s.image); i++) ((float *)s.image.data)[i] += 0.5f;
    const velocities changed = run(env, &env->ops, &s, NULL);

    m2_tensor a = branch(&seeing.video, 0), b = branch(&blind.video, 0);
    assert_true(is_same(&a, &b));
    a = branch(&seeing.video, 1);
    b = branch(&blind.video, 1);
    assert_false(is_same(&a, &b));
    a = branch(&blind.video, 1);
    b = branch(&changed.video, 1);
    assert_true(is_same(&a, &b));
    a = branch(&blind.video, 0);
    b = branch(&changed.video, 0);
    assert_false(is_same(&a, &b));
}

/* What no recorded model has: no gate, no sinks, two sinks, a dense layer with one weight set, experts
 * in a layer with weights per modality.  Random weights; velocities must be finite, of some size, and
 * the same from the scalar operators. */
static void other_architectures_run(void **state)
{
    test_env *env = *state;
    const m2_arch_config recorded = env->config.arch;
    open_data(env, "data/dit/c/i2va_one_image.safetensors");
    const scene s = recorded_scene(env);
    char *dir = m2_test_make_dir();
    for (int i = 0; i < 4; i++) {
        m2_arch_config *arch = &env->config.arch;
        *arch = recorded;
        arch->num_layers = 3;
        arch->attn_gating = i != 0;
        arch->attn_sinks = i != 1;
        arch->sink_token_num = i == 2 ? 2 : 1;
        arch->is_mm_layer[1] = i == 3;
        arch->num_query_groups = i == 3 ? 1 : 4;

        char path[300];
        snprintf(path, sizeof path, "%s/%d.safetensors", dir, i);
        tensor_list *list = calloc(1, sizeof *list);
        check_ok(m2_preview_weights_describe(arch, tensor_list_add, list));
        tensor_list_write(list, path, "", 0, 100 + (uint64_t)i);
        free(list);
        m2_preview_close(env->net);
        env->net = NULL;
        m2_checkpoint_close(env->checkpoint);
        env->checkpoint = NULL;
        m2_arena_reset(&env->weights);
        check_ok(m2_checkpoint_open(path, &env->checkpoint));
        check_ok(m2_preview_open(env->checkpoint, arch, 64, &env->ops, &env->weights, &env->net));

        m2_ops scalar;
        check_ok(m2_ops_init_cpu(&scalar, NULL, M2_ISA_REF));
        const velocities best = run(env, &env->ops, &s, NULL), ref = run(env, &scalar, &s, NULL);
        assert_true(is_same(&best.video, &ref.video) && is_same(&best.audio, &ref.audio));
        double squares = 0;
        for (int64_t k = 0; k < m2_tensor_count(&best.video); k++)
            squares += pow((double)((float *)best.video.data)[k], 2);
        assert_true(isfinite(squares) && squares > 0);
    }
    m2_test_remove_tree(dir);
}

/* The released size is planned from the config alone; no address is followed. */
static void the_released_size_is_planned_without_weights(void **state)
{
    (void)state;
    m2_model_config config;
    m2_preview *net = NULL;
    m2_model_config_init(&config);
    check_ok(m2_preview_open_shapes(&config.arch, config.eval.time_channel_dim, &net));
    const scene s = { .shape = { .frames = 32,
                                 .height = 17,
                                 .width = 30,
                                 .audio_len = 250,
                                 .text_len = { 500, 300 } },
                      .video = m2_tensor_over(NULL, M2_F32, 48, 32, 17, 30),
                      .audio = m2_tensor_over(NULL, M2_F32, 250, 64) };
    size_t request, step;
    plan(net, &s, &request, &step);
    const int64_t n = 2 * (32 * 17 * 30 + 250) + 800;
    assert_true((int64_t)request > 800 * 12288 * 2);
    assert_true((int64_t)step > n * 12288 * 2);
    assert_true(step < (size_t)16 << 30);
    print_message("released size: request %.1f MiB, step %.2f GiB\n", (double)request / 0x1p20,
                  (double)step / 0x1p30);
    m2_preview_close(net);
    m2_model_config_free(&config);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(velocities_meet_the_error_rule_with_the_truths_experts),
        TEST(layers_follow_their_recorded_inputs),
        TEST(attention_is_told_its_rows_both_ways),
        TEST(bits_do_not_depend_on_threads_or_instruction_set),
        TEST(branches_are_alike_for_equal_texts_and_apart_for_others),
        TEST(a_branch_may_have_no_text),
        TEST(other_architectures_run),
        TEST(the_unconditional_branch_can_be_blind_to_the_picture),
        cmocka_unit_test(the_released_size_is_planned_without_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
