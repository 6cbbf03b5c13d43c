/* The choice of the vendor's library for attention, and the calls made of it.  The library is a list
 * of calls here: the file under test is built against declarations of a runtime, none is linked. */
#include "support/check.h"

#include "backend/gpu/dnn.h"

#define CALLS_MAX 8

static struct {
    int n_calls, n_sinks_calls, refuse_at;
    m2_gpu_heads calls[CALLS_MAX], sinks_calls[CALLS_MAX];
    int n_sinks;
} seen;

int m2_gpu_dnn_attend(m2_gpu *gpu, const m2_gpu_heads *heads)
{
    assert_non_null(gpu->dnn);
    assert_true(seen.n_calls < CALLS_MAX);
    seen.calls[seen.n_calls++] = *heads;
    return seen.n_calls != seen.refuse_at;
}

void m2_gpu_attention_sinks(m2_gpu *gpu, const m2_gpu_heads *heads, const float *sinks, int n_sinks)
{
    (void)gpu;
    assert_non_null(sinks);
    seen.sinks_calls[seen.n_sinks_calls++] = *heads;
    seen.n_sinks = n_sinks;
    assert_int_equal(seen.n_sinks_calls, seen.n_calls); /* each after its attention */
}

/* Addresses that nobody reads. */
static char *const place = (char *)((uintptr_t)1 << 40);

typedef struct call {
    m2_gpu gpu;
    m2_tensor q, k, v, y, sinks;
    m2_attention_args args;
} call;

static m2_tensor tensor_at(size_t offset, m2_dtype dtype, int64_t n, int64_t heads, int64_t dim)
{
    return m2_tensor_wrap(place + offset, dtype, 3, (const int64_t[]){ n, heads, dim });
}

static void make_call(call *c, m2_dtype dtype, const int64_t *segments, int n_segments, int64_t dim)
{
    const int64_t n = segments[n_segments], sizes[] = { 2, 24 };
    memset(&seen, 0, sizeof seen);
    memset(c, 0, sizeof *c);
    c->gpu.dnn = (struct m2_gpu_dnn *)place;
    c->gpu.workspace = place;
    c->q = tensor_at((size_t)1 << 30, dtype, n, 24, dim);
    c->k = tensor_at((size_t)2 << 30, dtype, n, 4, dim);
    c->v = tensor_at((size_t)3 << 30, dtype, n, 4, dim);
    c->y = tensor_at((size_t)4 << 30, dtype, n, 24, dim);
    c->sinks = m2_tensor_wrap(place, M2_F32, 2, sizes);
    c->args = (m2_attention_args){ .q = &c->q,
                                   .k = &c->k,
                                   .v = &c->v,
                                   .y = &c->y,
                                   .segments = segments,
                                   .n_segments = n_segments,
                                   .scale = 0.25f };
}

static const int64_t preview[] = { 0, 15015, 29616 };

/* Catches a call into a library that was not opened. */
static void without_the_library_nothing_is_taken(void **state)
{
    (void)state;
    call c;
    make_call(&c, M2_BF16, preview, 2, 128);
    c.gpu.dnn = NULL;
    assert_int_equal(m2_gpu_attention_library(&c.gpu, &c.args), 0);
    c.gpu.prefers_dnn = 1;
    assert_int_equal(m2_gpu_attention_library(&c.gpu, &c.args), 0);
    assert_int_equal(seen.n_calls, 0);
}

/* Catches f32 read as bf16, rows that are no multiple of the engines' unit, a head that is too wide. */
static void types_and_widths_that_it_has_nothing_for_are_left(void **state)
{
    (void)state;
    static const struct {
        m2_dtype dtype;
        int64_t dim;
        size_t offset;
        int is_taken;
    } cases[] = { { M2_BF16, 128, 0, 1 }, { M2_F32, 128, 0, 0 },  { M2_BF16, 132, 0, 0 },
                  { M2_BF16, 264, 0, 0 }, { M2_BF16, 256, 0, 1 }, { M2_BF16, 128, 8, 0 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        call c;
        make_call(&c, cases[i].dtype, preview, 2, cases[i].dim);
        c.v.data = (char *)c.v.data + cases[i].offset;
        assert_int_equal(m2_gpu_attention_library(&c.gpu, &c.args), cases[i].is_taken);
        assert_int_equal(seen.n_calls, cases[i].is_taken ? 2 : 0);
    }
}

/* Catches a plan, a second of work of the host, for each length of a prompt. */
static void a_segment_that_is_not_worth_a_plan_is_left_unless_asked_for(void **state)
{
    (void)state;
    static const int64_t prompt[] = { 0, 7000 }, uneven[] = { 0, 15015, 15115 };
    call c;
    make_call(&c, M2_BF16, prompt, 1, 256);
    c.args.is_causal = 1;
    assert_int_equal(m2_gpu_attention_library(&c.gpu, &c.args), 0);
    c.gpu.prefers_dnn = 1;
    assert_int_equal(m2_gpu_attention_library(&c.gpu, &c.args), 1);
    assert_true(seen.calls[0].is_causal);

    make_call(&c, M2_BF16, uneven, 2, 128);
    assert_int_equal(m2_gpu_attention_library(&c.gpu, &c.args), 0);
    assert_int_equal(seen.n_calls, 0);
}

/* Catches rows of another segment, a logarithm over the library's own memory or outside of the
 * workspace, a segment of no rows. */
static void each_segment_is_a_call_of_its_own_rows(void **state)
{
    (void)state;
    static const int64_t segments[] = { 0, 15015, 15015, 29616 };
    call c;
    make_call(&c, M2_BF16, segments, 3, 128);
    c.gpu.prefers_dnn = 1;
    c.args.sinks = &c.sinks;
    assert_int_equal(m2_gpu_attention_library(&c.gpu, &c.args), 1);
    assert_int_equal(seen.n_calls, 2);
    assert_int_equal(seen.n_sinks_calls, 2);
    assert_int_equal(seen.n_sinks, 2);
    for (int i = 0; i < 2; i++) {
        const m2_gpu_heads *heads = &seen.calls[i];
        const size_t begin = i ? 15015 : 0, n = i ? 29616 - 15015 : 15015;
        assert_int_equal(heads->n, n);
        assert_int_equal(heads->n_heads, 24);
        assert_int_equal(heads->n_kv, 4);
        assert_int_equal(heads->dim, 128);
        assert_true(heads->scale == 0.25f);
        assert_ptr_equal(heads->q, (char *)c.q.data + begin * 24 * 128 * 2);
        assert_ptr_equal(heads->k, (char *)c.k.data + begin * 4 * 128 * 2);
        assert_ptr_equal(heads->v, (char *)c.v.data + begin * 4 * 128 * 2);
        assert_ptr_equal(heads->y, (char *)c.y.data + begin * 24 * 128 * 2);
        assert_ptr_equal(heads->memory, place);
        assert_true((char *)heads->lse >= place + M2_GPU_DNN_BYTES);
        assert_true((char *)(heads->lse + 24 * n) <= place + M2_GPU_WORKSPACE_BYTES);
        assert_memory_equal(heads, &seen.sinks_calls[i], sizeof *heads);
    }
}

static void logarithms_that_have_no_room_are_left(void **state)
{
    (void)state;
    static const int64_t fits[] = { 0, 349525 }, too_long[] = { 0, 349526 };
    call c;
    make_call(&c, M2_BF16, fits, 1, 128);
    assert_int_equal(m2_gpu_attention_library(&c.gpu, &c.args), 1);
    make_call(&c, M2_BF16, too_long, 1, 128);
    assert_int_equal(m2_gpu_attention_library(&c.gpu, &c.args), 0);
}

/* Catches a result of which one segment is missing. */
static void a_refusal_hands_the_whole_call_back(void **state)
{
    (void)state;
    call c;
    make_call(&c, M2_BF16, preview, 2, 128);
    seen.refuse_at = 2;
    assert_int_equal(m2_gpu_attention_library(&c.gpu, &c.args), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_the_library_nothing_is_taken),
        cmocka_unit_test(types_and_widths_that_it_has_nothing_for_are_left),
        cmocka_unit_test(a_segment_that_is_not_worth_a_plan_is_left_unless_asked_for),
        cmocka_unit_test(each_segment_is_a_call_of_its_own_rows),
        cmocka_unit_test(logarithms_that_have_no_room_are_left),
        cmocka_unit_test(a_refusal_hands_the_whole_call_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
