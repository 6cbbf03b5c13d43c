/* Reader of one safetensors file.
 *
 * u64 little-endian header length, a JSON header, then the values.  The header is parsed in place by
 * a parser of its own rather than into a jansson tree: a header may be 100 MB, a tree of it would
 * take many times that, and here every name costs its own bytes and one table entry.
 */
#include "io/checkpoint_parts.h"

#include <stdlib.h>
#include <string.h>

#define HEADER_BYTES_MAX 100000000u

typedef struct extent {
    uint64_t begin, end;
    int64_t tensor;
} extent;

typedef struct parser {
    m2_checkpoint *checkpoint;
    const m2_map *map;
    const unsigned char *at, *end;
    extent *extents;
    int64_t n_extents, room_extents;
} parser;

static m2_status fail_at(const parser *p, const char *what)
{
    return m2_fail(M2_ERR_FORMAT, "%s: header is not valid: byte %zu: %s", p->map->path,
                   (size_t)(p->at - p->map->data), what);
}

static void skip_space(parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\t' || *p->at == '\r'))
        p->at++;
}

/* Take `c`, spaces before it allowed; 0 if something else stands there. */
static int take(parser *p, char c)
{
    skip_space(p);
    if (p->at == p->end || *p->at != (unsigned char)c) return 0;
    p->at++;
    return 1;
}

static int hex_value(unsigned char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The four digits of \uXXXX at p->at, or -1. */
static int32_t take_hex4(parser *p)
{
    if (p->end - p->at < 4) return -1;
    int32_t code = 0;
    for (int i = 0; i < 4; i++) {
        const int digit = hex_value(p->at[i]);
        if (digit < 0) return -1;
        code = code * 16 + digit;
    }
    p->at += 4;
    return code;
}

static size_t put_utf8(char *to, uint32_t code)
{
    if (code < 0x80) {
        to[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        to[0] = (char)(0xc0 | (code >> 6));
        to[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        to[0] = (char)(0xe0 | (code >> 12));
        to[1] = (char)(0x80 | ((code >> 6) & 0x3f));
        to[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    to[0] = (char)(0xf0 | (code >> 18));
    to[1] = (char)(0x80 | ((code >> 12) & 0x3f));
    to[2] = (char)(0x80 | ((code >> 6) & 0x3f));
    to[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

/* What follows a backslash; the text of an escape is never longer than the escape. */
static m2_status take_escape(parser *p, char *to, size_t *used)
{
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    if (p->at == p->end) return fail_at(p, "a string is not closed");
    const char *letter = *p->at ? strchr(letters, *p->at) : NULL;
    if (letter) {
        to[(*used)++] = meant[letter - letters];
        p->at++;
        return M2_OK;
    }
    if (*p->at != 'u') return fail_at(p, "an escape that JSON does not know");
    p->at++;
    int32_t code = take_hex4(p);
    if (code >= 0xd800 && code < 0xdc00 && p->end - p->at >= 6 && p->at[0] == '\\' &&
        p->at[1] == 'u') {
        p->at += 2;
        const int32_t low = take_hex4(p);
        if (low < 0xdc00 || low > 0xdfff) return fail_at(p, "half a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    if (code <= 0) return fail_at(p, "a bad \\u escape");
    if (code >= 0xd800 && code <= 0xdfff) return fail_at(p, "half a surrogate pair");
    *used += put_utf8(to + *used, (uint32_t)code);
    return M2_OK;
}

/* A JSON string into memory of the checkpoint. */
static m2_status take_string(parser *p, const char **text_out)
{
    if (!take(p, '"')) return fail_at(p, "a string was expected");
    size_t room = 0;
    while (p->at + room < p->end && p->at[room] != '"')
        room += p->at[room] == '\\' && p->at + room + 1 < p->end ? 2 : 1;
    char *text = m2_ckpt_text(p->checkpoint, room + 1);
    if (!text) return m2_fail(M2_ERR_MEMORY, "%s: no memory for a name", p->map->path);
    size_t used = 0;
    for (;;) {
        if (p->at == p->end) return fail_at(p, "a string is not closed");
        const unsigned char c = *p->at;
        if (c == '"') break;
        if (c == '\\') {
            p->at++;
            M2_TRY(take_escape(p, text, &used));
            continue;
        }
        if (c < 0x20) return fail_at(p, "a control character in a string");
        const int n = m2_ckpt_utf8_bytes(p->at, (size_t)(p->end - p->at));
        if (n == 0) return fail_at(p, "a string is not UTF-8");
        memcpy(text + used, p->at, (size_t)n);
        used += (size_t)n;
        p->at += n;
    }
    p->at++;
    text[used] = '\0';
    *text_out = text;
    return M2_OK;
}

/* A JSON integer from 0 to 2^63 - 1. */
static m2_status take_size(parser *p, int64_t *value_out)
{
    skip_space(p);
    int64_t value = 0;
    const unsigned char *const start = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9') {
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *p->at - '0', &value))
            return fail_at(p, "a number of 2^63 or more");
        p->at++;
    }
    if (p->at == start) return fail_at(p, "a whole number of 0 or more was expected");
    if (*start == '0' && p->at - start > 1) return fail_at(p, "a number with a leading zero");
    *value_out = value;
    return M2_OK;
}

/* An array of at most `max` sizes. */
static m2_status take_sizes(parser *p, int64_t *values, int max, int *n_out)
{
    if (!take(p, '[')) return fail_at(p, "an array was expected");
    *n_out = 0;
    if (take(p, ']')) return M2_OK;
    do {
        if (*n_out == max) return fail_at(p, "an array is too long (shapes: 6, data_offsets: 2)");
        M2_TRY(take_size(p, &values[*n_out]));
        ++*n_out;
    } while (take(p, ','));
    return take(p, ']') ? M2_OK : fail_at(p, "',' or ']' was expected");
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(((const m2_ckpt_metadata *)a)->key, ((const m2_ckpt_metadata *)b)->key);
}

/* Of this file: the shards of one checkpoint each have a "format". */
static m2_status check_keys(const parser *p, int64_t first)
{
    m2_ckpt_metadata *const entries = p->checkpoint->metadata + first;
    const int64_t n = p->checkpoint->n_metadata - first;
    qsort(entries, (size_t)n, sizeof *entries, compare_keys);
    for (int64_t i = 1; i < n; i++)
        if (strcmp(entries[i - 1].key, entries[i].key) == 0)
            return m2_fail(M2_ERR_FORMAT, "%s: __metadata__ has '%.200s' twice", p->map->path,
                           entries[i].key);
    return M2_OK;
}

static m2_status take_metadata(parser *p)
{
    const int64_t first = p->checkpoint->n_metadata;
    m2_checkpoint *const checkpoint = p->checkpoint;
    if (!take(p, '{')) return fail_at(p, "__metadata__ is not an object");
    if (take(p, '}')) return M2_OK;
    do {
        m2_ckpt_metadata entry;
        M2_TRY(take_string(p, &entry.key));
        if (!take(p, ':')) return fail_at(p, "':' was expected");
        M2_TRY(take_string(p, &entry.value));
        void *metadata = checkpoint->metadata;
        M2_TRY(m2_ckpt_grow(&metadata, &checkpoint->room_metadata, checkpoint->n_metadata + 1,
                            sizeof entry, p->map->path));
        checkpoint->metadata = metadata;
        checkpoint->metadata[checkpoint->n_metadata++] = entry;
    } while (take(p, ','));
    return take(p, '}') ? check_keys(p, first) : fail_at(p, "',' or '}' was expected");
}

static m2_status fail_tensor(const parser *p, const char *name, const char *what)
{
    return m2_fail(M2_ERR_FORMAT, "%s: tensor '%.200s': %s", p->map->path, name, what);
}

static m2_status keep_tensor(parser *p, m2_ckpt_tensor *tensor, const int64_t *offsets)
{
    const m2_ckpt_tensor *const t = tensor;
    size_t bytes;
    if (!m2_ckpt_shape_bytes(t->shape, t->n_dims, t->dtype, &tensor->count, &bytes))
        return fail_tensor(p, t->name, "its shape has more elements than 64 bits count");
    if (offsets[1] < offsets[0])
        return fail_tensor(p, t->name, "data_offsets end before they begin");
    if ((uint64_t)(offsets[1] - offsets[0]) != bytes)
        return m2_fail(M2_ERR_FORMAT,
                       "%s: tensor '%.200s': data_offsets span %lld bytes, its type %s and shape "
                       "need %zu",
                       p->map->path, t->name, (long long)(offsets[1] - offsets[0]),
                       m2_dtype_name(t->dtype), bytes);
    int64_t row = 1;
    for (int i = t->n_dims - 1; i >= 0; i--) {
        tensor->stride[i] = row;
        row *= t->shape[i] ? t->shape[i] : 1;
    }
    void *extents = p->extents;
    M2_TRY(m2_ckpt_grow(&extents, &p->room_extents, p->n_extents + 1, sizeof *p->extents,
                        p->map->path));
    p->extents = extents;
    p->extents[p->n_extents++] =
        (extent){ (uint64_t)offsets[0], (uint64_t)offsets[1], p->checkpoint->n_tensors };
    return m2_ckpt_append(p->checkpoint, tensor);
}

static m2_status take_dtype(parser *p, m2_ckpt_tensor *tensor)
{
    const char *text;
    M2_TRY(take_string(p, &text));
    if (m2_dtype_parse(text, &tensor->dtype)) return M2_OK;
    return m2_fail(M2_ERR_FORMAT,
                   "%s: tensor '%.200s': unknown type '%.40s'; known are F32 BF16 F16 F64 I64 I32 "
                   "I16 I8 U8 BOOL",
                   p->map->path, tensor->name, text);
}

static m2_status take_tensor(parser *p, const char *name)
{
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return fail_at(p, "a tensor's name holds a control character");
    m2_ckpt_tensor tensor = { .name = name, .file = p->map->path };
    int64_t offsets[2] = { 0, 0 };
    int n_offsets = 0;
    unsigned met = 0;
    if (!take(p, '{')) return fail_tensor(p, name, "its description is not an object");
    do {
        const char *key;
        M2_TRY(take_string(p, &key));
        if (!take(p, ':')) return fail_at(p, "':' was expected");
        const unsigned which = strcmp(key, "dtype") == 0          ? 1
                               : strcmp(key, "shape") == 0        ? 2
                               : strcmp(key, "data_offsets") == 0 ? 4
                                                                  : 0;
        if (which == 0) return fail_tensor(p, name, "a field that is none of the format's three");
        if (met & which) return fail_tensor(p, name, "a field twice");
        met |= which;
        if (which == 1) M2_TRY(take_dtype(p, &tensor));
        if (which == 2) M2_TRY(take_sizes(p, tensor.shape, M2_MAX_DIMS, &tensor.n_dims));
        if (which == 4) M2_TRY(take_sizes(p, offsets, 2, &n_offsets));
    } while (take(p, ','));
    if (!take(p, '}')) return fail_at(p, "',' or '}' was expected");
    if (met != 7 || n_offsets != 2)
        return fail_tensor(p, name, "it needs dtype, shape and two data_offsets");
    return keep_tensor(p, &tensor, offsets);
}

static m2_status take_header(parser *p)
{
    int has_metadata = 0;
    if (!take(p, '{')) return fail_at(p, "'{' was expected");
    if (!take(p, '}')) {
        do {
            const char *name;
            M2_TRY(take_string(p, &name));
            if (!take(p, ':')) return fail_at(p, "':' was expected");
            if (strcmp(name, "__metadata__") != 0) {
                M2_TRY(take_tensor(p, name));
                continue;
            }
            if (has_metadata) return fail_at(p, "__metadata__ twice");
            has_metadata = 1;
            M2_TRY(take_metadata(p));
        } while (take(p, ','));
        if (!take(p, '}')) return fail_at(p, "',' or '}' was expected");
    }
    skip_space(p);
    return p->at == p->end ? M2_OK : fail_at(p, "text behind the closing '}'");
}

static int compare_extents(const void *a, const void *b)
{
    const extent *const x = a, *const y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Every byte behind the header must belong to exactly one tensor. */
static m2_status place_tensors(parser *p, const unsigned char *data, size_t data_bytes)
{
    const char *const path = p->map->path;
    const m2_ckpt_tensor *const tensors = p->checkpoint->tensors;
    uint64_t at = 0, largest = 0;
    for (int64_t i = 0; i < p->n_extents; i++)
        if (p->extents[i].end > largest) largest = p->extents[i].end;
    if (largest > data_bytes)
        return m2_fail(M2_ERR_FORMAT,
                       "%s: is %zu bytes, its header describes %llu: the file is cut short; "
                       "download it again",
                       path, p->map->bytes,
                       (unsigned long long)(p->map->bytes - data_bytes) +
                           (unsigned long long)largest);
    if (p->n_extents) qsort(p->extents, (size_t)p->n_extents, sizeof *p->extents, compare_extents);
    for (int64_t i = 0; i < p->n_extents; i++) {
        const extent *const e = &p->extents[i];
        if (e->begin != at)
            return m2_fail(M2_ERR_FORMAT,
                           "%s: tensor '%.200s' begins at byte %llu of the data, the one before it "
                           "ends at %llu: %s",
                           path, tensors[e->tensor].name, (unsigned long long)e->begin,
                           (unsigned long long)at, e->begin < at ? "they overlap" : "a hole");
        at = e->end;
        m2_ckpt_tensor *tensor = &p->checkpoint->tensors[e->tensor];
        tensor->source = data + e->begin;
        m2_ckpt_set_data(tensor);
    }
    if (at != data_bytes)
        return m2_fail(M2_ERR_FORMAT,
                       "%s: is %zu bytes, its header describes %llu: %llu bytes are left over",
                       path, p->map->bytes,
                       (unsigned long long)(p->map->bytes - data_bytes) + (unsigned long long)at,
                       (unsigned long long)(data_bytes - at));
    return M2_OK;
}

static m2_status header_length(const m2_map *map, size_t *length_out)
{
    uint64_t length = 0;
    if (map->bytes >= 8)
        for (int i = 7; i >= 0; i--) length = length << 8 | map->data[i];
    const int is_plausible =
        map->bytes >= 10 && length >= 2 && length <= map->bytes - 8 && map->data[8] == '{';
    /* Only a file that does not begin as it should is looked at for what else it might be. */
    if (!is_plausible) M2_TRY(m2_ckpt_refuse_kinds(map));
    if (map->bytes < 8)
        return m2_fail(M2_ERR_FORMAT, "%s: is %zu bytes, too short for a safetensors file",
                       map->path, map->bytes);
    if (length > HEADER_BYTES_MAX)
        return m2_fail(M2_ERR_FORMAT,
                       "%s: is not a safetensors file: it would have a header of %llu bytes, at "
                       "most %u are allowed",
                       map->path, (unsigned long long)length, HEADER_BYTES_MAX);
    if (length > map->bytes - 8)
        return m2_fail(
            M2_ERR_FORMAT,
            "%s: is %zu bytes, its header alone needs %llu: the file is cut short, or is "
            "no safetensors file",
            map->path, map->bytes, (unsigned long long)length + 8);
    *length_out = (size_t)length;
    return M2_OK;
}

m2_status m2_safetensors_add(m2_checkpoint *checkpoint, const m2_map *map)
{
    size_t length = 0;
    M2_TRY(header_length(map, &length));
    const unsigned char *const data = map->data + 8 + length;
    const int64_t first = checkpoint->n_tensors;
    parser p = { .checkpoint = checkpoint, .map = map, .at = map->data + 8, .end = data };
    int64_t *sorted = NULL;
    m2_status status = take_header(&p);
    if (status == M2_OK) status = m2_ckpt_sort_names(checkpoint, first, map->path, &sorted);
    free(sorted);
    if (status == M2_OK) status = place_tensors(&p, data, map->bytes - 8 - length);
    free(p.extents);
    return status;
}
