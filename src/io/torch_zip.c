/* Reader of torch.save's zip files: ROOT/data.pkl says which tensors there are, ROOT/data/KEY holds
 * the bytes of each storage, used in place.
 *
 * Tensors may share a storage and see it through any offset and strides; every view is checked
 * against its storage, every storage against its entry.
 */
#include "io/checkpoint_parts.h"

#include "core/log.h"
#include "io/pickle.h"
#include "io/zip.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES_MAX 1024
#define DEPTH_MAX      32
#define VISITS_MAX     4000000
#define MEBIBYTE       ((size_t)1 << 20)

typedef struct reader {
    m2_checkpoint *checkpoint;
    const m2_map *map;
    m2_zip zip;
    const char *root; /* [root_bytes], in the map */
    size_t root_bytes;
    m2_pickle *pickle;
    char name[NAME_BYTES_MAX + 1];
    size_t name_bytes;
    size_t table_bytes, table_max; /* of the tensors named so far */
    int64_t n_visits;
} reader;

/* ---- one tensor ------------------------------------------------------------------------------- */

static const m2_zip_entry *find_below_root(const reader *r, const char *middle, const char *key,
                                           size_t key_bytes)
{
    char name[2 * NAME_BYTES_MAX];
    const size_t middle_bytes = strlen(middle), bytes = r->root_bytes + middle_bytes + key_bytes;
    if (bytes > sizeof name) return NULL;
    memcpy(name, r->root, r->root_bytes);
    memcpy(name + r->root_bytes, middle, middle_bytes);
    memcpy(name + r->root_bytes + middle_bytes, key, key_bytes);
    return m2_zip_find(&r->zip, name, bytes);
}

static m2_status fail_tensor(const reader *r, const char *what)
{
    return m2_fail(M2_ERR_FORMAT, "%s: tensor '%.200s': %s", r->map->path, r->name, what);
}

static m2_status find_storage(const reader *r, const m2_pickle_storage *storage,
                              const unsigned char **data_out)
{
    const m2_zip_entry *entry = find_below_root(r, "/data/", storage->key, storage->key_bytes);
    const int n = storage->key_bytes < 100 ? (int)storage->key_bytes : 100;
    if (!entry)
        return m2_fail(M2_ERR_FORMAT,
                       "%s: tensor '%.200s' lies in storage '%.*s', and the file has none of that "
                       "name",
                       r->map->path, r->name, n, storage->key);
    M2_TRY(m2_zip_bytes(&r->zip, entry, data_out));
    int64_t wanted;
    if (__builtin_mul_overflow(storage->n_elems, (int64_t)m2_dtype_bytes(storage->dtype),
                               &wanted) ||
        (uint64_t)wanted > entry->bytes)
        return m2_fail(M2_ERR_FORMAT,
                       "%s: tensor '%.200s': its storage '%.*s' should hold %lld values of %s and "
                       "is %llu bytes",
                       r->map->path, r->name, n, storage->key, (long long)storage->n_elems,
                       m2_dtype_name(storage->dtype), (unsigned long long)entry->bytes);
    return M2_OK;
}

/* Every element of the view must lie in the storage. */
static m2_status check_view(const reader *r, const m2_pickle_tensor *from)
{
    int64_t last = from->offset;
    int is_empty = 0;
    if (from->offset < 0) return fail_tensor(r, "its offset is negative");
    for (int i = 0; i < from->n_dims; i++) {
        if (from->shape[i] < 0 || from->stride[i] < 0)
            return fail_tensor(r, "a size or stride is negative");
        is_empty |= from->shape[i] == 0;
    }
    for (int i = 0; i < from->n_dims && !is_empty; i++) {
        int64_t reach;
        if (__builtin_mul_overflow(from->shape[i] - 1, from->stride[i], &reach) ||
            __builtin_add_overflow(last, reach, &last))
            return fail_tensor(r, "its strides reach further than 64 bits count");
    }
    if (!is_empty && last >= from->storage->n_elems)
        return m2_fail(M2_ERR_FORMAT,
                       "%s: tensor '%.200s' reaches to element %lld of a storage of %lld",
                       r->map->path, r->name, (long long)last, (long long)from->storage->n_elems);
    return M2_OK;
}

static m2_status add_tensor(reader *r, const m2_pickle_tensor *from)
{
    m2_ckpt_tensor tensor = { .dtype = from->storage->dtype,
                              .n_dims = from->n_dims,
                              .file = r->map->path };
    const unsigned char *data = NULL;
    size_t bytes;
    M2_TRY(check_view(r, from));
    if (!m2_ckpt_shape_bytes(from->shape, from->n_dims, tensor.dtype, &tensor.count, &bytes))
        return fail_tensor(r, "its shape has more elements than 64 bits count");
    M2_TRY(find_storage(r, from->storage, &data));
    for (int i = 0; i < from->n_dims; i++) {
        tensor.shape[i] = from->shape[i];
        tensor.stride[i] = from->stride[i];
    }
    tensor.source = data + (tensor.count ? (size_t)from->offset * m2_dtype_bytes(tensor.dtype) : 0);
    m2_ckpt_set_data(&tensor);
    r->table_bytes += sizeof tensor + sizeof(int64_t) + r->name_bytes + 1;
    if (r->table_bytes > r->table_max)
        return m2_fail(M2_ERR_FORMAT, "%s: names far more tensors than its size allows",
                       r->map->path);
    char *name = m2_ckpt_text(r->checkpoint, r->name_bytes + 1);
    if (!name) return m2_fail(M2_ERR_MEMORY, "%s: no memory for its names", r->map->path);
    memcpy(name, r->name, r->name_bytes + 1);
    tensor.name = name;
    return m2_ckpt_append(r->checkpoint, &tensor);
}

/* ---- names from nesting ------------------------------------------------------------------------- */

/* Append "/key" to the name; 0 if the key has no text that could be looked for. */
static m2_status enter(reader *r, const char *key, size_t bytes)
{
    const size_t slash = r->name_bytes > 0;
    if (bytes + slash > NAME_BYTES_MAX - r->name_bytes)
        return m2_fail(M2_ERR_FORMAT, "%s: a tensor's name is longer than %d bytes", r->map->path,
                       NAME_BYTES_MAX);
    if (slash) r->name[r->name_bytes++] = '/';
    for (size_t i = 0; i < bytes;) {
        const int n = m2_ckpt_utf8_bytes((const unsigned char *)key + i, bytes - i);
        if (n == 0 || (unsigned char)key[i] < 0x20 || key[i] == 0x7f)
            return m2_fail(M2_ERR_FORMAT, "%s: a name below '%.200s' is not printable UTF-8",
                           r->map->path, r->name);
        memcpy(r->name + r->name_bytes, key + i, (size_t)n);
        r->name_bytes += (size_t)n;
        i += (size_t)n;
    }
    r->name[r->name_bytes] = '\0';
    return M2_OK;
}

static m2_status enter_number(reader *r, int64_t number)
{
    char text[24];
    const int n = snprintf(text, sizeof text, "%lld", (long long)number);
    return enter(r, text, (size_t)n);
}

static m2_status add_value(reader *r, const m2_pickle_value *value, int depth);

static m2_status add_items(reader *r, const m2_pickle_value *value, int depth)
{
    const m2_pickle_items *const items = value->u.items;
    const size_t above = r->name_bytes;
    const int is_dict = value->type == M2_PICKLE_DICT;
    for (int64_t i = 0; i < items->n; i += 1 + is_dict) {
        const m2_pickle_value *const key = &items->items[i];
        const m2_pickle_value *const item = key + is_dict;
        if (++r->n_visits > VISITS_MAX)
            return m2_fail(M2_ERR_FORMAT, "%s: holds more values than a checkpoint does",
                           r->map->path);
        if (item->type != M2_PICKLE_TENSOR && item->type < M2_PICKLE_TUPLE) continue;
        if (is_dict && key->type == M2_PICKLE_TEXT)
            M2_TRY(enter(r, key->u.text, key->n_text));
        else if (!is_dict || key->type == M2_PICKLE_INT)
            M2_TRY(enter_number(r, is_dict ? key->u.number : i));
        else
            continue; /* a key that no name can be made of, as in a cache by tuples */
        M2_TRY(add_value(r, item, depth + 1));
        r->name_bytes = above;
        r->name[above] = '\0';
    }
    return M2_OK;
}

static m2_status add_value(reader *r, const m2_pickle_value *value, int depth)
{
    switch (value->type) {
    case M2_PICKLE_TENSOR:
        return add_tensor(r, value->u.tensor);
    case M2_PICKLE_DICT:
    case M2_PICKLE_LIST:
    case M2_PICKLE_TUPLE:
        if (depth == DEPTH_MAX)
            return m2_fail(M2_ERR_FORMAT, "%s: is nested more than %d deep at '%.200s'",
                           r->map->path, DEPTH_MAX, r->name);
        return add_items(r, value, depth);
    default:
        return M2_OK;
    }
}

/* ---- the file ----------------------------------------------------------------------------------- */

/* ROOT is the folder of the one data.pkl, whatever its name. */
static m2_status find_root(reader *r)
{
    static const char end[] = "/data.pkl";
    const size_t n = sizeof end - 1;
    for (int64_t i = 0; i < r->zip.n_entries; i++) {
        const m2_zip_entry *const entry = &r->zip.entries[i];
        if (entry->name_bytes <= n || memcmp(entry->name + entry->name_bytes - n, end, n) != 0 ||
            memchr(entry->name, '/', entry->name_bytes - n))
            continue;
        if (r->root)
            return m2_fail(M2_ERR_FORMAT, "%s: holds more than one data.pkl", r->map->path);
        r->root = entry->name;
        r->root_bytes = entry->name_bytes - n;
    }
    if (!r->root)
        return m2_fail(M2_ERR_FORMAT,
                       "%s: is a zip file but no torch checkpoint: it has no data.pkl; if it is a "
                       "packed download, unpack it",
                       r->map->path);
    if (r->root_bytes > NAME_BYTES_MAX)
        return m2_fail(M2_ERR_FORMAT, "%s: its folder has too long a name", r->map->path);
    if (find_below_root(r, "/constants.pkl", "", 0))
        return m2_fail(M2_ERR_UNSUPPORTED,
                       "%s: is a TorchScript program, not a checkpoint; save its state_dict()",
                       r->map->path);
    return M2_OK;
}

static m2_status check_byte_order(const reader *r)
{
    const m2_zip_entry *entry = find_below_root(r, "/byteorder", "", 0);
    const unsigned char *text;
    if (!entry) return M2_OK;
    M2_TRY(m2_zip_bytes(&r->zip, entry, &text));
    if (entry->bytes == 6 && memcmp(text, "little", 6) == 0) return M2_OK;
    return m2_fail(M2_ERR_UNSUPPORTED, "%s: its values are not little-endian", r->map->path);
}

static m2_status report_opaque(const reader *r)
{
    char name[200];
    const int64_t n = m2_pickle_n_opaque(r->pickle, name, sizeof name);
    if (n == 0) return M2_OK;
    if (r->checkpoint->n_tensors == 0)
        return m2_fail(M2_ERR_UNSUPPORTED,
                       "%s: holds no plain tensors, only objects that code would have to make "
                       "(%s), and no code of a checkpoint is ever run; save a state_dict()",
                       r->map->path, name[0] ? name : "no class named");
    m2_info("io", "%s: %lld values that are no plain tensors were passed over (first: %s)",
            r->map->path, (long long)n, name[0] ? name : "no class named");
    return M2_OK;
}

static m2_status read_all(reader *r)
{
    M2_TRY(m2_zip_read(r->map, &r->zip));
    M2_TRY(find_root(r));
    M2_TRY(check_byte_order(r));
    const unsigned char *data;
    const m2_zip_entry *const entry = find_below_root(r, "/data.pkl", "", 0);
    M2_TRY(m2_zip_bytes(&r->zip, entry, &data));
    /* Together with the tables these stay below the file's size and 16 MiB. */
    const size_t store_max = 5 * MEBIBYTE + r->map->bytes / 4;
    M2_TRY(m2_pickle_load(r->map->path, data, (size_t)entry->bytes, store_max, &r->pickle));
    const m2_pickle_value *const top = m2_pickle_top(r->pickle);
    if (top->type == M2_PICKLE_TENSOR)
        return m2_fail(M2_ERR_UNSUPPORTED, "%s: holds one tensor without a name, not a dict",
                       r->map->path);
    M2_TRY(add_value(r, top, 0));
    return report_opaque(r);
}

m2_status m2_torch_zip_add(m2_checkpoint *checkpoint, const m2_map *map)
{
    reader *r = calloc(1, sizeof *r);
    if (!r) return m2_fail(M2_ERR_MEMORY, "%s: no memory to read it", map->path);
    r->checkpoint = checkpoint;
    r->map = map;
    r->table_max = 2 * MEBIBYTE + map->bytes / 8;
    const m2_status status = read_all(r);
    m2_pickle_free(r->pickle);
    m2_zip_free(&r->zip);
    free(r);
    return status;
}
