/* Torch checkpoints: the tensors of every protocol and zip dialect, and files to be refused. */
#include "support/check.h"
#include "support/files.h"

#include "io/checkpoint.h"
#include "io/json_file.h"
#include "io/zip.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check_same_tensors(const char *path, const char *plain_path)
{
    m2_checkpoint *torch = NULL, *plain = NULL;
    check_ok(m2_checkpoint_open(path, &torch));
    check_ok(m2_checkpoint_open(plain_path, &plain));
    if (m2_checkpoint_n_tensors(torch) != m2_checkpoint_n_tensors(plain))
        fail_msg("%s: holds %d tensors", path, (int)m2_checkpoint_n_tensors(torch));
    for (int64_t i = 0; i < m2_checkpoint_n_tensors(plain); i++) {
        const m2_ckpt_tensor *expected = m2_checkpoint_at(plain, i);
        const m2_ckpt_tensor *ours = m2_checkpoint_find(torch, expected->name);
        if (!ours) fail_msg("%s: '%s' is missing", path, expected->name);
        assert_int_equal(ours->dtype, expected->dtype);
        assert_int_equal(ours->n_dims, expected->n_dims);
        for (int d = 0; d < ours->n_dims; d++) assert_int_equal(ours->shape[d], expected->shape[d]);
        const size_t bytes = (size_t)ours->count * m2_dtype_bytes(ours->dtype);
        void *values = calloc(1, bytes + 8), *wanted = calloc(1, bytes + 8);
        m2_checkpoint_read(ours, ours->dtype, values);
        m2_checkpoint_read(expected, expected->dtype, wanted);
        if (memcmp(values, wanted, bytes) != 0) fail_msg("%s: '%s' differs", path, expected->name);
        if (ours->data && memcmp(ours->data, wanted, bytes) != 0)
            fail_msg("%s: '%s': mapped data differ", path, expected->name);
        free(values);
        free(wanted);
    }
    m2_checkpoint_close(torch);
    m2_checkpoint_close(plain);
}

/* Catches: strides or offsets ignored, storages mixed up, local header sizes believed, zip64 fields
 * taken in the wrong order, protocol 4's framing or memo missing. */
static void tensors_are_the_same_in_every_dialect(void **state)
{
    (void)state;
    static const char *const files[] = {
        "fixtures/torch/protocol2.pth", "fixtures/torch/protocol3.pth",
        "fixtures/torch/protocol4.pth", "fixtures/torch/protocol5.pth",
        "fixtures/torch/streamed.pth",  "fixtures/torch/zip64.pth",
        "checkpoint/tensors.pth"
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char *dir = strdup(m2_test_path("data"));
        char *path = m2_test_join(dir, files[i]);
        char *plain = m2_test_join(dir, i < 6 ? "fixtures/torch/tensors.safetensors"
                                              : "checkpoint/tensors.safetensors");
        check_same_tensors(path, plain);
        free(plain);
        free(path);
        free(dir);
    }
}

/* Each listed file is refused with a message that names it and the fact, or, where the list allows
 * it, read without what it would run. */
static void check_list(const char *folder)
{
    char *dir = strdup(m2_test_path(folder));
    char *list = m2_test_join(dir, "bad.json"), *plain = m2_test_join(dir, "tensors.safetensors");
    json_t *root = NULL, *entry;
    size_t i;
    check_ok(m2_json_load(list, 1 << 20, &root));
    assert_true(json_array_size(json_object_get(root, "files")) > 0);
    json_array_foreach(json_object_get(root, "files"), i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "file"));
        const char *part = json_string_value(json_object_get(entry, "says"));
        char *path = m2_test_join(dir, name);
        m2_checkpoint *checkpoint = NULL;
        m2_clear_error();
        if (m2_checkpoint_open(path, &checkpoint) == M2_OK) {
            m2_checkpoint_close(checkpoint);
            if (strcmp(json_string_value(json_object_get(entry, "must")), "refuse the file") == 0)
                fail_msg("%s is read", name);
            check_same_tensors(path, plain);
        } else if (!strstr(m2_last_error(), path) || !strstr(m2_last_error(), part ? part : "")) {
            fail_msg("%s: the message lacks its path or '%s': %s", name, part ? part : "",
                     m2_last_error());
        }
        free(path);
    }
    json_decref(root);
    free(plain);
    free(list);
    free(dir);
}

static void broken_files_are_refused_by_name(void **state)
{
    (void)state;
    check_list("data/checkpoint/bad");
    check_list("data/fixtures/torch/bad");
}

/* A zip file with one stored entry, archive/data.pkl. */
static void write_zip(const char *path, const unsigned char *pickle, size_t n)
{
    static const char name[] = "archive/data.pkl";
    enum { NAME = sizeof name - 1, LOCAL = 30 + NAME, RECORD = 46 + NAME };
    unsigned char *bytes = calloc(1, n + LOCAL + RECORD + 22), *at = bytes;
    assert_non_null(bytes);
    memcpy(at, "PK\3\4", 4);
    at[26] = NAME;
    memcpy(at + 30, name, NAME);
    memcpy(at + LOCAL, pickle, n);
    at += LOCAL + n;
    memcpy(at, "PK\1\2", 4);
    for (int i = 0; i < 4; i++) at[20 + i] = at[24 + i] = (unsigned char)(n >> (8 * i));
    at[28] = NAME;
    memcpy(at + 46, name, NAME);
    at += RECORD;
    memcpy(at, "PK\5\6", 4);
    at[8] = at[10] = 1;
    at[12] = RECORD;
    for (int i = 0; i < 4; i++) at[16 + i] = (unsigned char)((LOCAL + n) >> (8 * i));
    m2_test_write_file(path, bytes, n + LOCAL + RECORD + 22);
    free(bytes);
}

/* A pickle of one megabyte can ask for a hundred: it must be refused while small. */
static void pickle_that_asks_for_much_memory_is_refused(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    char *dir = m2_test_make_dir(), *path = m2_test_join(dir, "checkpoint.ckpt");
    unsigned char *pickle = malloc(N);
    assert_non_null(pickle);
    static const unsigned char fillers[] = { '}', ']', '(', 'N', ')', 0x94 };
    for (size_t i = 0; i < sizeof fillers; i++) {
        memset(pickle, fillers[i], N);
        memcpy(pickle, "\x80\x04N", 3);
        write_zip(path, pickle, N);
        m2_checkpoint *checkpoint = NULL;
        check_fails(m2_checkpoint_open(path, &checkpoint), M2_ERR_FORMAT, "far more values");
    }
    free(pickle);
    free(path);
    m2_test_remove_tree(dir);
}

/* Opening must survive the loss of any tail of a good file: a download stops anywhere. */
static void file_cut_anywhere_is_refused(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir(), *path = m2_test_join(dir, "checkpoint.ckpt");
    size_t n;
    char *bytes = m2_test_read_file(m2_test_path("data/fixtures/torch/zip64.pth"), &n);
    for (size_t cut = 0; cut < n; cut += cut < n - 200 ? 37 : 1) {
        m2_test_write_file(path, bytes, cut);
        m2_checkpoint *checkpoint = NULL;
        if (m2_checkpoint_open(path, &checkpoint) == M2_OK) fail_msg("%zu of %zu bytes do", cut, n);
    }
    free(bytes);
    free(path);
    m2_test_remove_tree(dir);
}

/* One bit of each value file and of the pickle is flipped in turn.  Catches sums that are not looked
 * at, looked at for some entries alone, or taken over less than the whole entry; and a sum that the
 * writer left out taken for a wrong one. */
static void an_entry_with_a_flipped_bit_is_refused_by_name(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir(), *path = m2_test_join(dir, "checkpoint.pth");
    size_t n;
    char *bytes = m2_test_read_file(m2_test_path("data/fixtures/torch/protocol2.pth"), &n);
    m2_test_write_file(path, bytes, n);
    m2_map *map = NULL;
    m2_zip zip;
    check_ok(m2_map_open(path, &map));
    check_ok(m2_zip_read(map, &zip));
    char *damaged = m2_test_join(dir, "damaged.pth");
    char *plain = strdup(m2_test_path("data/fixtures/torch/tensors.safetensors"));
    int n_damaged = 0;
    for (int64_t i = 0; i < zip.n_entries; i++) {
        const m2_zip_entry *entry = &zip.entries[i];
        const unsigned char *data;
        char name[64];
        snprintf(name, sizeof name, "'%.*s' is damaged", (int)entry->name_bytes, entry->name);
        if (!strstr(name, "/data/") && !strstr(name, "/data.pkl'")) continue;
        if (entry->bytes == 0) continue;
        check_ok(m2_zip_bytes(&zip, entry, &data));
        const size_t at[] = { 0, entry->bytes / 2, entry->bytes - 1 };
        char *const crc = bytes + ((const unsigned char *)entry->name - map->data) - 46 + 16;
        for (int k = 0; k < 3; k++) {
            char *value = bytes + (data - map->data) + at[k];
            m2_checkpoint *checkpoint = NULL;
            *value ^= 4;
            m2_test_write_file(damaged, bytes, n);
            const m2_status status = m2_checkpoint_open(damaged, &checkpoint);
            *value ^= 4;
            if (status == M2_OK) { /* no tensor lies in it */
                m2_checkpoint_close(checkpoint);
                check_same_tensors(damaged, plain);
                continue;
            }
            check_fails(status, M2_ERR_FORMAT, name);
            assert_non_null(strstr(m2_last_error(), damaged));
            n_damaged++;
        }
        if (strstr(name, ".pkl")) continue;
        char kept[4];
        memcpy(kept, crc, 4);
        memset(crc, 0, 4);
        bytes[data - map->data] ^= 4;
        m2_test_write_file(damaged, bytes, n);
        m2_checkpoint *checkpoint = NULL;
        check_ok(m2_checkpoint_open(damaged, &checkpoint));
        m2_checkpoint_close(checkpoint);
        bytes[data - map->data] ^= 4;
        memcpy(crc, kept, 4);
    }
    assert_true(n_damaged > 3 * 8); /* data.pkl and most of the storages */
    free(damaged);
    free(plain);
    m2_zip_free(&zip);
    m2_map_close(map);
    free(bytes);
    free(path);
    m2_test_remove_tree(dir);
}

/* What a loader asks before it takes "ema_state_dict/..." rather than "state_dict/...". */
static void prefixes_are_found(void **state)
{
    (void)state;
    m2_checkpoint *checkpoint = NULL;
    check_ok(m2_checkpoint_open(m2_test_path("data/fixtures/torch/protocol2.pth"), &checkpoint));
    assert_true(m2_checkpoint_has_prefix(checkpoint, "outer/"));
    assert_true(m2_checkpoint_has_prefix(checkpoint, "outer/7/1"));
    assert_true(m2_checkpoint_has_prefix(checkpoint, "all."));
    assert_true(m2_checkpoint_has_prefix(checkpoint, ""));
    assert_false(m2_checkpoint_has_prefix(checkpoint, "outer/7/2"));
    assert_false(m2_checkpoint_has_prefix(checkpoint, "zzz"));
    assert_false(m2_checkpoint_has_prefix(checkpoint, "aaa"));
    m2_checkpoint_close(checkpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_the_same_in_every_dialect),
        cmocka_unit_test(broken_files_are_refused_by_name),
        cmocka_unit_test(pickle_that_asks_for_much_memory_is_refused),
        cmocka_unit_test(file_cut_anywhere_is_refused),
        cmocka_unit_test(an_entry_with_a_flipped_bit_is_refused_by_name),
        cmocka_unit_test(prefixes_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
