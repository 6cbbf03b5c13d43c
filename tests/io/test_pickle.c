/* The pickle machine, opcode by opcode: what each leaves, and that nothing else gets through. */
#include "support/check.h"

#include "io/pickle.h"

#include <stdlib.h>
#include <string.h>

#define STORE_BYTES ((size_t)1 << 16)

/* Bytes given as a string literal, which may hold zeros. */
#define LOAD(text) load(text, sizeof(text) - 1)

static m2_pickle *load(const char *text, size_t bytes)
{
    m2_pickle *pickle = NULL;
    check_ok(m2_pickle_load("test.pth", (const unsigned char *)text, bytes, STORE_BYTES, &pickle));
    return pickle;
}

#define REFUSED(text, status, part) refused(text, sizeof(text) - 1, status, part)

static void refused(const char *text, size_t bytes, m2_status status, const char *part)
{
    m2_pickle *pickle = NULL;
    check_fails(
        m2_pickle_load("test.pth", (const unsigned char *)text, bytes, STORE_BYTES, &pickle),
        status, part);
    assert_null(pickle);
}

static const m2_pickle_value *item(const m2_pickle_value *container, int64_t idx)
{
    assert_in_range(container->type, M2_PICKLE_TUPLE, M2_PICKLE_DICT);
    assert_true(idx < container->u.items->n);
    return &container->u.items->items[idx];
}

static void check_int(const m2_pickle_value *value, int64_t number)
{
    assert_int_equal(value->type, M2_PICKLE_INT);
    assert_true(value->u.number == number);
}

/* Catches signs and byte orders: LONG1 of 0, 1 and 8 bytes, BININT below zero. */
static void numbers_have_their_values(void **state)
{
    (void)state;
    m2_pickle *pickle = LOAD("\x80\x02]("
                             "K\xff"
                             "M\x34\x12"
                             "J\xfe\xff\xff\xff"
                             "\x8a\x00"
                             "\x8a\x01\x80"
                             "\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80"
                             "\x8b\x02\x00\x00\x00\xff\x00"
                             "\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00"
                             "G\x3f\xf0\x00\x00\x00\x00\x00\x00"
                             "\x88\x89Ne.");
    const m2_pickle_value *top = m2_pickle_top(pickle);
    assert_int_equal(top->type, M2_PICKLE_LIST);
    assert_int_equal(top->u.items->n, 12);
    check_int(item(top, 0), 255);
    check_int(item(top, 1), 0x1234);
    check_int(item(top, 2), -2);
    check_int(item(top, 3), 0);
    check_int(item(top, 4), -128);
    check_int(item(top, 5), INT64_MIN);
    check_int(item(top, 6), 255);
    assert_int_equal(item(top, 7)->type, M2_PICKLE_OPAQUE);
    assert_int_equal(item(top, 8)->type, M2_PICKLE_FLOAT);
    assert_true(item(top, 9)->type == M2_PICKLE_BOOL && item(top, 9)->u.number == 1);
    assert_true(item(top, 10)->type == M2_PICKLE_BOOL && item(top, 10)->u.number == 0);
    assert_int_equal(item(top, 11)->type, M2_PICKLE_NONE);
    m2_pickle_free(pickle);
}

static void check_text(const m2_pickle_value *value, const char *text)
{
    assert_int_equal(value->type, M2_PICKLE_TEXT);
    assert_int_equal(value->n_text, strlen(text));
    assert_memory_equal(value->u.text, text, value->n_text);
}

static void texts_and_bytes_of_every_length_field(void **state)
{
    (void)state;
    m2_pickle *pickle = LOAD("\x80\x05("
                             "X\x02\x00\x00\x00"
                             "ab"
                             "\x8c\x01"
                             "c"
                             "\x8d\x01\x00\x00\x00\x00\x00\x00\x00"
                             "d"
                             "T\x01\x00\x00\x00"
                             "e"
                             "U\x01"
                             "f"
                             "B\x01\x00\x00\x00"
                             "g"
                             "C\x01"
                             "h"
                             "\x8e\x01\x00\x00\x00\x00\x00\x00\x00"
                             "i"
                             "\x96\x01\x00\x00\x00\x00\x00\x00\x00"
                             "j"
                             "t.");
    const m2_pickle_value *top = m2_pickle_top(pickle);
    assert_int_equal(top->u.items->n, 9);
    check_text(item(top, 0), "ab");
    check_text(item(top, 1), "c");
    check_text(item(top, 2), "d");
    check_text(item(top, 3), "e");
    check_text(item(top, 4), "f");
    for (int i = 5; i < 9; i++) assert_int_equal(item(top, i)->type, M2_PICKLE_OPAQUE);
    m2_pickle_free(pickle);
}

/* Each way to make a container, and values added through the memo to one that was put away. */
static void containers_hold_what_was_added(void **state)
{
    (void)state;
    m2_pickle *pickle = LOAD("\x80\x02("
                             "}q\x00(K\x01K\x02K\x03K\x04uK\x05K\x06s" /* dict of three        */
                             "]K\x07"
                             "a(K\x08K\x09"
                             "e" /* list of three        */
                             "(K\x0a"
                             "l" /* LIST                 */
                             "(K\x0bK\x0c"
                             "d" /* DICT                 */
                             "K\x0d\x85K\x0eK\x0f\x86K\x10K\x11K\x12\x87)" /* tuples           */
                             "h\x00K\x13K\x14s0"        /* to the first dict    */
                             "\x8f(K\x01\x90(K\x02\x91" /* sets                 */
                             "K\x15"
                             "2" /* twice                */
                             "((K\x16"
                             "10" /* marks popped         */
                             "t.");
    const m2_pickle_value *top = m2_pickle_top(pickle);
    assert_int_equal(top->u.items->n, 12);
    const m2_pickle_value *dict = item(top, 0);
    assert_int_equal(dict->type, M2_PICKLE_DICT);
    assert_int_equal(dict->u.items->n, 8);
    for (int i = 0; i < 6; i++) check_int(item(dict, i), i + 1);
    check_int(item(dict, 6), 0x13);
    check_int(item(dict, 7), 0x14);
    for (int i = 0; i < 3; i++) check_int(item(item(top, 1), i), 7 + i);
    assert_int_equal(item(top, 2)->type, M2_PICKLE_LIST);
    check_int(item(item(top, 2), 0), 10);
    assert_int_equal(item(top, 3)->type, M2_PICKLE_DICT);
    check_int(item(item(top, 3), 1), 12);
    check_int(item(item(top, 4), 0), 13);
    check_int(item(item(top, 5), 1), 15);
    check_int(item(item(top, 6), 2), 18);
    assert_int_equal(item(top, 7)->u.items->n, 0);
    assert_int_equal(item(top, 8)->type, M2_PICKLE_OPAQUE);
    assert_int_equal(item(top, 9)->type, M2_PICKLE_OPAQUE);
    check_int(item(top, 10), 0x15);
    check_int(item(top, 11), 0x15);
    m2_pickle_free(pickle);
}

/* The memo's three ways in and two ways out. */
static void memo_gives_back_what_was_put(void **state)
{
    (void)state;
    m2_pickle *pickle = LOAD("\x80\x04(K\x01q\x00K\x02r\x01\x00\x00\x00K\x03\x94"
                             "h\x00j\x01\x00\x00\x00h\x02t.");
    for (int i = 0; i < 6; i++) check_int(item(m2_pickle_top(pickle), i), i % 3 + 1);
    m2_pickle_free(pickle);
    REFUSED("\x80\x02h\x00.", M2_ERR_FORMAT, "not filled");
    REFUSED("\x80\x02K\x01q\x05h\x04.", M2_ERR_FORMAT, "not filled");
}

/* Dicts that are made by calls, as OrderedDict and defaultdict are. */
static void known_dicts_are_dicts(void **state)
{
    (void)state;
    m2_pickle *pickle = LOAD("\x80\x02("
                             "ccollections\nOrderedDict\nq\x00)R"
                             "h\x00](K\x01K\x02\x86](K\x03K\x04"
                             "ee\x85R"    /* from pairs */
                             "h\x00)\x81" /* NEWOBJ     */
                             "ccollections\ndefaultdict\nc__builtin__\nlist\n\x85RK\x05K\x06s"
                             "t.");
    const m2_pickle_value *top = m2_pickle_top(pickle);
    for (int i = 0; i < 4; i++) assert_int_equal(item(top, i)->type, M2_PICKLE_DICT);
    assert_int_equal(item(top, 0)->u.items->n, 0);
    for (int i = 0; i < 4; i++) check_int(item(item(top, 1), i), i + 1);
    check_int(item(item(top, 3), 1), 6);
    char text[10];
    assert_int_equal(m2_pickle_n_opaque(pickle, text, sizeof text), 0);
    m2_pickle_free(pickle);
    REFUSED("\x80\x02"
            "ccollections\nOrderedDict\nK\x01\x85R.",
            M2_ERR_FORMAT, "made from pairs");
    REFUSED("\x80\x02"
            "ccollections\nOrderedDict\n]K\x01"
            "a\x85R.",
            M2_ERR_FORMAT, "from pairs");
}

/* Everything else stays unknown, whatever is done with it, and is counted by its class. */
static void unknown_classes_become_opaque(void **state)
{
    (void)state;
    m2_pickle *pickle = LOAD("\x80\x04("
                             "cposix\nsystem\nX\x01\x00\x00\x00x\x85R" /* REDUCE             */
                             "ca\nb\n)\x81}b"                          /* NEWOBJ, BUILD      */
                             "ca\nb\n)}\x92"                           /* NEWOBJ_EX          */
                             "(ca\nb\nK\x01oK\x02K\x03s"               /* OBJ, SETITEM on it */
                             "\x8c\x01"
                             "c\x8c\x01"
                             "d\x93)R"           /* STACK_GLOBAL       */
                             "ca\nb\nca\nb\n)RR" /* opaque arguments   */
                             "t.");
    const m2_pickle_value *top = m2_pickle_top(pickle);
    char text[40];
    assert_int_equal(top->u.items->n, 6);
    for (int i = 0; i < 6; i++) assert_int_equal(item(top, i)->type, M2_PICKLE_OPAQUE);
    assert_int_equal(m2_pickle_n_opaque(pickle, text, sizeof text), 7);
    assert_string_equal(text, "posix.system");
    m2_pickle_free(pickle);
    pickle = LOAD("\x80\x02"
                  "ca\x1b[2J\nb\n)R.");
    m2_pickle_n_opaque(pickle, text, sizeof text);
    assert_string_equal(text, "a?[2J.b");
    m2_pickle_free(pickle);
}

#define STORAGE                                                                                    \
    "(X\x07\x00\x00\x00storagectorch\nHalfStorage\nX\x01\x00\x00\x00"                              \
    "5X\x03\x00\x00\x00"                                                                           \
    "cpuK\x0ctQ"

static void tensors_have_storage_offset_size_and_stride(void **state)
{
    (void)state;
    m2_pickle *pickle =
        LOAD("\x80\x02"
             "ctorch._utils\n_rebuild_tensor_v2\n(" STORAGE "K\x03K\x02K\x04\x86K\x01K\x02\x86\x89"
             "ccollections\nOrderedDict\n)RtR.");
    const m2_pickle_value *top = m2_pickle_top(pickle);
    assert_int_equal(top->type, M2_PICKLE_TENSOR);
    const m2_pickle_tensor *tensor = top->u.tensor;
    assert_int_equal(tensor->storage->dtype, M2_F16);
    assert_int_equal(tensor->storage->n_elems, 12);
    assert_int_equal(tensor->storage->key_bytes, 1);
    assert_int_equal(tensor->storage->key[0], '5');
    assert_int_equal(tensor->offset, 3);
    assert_int_equal(tensor->n_dims, 2);
    assert_int_equal(tensor->shape[1], 4);
    assert_int_equal(tensor->stride[1], 2);
    m2_pickle_free(pickle);
    REFUSED("\x80\x02"
            "ctorch._utils\n_rebuild_tensor_v2\n(" STORAGE "K\x03NNtR.",
            M2_ERR_FORMAT, "without storage");
    REFUSED("\x80\x02"
            "ctorch._utils\n_rebuild_tensor_v2\n)R.",
            M2_ERR_FORMAT, "without storage");
}

static void broken_pickles_are_refused(void **state)
{
    (void)state;
    REFUSED("\x80\x02(Kd.", M2_ERR_FORMAT, "left over");
    REFUSED("\x80\x02K", M2_ERR_FORMAT, "ends within");
    REFUSED("\x80\x02(K\x01"
            "d.",
            M2_ERR_FORMAT, "key without value");
    REFUSED("\x80\x02(o.", M2_ERR_FORMAT, "object without class");
    REFUSED("\x80\x02K\x01K\x02\x93.", M2_ERR_FORMAT, "no text");
    REFUSED("\x80\x02"
            "cabc",
            M2_ERR_FORMAT, "ends within a name");
    REFUSED("\x80\x02"
            "1.",
            M2_ERR_FORMAT, "no mark");
    REFUSED("\x80\x02"
            "0.",
            M2_ERR_FORMAT, "no value");
    REFUSED("\x80\x02"
            "2.",
            M2_ERR_FORMAT, "no value");
    REFUSED("\x80\x02q\x00.", M2_ERR_FORMAT, "no value");
    REFUSED("\x80\x02)b.", M2_ERR_FORMAT, "no value");
    REFUSED("\x80\x02.", M2_ERR_FORMAT, "no value");
    REFUSED("\x80\x02I1\n.", M2_ERR_UNSUPPORTED, "opcode 0x49");
    REFUSED("\x80\x05\x97.", M2_ERR_UNSUPPORTED, "opcode 0x97");
    /* A tuple of more values than the store has room for. */
    const size_t n = 20000;
    char *text = malloc(n);
    memset(text, 'N', n);
    memcpy(text, "\x80\x02(", 3);
    memcpy(text + n - 2, "t.", 2);
    refused(text, n, M2_ERR_FORMAT, "far more values");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_have_their_values),
        cmocka_unit_test(texts_and_bytes_of_every_length_field),
        cmocka_unit_test(containers_hold_what_was_added),
        cmocka_unit_test(memo_gives_back_what_was_put),
        cmocka_unit_test(known_dicts_are_dicts),
        cmocka_unit_test(unknown_classes_become_opaque),
        cmocka_unit_test(tensors_have_storage_offset_size_and_stride),
        cmocka_unit_test(broken_pickles_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
