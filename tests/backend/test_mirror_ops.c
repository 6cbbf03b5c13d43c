/* The mirror of a device: what it brings back, and what it sees a kernel do that none may. */
#include "backend/random_case.h"
#include "support/guarded_device.h"
#include "support/mirror_ops.h"

typedef struct mirror_case {
    random_case c;
    m2_ops device, ops;
    m2_mirror *mirror;
    m2_tensor a, b, y;
} mirror_case;

/* A device on the host, so that operators can be put into its table here. */
static void open_case(mirror_case *it)
{
    random_case_open(&it->c, 5);
    it->device = reference_ops();
    check_ok(m2_mirror_open(&it->device, &it->mirror));
    m2_ops_init_mirror(&it->ops, it->mirror);
    it->a = random_tensor(&it->c, M2_F32, 1, 33);
    it->b = random_tensor(&it->c, M2_F32, 1, 33);
    it->y = m2_tensor_make(&it->c.arena, M2_F32, 33);
}

static void close_case(mirror_case *it)
{
    m2_mirror_close(it->mirror);
    random_case_close(&it->c);
}

static void add(mirror_case *it, m2_tensor *y)
{
    it->ops.add(&it->ops, &(m2_add_args){ .a = &it->a, .b = &it->b, .y = y });
}

static void add_and_write_behind(const m2_ops *ops, const m2_add_args *args)
{
    m2_ops cpu = reference_ops();
    (void)ops;
    cpu.add(&cpu, args);
    ((float *)args->y->data)[m2_tensor_count(args->y)] = 1.0f;
}

static void add_and_write_before(const m2_ops *ops, const m2_add_args *args)
{
    m2_ops cpu = reference_ops();
    (void)ops;
    cpu.add(&cpu, args);
    ((float *)args->y->data)[-1] = 1.0f;
}

static void add_into_input(const m2_ops *ops, const m2_add_args *args)
{
    m2_ops cpu = reference_ops();
    (void)ops;
    cpu.add(&cpu, args);
    ((float *)args->b->data)[32] += 1.0f;
}

static void add_all_but_the_last(const m2_ops *ops, const m2_add_args *args)
{
    (void)ops;
    for (int64_t i = 0; i + 1 < m2_tensor_count(args->y); i++)
        ((float *)args->y->data)[i] = ((float *)args->a->data)[i] + ((float *)args->b->data)[i];
}

static void results_come_back_and_in_place_too(void **state)
{
    (void)state;
    mirror_case it;
    open_case(&it);
    add(&it, &it.y);
    assert_null(m2_mirror_fault(it.mirror));
    for (int i = 0; i < 33; i++)
        assert_true(value_at(&it.y, i) ==
                    (double)(((float *)it.a.data)[i] + ((float *)it.b.data)[i]));
    add(&it, &it.a);
    assert_null(m2_mirror_fault(it.mirror));
    assert_memory_equal(it.a.data, it.y.data, m2_tensor_bytes(&it.y));
    close_case(&it);
}

static void writes_outside_of_the_outputs_are_seen(void **state)
{
    (void)state;
    static const struct {
        void (*add)(const m2_ops *ops, const m2_add_args *args);
        const char *part;
    } bad[] = { { add_and_write_behind, "behind the end of y" },
                { add_and_write_before, "behind the end of b" },
                { add_into_input, "the input of b" } };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        mirror_case it;
        open_case(&it);
        it.device.add = bad[i].add;
        add(&it, &it.y);
        const char *fault = m2_mirror_fault(it.mirror);
        assert_non_null(fault);
        if (!strstr(fault, bad[i].part)) fail_msg("\"%s\" instead of \"%s\"", fault, bad[i].part);
        assert_null(m2_mirror_fault(it.mirror)); /* told once */
        close_case(&it);
    }
}

/* Outputs of the same memory would otherwise hold what the host had there: often the right values. */
static void what_stays_unwritten_is_no_number(void **state)
{
    (void)state;
    mirror_case it;
    open_case(&it);
    add(&it, &it.y);
    it.device.add = add_all_but_the_last;
    add(&it, &it.y);
    assert_null(m2_mirror_fault(it.mirror));
    assert_false(isnan(value_at(&it.y, 31)));
    assert_true(isnan(value_at(&it.y, 32)));
    close_case(&it);
}

/* Catches a device path that hands host memory to an operator, which a GPU would read as garbage. */
static void a_guarded_device_refuses_memory_of_the_host(void **state)
{
    (void)state;
    mirror_case it;
    m2_guarded *guarded = NULL;
    m2_ops ops;
    m2_arena arena = { 0 };
    open_case(&it);
    check_ok(m2_guarded_open(NULL, &guarded));
    m2_ops_init_guarded(&ops, guarded);
    check_ok(m2_device_arena_create(&ops, &arena, "test", 4096));
    m2_tensor a = m2_tensor_make(&arena, M2_F32, 33), b = m2_tensor_make(&arena, M2_F32, 33);
    ops.upload(&ops, &a, it.a.data);
    ops.upload(&ops, &b, it.b.data);
    ops.add(&ops, &(m2_add_args){ .a = &a, .b = &b, .y = &a });
    check_ok(m2_device_wait(&ops));
    ops.add(&ops, &(m2_add_args){ .a = &a, .b = &it.b, .y = &a });
    check_fails(m2_device_wait(&ops), M2_ERR_INTERNAL, "add: b is not in the device's memory");
    ops.download(&ops, it.y.data, &a);
    assert_true(value_at(&it.y, 32) ==
                (double)(((float *)it.a.data)[32] + ((float *)it.b.data)[32]));
    m2_device_arena_destroy(&ops, &arena);
    m2_guarded_close(guarded);
    close_case(&it);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_come_back_and_in_place_too),
        cmocka_unit_test(writes_outside_of_the_outputs_are_seen),
        cmocka_unit_test(what_stays_unwritten_is_no_number),
        cmocka_unit_test(a_guarded_device_refuses_memory_of_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
