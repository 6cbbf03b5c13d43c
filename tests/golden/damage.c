#include "golden/damage.h"

#include "io/checkpoint.h"
#include "support/check.h"
#include "support/files.h"

#include <ctype.h>
#include <jansson.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char place_name[512];

static int ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static int holds_tensors(const char *path)
{
    return ends_with(path, ".safetensors") || ends_with(path, ".pth") || ends_with(path, ".ckpt");
}

/* Repeatable, and another for each place. */
static uint64_t hash_of(const char *text)
{
    uint64_t hash = 14695981039346656037u;
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    return hash >> 7;
}

/* ---- tensors ---- */

static const m2_ckpt_tensor *tensor_at(const m2_checkpoint *checkpoint, int64_t idx, int64_t *n_out)
{
    *n_out = 0;
    for (int64_t i = 0; i < m2_checkpoint_n_tensors(checkpoint); i++) {
        const m2_ckpt_tensor *tensor = m2_checkpoint_at(checkpoint, i);
        if (tensor->count == 0 || !tensor->data) continue; /* a view that lies scattered */
        if ((*n_out)++ == idx) return tensor;
    }
    return NULL;
}

/* Where the values of a tensor begin: by the header, or, in a torch file, where they are found; 0 if
 * they stand there more than once. */
static size_t offset_of(const char *bytes, size_t n, const m2_ckpt_tensor *tensor, int is_torch)
{
    size_t at = 0;
    if (!is_torch) {
        uint64_t length;
        memcpy(&length, bytes, sizeof length);
        json_t *header = json_loadb(bytes + 8, length, 0, NULL);
        const json_t *offsets =
            json_object_get(json_object_get(header, tensor->name), "data_offsets");
        assert_int_equal(json_array_size(offsets), 2);
        at = 8 + length + (size_t)json_integer_value(json_array_get(offsets, 0));
        json_decref(header);
        return at;
    }
    const size_t length = (size_t)tensor->count * m2_dtype_bytes(tensor->dtype);
    const char *found = memmem(bytes, n, tensor->data, length);
    if (!found) fail_msg("the values of %s are not in the file as they are", tensor->name);
    at = (size_t)(found - bytes);
    return memmem(found + 1, n - at - 1, tensor->data, length) ? 0 : at;
}

/* The highest bit but one of the last byte: a float from 0 to 2 becomes a huge number, where one
 * that is far below zero may have as little weight as before.  Without such a float one becomes huge. */
static void flip_high_bit(char *values, int64_t count, size_t size, m2_dtype dtype, uint64_t hash)
{
    const int is_byte = dtype == M2_U8 || dtype == M2_BOOL;
    const int is_float = dtype == M2_F32 || dtype == M2_BF16 || dtype == M2_F16 || dtype == M2_F64;
    for (int64_t i = 0; i < count; i++) {
        char *last = values + ((size_t)((hash + (uint64_t)i) % (uint64_t)count) + 1) * size - 1;
        if (!is_byte && *last & 0xc0) continue;
        *last ^= (char)(is_byte ? 0x80 : 0x40);
        return;
    }
    char *last = values + ((size_t)(hash % (uint64_t)count) + 1) * size - 1;
    *last = (char)(is_float ? 0x60 : *last ^ 0x40);
}

static int write_tensors(const char *path, const char *to, int64_t idx)
{
    size_t n;
    int64_t n_tensors;
    char *bytes = m2_test_read_file(path, &n);
    m2_checkpoint *checkpoint = NULL;
    check_ok(m2_checkpoint_open(path, &checkpoint));
    const m2_ckpt_tensor *tensor = tensor_at(checkpoint, idx, &n_tensors);
    assert_non_null(tensor);
    const int is_torch = !ends_with(path, ".safetensors");
    const size_t at = offset_of(bytes, n, tensor, is_torch);
    if (is_torch) m2_test_zip_forget_sums(bytes, n); /* the value is to be judged, not the sum */
    snprintf(place_name, sizeof place_name, "%s", tensor->name);
    if (at > 0)
        flip_high_bit(bytes + at, tensor->count, m2_dtype_bytes(tensor->dtype), tensor->dtype,
                      hash_of(tensor->name));
    m2_test_write_file(to, bytes, n);
    m2_checkpoint_close(checkpoint);
    free(bytes);
    return at > 0;
}

/* ---- JSON ---- */

typedef struct json_walk {
    int64_t n, wanted; /* places seen; the one to change, or -1 */
    int wants_strings;
} json_walk;

/* A letter or digit of the string becomes another one of its kind. */
static void change_string(json_t *value)
{
    char *text = strdup(json_string_value(value));
    const size_t length = json_string_length(value);
    assert_non_null(text);
    size_t at = length;
    while (at > 0 && !isalnum((unsigned char)text[at - 1])) at--;
    if (at > 0)
        text[at - 1] = text[at - 1] == '1' ? '2' : isdigit((unsigned char)text[at - 1]) ? '1' : 'q';
    if (at > 0 && strcmp(text, json_string_value(value)) == 0) text[at - 1] = 'x';
    json_string_set(value, at > 0 ? text : "changed");
    free(text);
}

static void change(json_t *value)
{
    const double number = json_number_value(value);
    if (json_is_integer(value)) json_integer_set(value, json_integer_value(value) + 1);
    if (json_is_real(value)) json_real_set(value, number == 0 ? 1 : number * 8);
    if (json_is_string(value)) change_string(value);
}

static void walk(json_walk *state, json_t *value, const char *way)
{
    char below[sizeof place_name];
    const char *key;
    json_t *child;
    size_t i;
    if (json_is_object(value)) {
        json_object_foreach(value, key, child)
        {
            snprintf(below, sizeof below, "%s.%.80s", way, key);
            walk(state, child, below);
        }
    } else if (json_is_array(value)) {
        json_array_foreach(value, i, child)
        {
            /* Rows of a report are named by what they are about. */
            const char *name = json_string_value(json_object_get(child, "case"));
            const char *tensor = json_string_value(json_object_get(child, "tensor"));
            if (name && tensor)
                snprintf(below, sizeof below, "%s.%.80s %.80s", way, name, tensor);
            else
                snprintf(below, sizeof below, "%s.%zu", way, i);
            walk(state, child, below);
        }
    } else if (json_is_number(value) || (state->wants_strings && json_is_string(value))) {
        if (state->n++ != state->wanted) return;
        snprintf(place_name, sizeof place_name, "%s", way + (*way == '.'));
        change(value);
    }
}

static json_t *load_json(const char *path)
{
    json_error_t error;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &error);
    if (!root) fail_msg("%s: %s", path, error.text);
    return root;
}

static int64_t walk_file(json_t *root, int64_t wanted)
{
    json_walk state = { .wanted = -1 };
    walk(&state, root, "");
    state = (json_walk){ .wanted = wanted, .wants_strings = state.n == 0 };
    walk(&state, root, "");
    return state.n;
}

static void write_json(const char *path, const char *to, int64_t idx)
{
    json_t *root = load_json(path);
    assert_true(walk_file(root, idx) > idx);
    assert_int_equal(json_dump_file(root, to, JSON_INDENT(1)), 0);
    json_decref(root);
}

/* ---- lines ---- */

/* One of a line's expected values; 0 if it expects nothing. */
static int change_line(json_t *line, uint64_t hash)
{
    static const char *const keys[] = { "ids",         "offsets",  "pieces", "normalized",
                                        "with_figure", "expected", "figures" };
    const size_t n_keys = sizeof keys / sizeof keys[0];
    json_t *value = NULL;
    size_t k = hash % n_keys;
    for (size_t i = 0; i < n_keys; i++, k = (k + 1) % n_keys) {
        value = json_object_get(line, keys[k]);
        if (json_is_string(value) || json_array_size(value) > 0 || json_object_size(value) > 0)
            break;
        value = NULL;
    }
    if (!value) return 0;
    const size_t length = strlen(place_name);
    snprintf(place_name + length, sizeof place_name - length, " %s", keys[k]);
    while (json_is_array(value) || json_is_object(value)) {
        if (json_is_object(value)) value = json_object_iter_value(json_object_iter(value));
        const size_t n = json_array_size(value);
        if (json_is_array(value) && n == 0) fail_msg("%s: nothing to change", place_name);
        if (json_is_array(value)) value = json_array_get(value, hash / 16 % n);
    }
    change(value);
    return 1;
}

static int write_lines(const char *path, const char *to, int64_t idx)
{
    size_t n;
    char *text = m2_test_read_file(path, &n), *line = text;
    for (int64_t i = 0; i < idx; i++) line = strchr(line, '\n') + 1;
    char *end = strchr(line, '\n');
    if (!end) end = text + n;
    json_t *value = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, NULL);
    assert_non_null(value);
    snprintf(place_name, sizeof place_name, "line %lld", (long long)idx + 1);
    char key[600];
    snprintf(key, sizeof key, "%s %lld", path, (long long)idx);
    json_t *before = json_deep_copy(value);
    const int is_changed = change_line(value, hash_of(key)) && !json_equal(before, value);
    json_decref(before);
    char *changed = json_dumps(value, JSON_COMPACT);
    FILE *file = fopen(to, "wb");
    assert_true(changed && file);
    fwrite(text, 1, (size_t)(line - text), file);
    fwrite(changed, 1, strlen(changed), file);
    fwrite(end, 1, (size_t)(text + n - end), file);
    assert_int_equal(fclose(file), 0);
    free(changed);
    json_decref(value);
    free(text);
    return is_changed;
}

static int64_t n_lines(const char *path)
{
    size_t n;
    int64_t lines = 0;
    char *text = m2_test_read_file(path, &n);
    for (size_t i = 0; i < n; i++) lines += text[i] == '\n' || i + 1 == n;
    free(text);
    return lines;
}

/* ---- pictures ---- */

/* A block of 8 x 8 pixels, inverted. */
static void write_picture(const char *path, const char *to)
{
    png_image image = { .version = PNG_IMAGE_VERSION };
    assert_true(png_image_begin_read_from_file(&image, path));
    image.format = PNG_FORMAT_RGB;
    uint8_t *pixels = malloc(PNG_IMAGE_SIZE(image));
    assert_non_null(pixels);
    assert_true(png_image_finish_read(&image, NULL, pixels, 0, NULL));
    for (size_t y = 0; y < 8; y++) {
        const size_t row = (image.height / 2 + y) * image.width + image.width / 2;
        for (size_t i = row * 3; i < (row + 8) * 3; i++) pixels[i] ^= 0xff;
    }
    assert_true(png_image_write_to_file(&image, to, 0, pixels, 0, NULL));
    free(pixels);
    snprintf(place_name, sizeof place_name, "pixels");
}

/* ---- any file ---- */

int64_t damage_n_places(const char *path)
{
    int64_t n = 0;
    if (holds_tensors(path)) {
        m2_checkpoint *checkpoint = NULL;
        check_ok(m2_checkpoint_open(path, &checkpoint));
        tensor_at(checkpoint, -1, &n);
        m2_checkpoint_close(checkpoint);
    } else if (ends_with(path, ".jsonl")) {
        n = n_lines(path);
    } else if (ends_with(path, ".json")) {
        json_t *root = load_json(path);
        n = walk_file(root, -1);
        json_decref(root);
    } else if (ends_with(path, ".png")) {
        n = 1;
    }
    return n;
}

const char *damage_write(const char *path, const char *to, int64_t idx)
{
    int is_changed = 1;
    if (holds_tensors(path))
        is_changed = write_tensors(path, to, idx);
    else if (ends_with(path, ".jsonl"))
        is_changed = write_lines(path, to, idx);
    else if (ends_with(path, ".json"))
        write_json(path, to, idx);
    else
        write_picture(path, to);
    return is_changed ? place_name : NULL;
}

void damage_add_entry(const char *path, const char *to)
{
    size_t n;
    char *bytes = m2_test_read_file(path, &n);
    uint64_t length = 0;
    memcpy(&length, bytes, sizeof length);
    json_t *header = json_loadb(bytes + 8, length, 0, NULL);
    const size_t data = n - 8 - length;
    assert_non_null(header);
    json_object_set_new(header, "stranger",
                        json_pack("{s:s, s:[i], s:[I,I]}", "dtype", "F32", "shape", 1,
                                  "data_offsets", (json_int_t)data, (json_int_t)data + 4));
    char *text = json_dumps(header, JSON_COMPACT);
    assert_non_null(text);
    /* Padded so that the data stay aligned. */
    const uint64_t text_length = strlen(text), padded = (text_length + 7) / 8 * 8;
    char *all = malloc(8 + padded + data + 4);
    assert_non_null(all);
    memcpy(all, &padded, 8);
    memset(all + 8, ' ', padded);
    memcpy(all + 8, text, text_length);
    memcpy(all + 8 + padded, bytes + 8 + length, data);
    memset(all + 8 + padded + data, 0, 4);
    m2_test_write_file(to, all, 8 + padded + data + 4);
    free(all);
    free(text);
    json_decref(header);
    free(bytes);
}
