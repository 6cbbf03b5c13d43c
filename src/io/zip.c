#include "io/zip.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define END_BYTES     22u
#define END64_BYTES   56u
#define LOCATOR_BYTES 20u
#define RECORD_BYTES  46u
#define LOCAL_BYTES   30u
#define COMMENT_MAX   65535u

static uint64_t read_le(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) value = value << 8 | at[i];
    return value;
}

static int has_signature(const unsigned char *at, unsigned char a, unsigned char b)
{
    return at[0] == 'P' && at[1] == 'K' && at[2] == a && at[3] == b;
}

typedef struct directory {
    uint64_t offset, bytes, n_entries;
} directory;

/* The end record closes the file but for a comment; NULL if there is none. */
static const unsigned char *find_end(const m2_map *map)
{
    if (map->bytes < END_BYTES) return NULL;
    const unsigned char *at = map->data + map->bytes - END_BYTES;
    for (size_t comment = 0; comment <= COMMENT_MAX; comment++, at--) {
        if (has_signature(at, 5, 6) && read_le(at + 20, 2) == comment) return at;
        if (at == map->data) break;
    }
    return NULL;
}

static m2_status fail_damaged(const m2_map *map, const char *what)
{
    return m2_fail(M2_ERR_FORMAT, "%s: a damaged zip file: %s; download it again", map->path, what);
}

static m2_status find_directory(const m2_map *map, directory *found)
{
    const unsigned char *const end = find_end(map);
    if (!end)
        return m2_fail(M2_ERR_FORMAT,
                       "%s: begins as a zip file of %zu bytes but has no directory at its end: the "
                       "file is cut short; download it again",
                       map->path, map->bytes);
    const size_t end_at = (size_t)(end - map->data);
    int n_discs = (int)read_le(end + 4, 2);
    found->n_entries = read_le(end + 10, 2);
    found->bytes = read_le(end + 12, 4);
    found->offset = read_le(end + 16, 4);
    uint64_t directory_end = end_at;
    if (end_at >= LOCATOR_BYTES && has_signature(end - LOCATOR_BYTES, 6, 7)) {
        const uint64_t at = read_le(end - LOCATOR_BYTES + 8, 8);
        if (at > end_at - LOCATOR_BYTES || end_at - LOCATOR_BYTES - at < END64_BYTES ||
            !has_signature(map->data + at, 6, 6))
            return fail_damaged(map, "its zip64 end record is not where it should be");
        const unsigned char *const end64 = map->data + at;
        n_discs = read_le(end64 + 16, 4) != 0;
        found->n_entries = read_le(end64 + 32, 8);
        found->bytes = read_le(end64 + 40, 8);
        found->offset = read_le(end64 + 48, 8);
        directory_end = at;
    }
    if (n_discs != 0)
        return m2_fail(M2_ERR_UNSUPPORTED, "%s: a zip file in several parts", map->path);
    if (found->offset > directory_end || found->bytes > directory_end - found->offset)
        return fail_damaged(map, "its directory is not within the file");
    if (found->n_entries > found->bytes / RECORD_BYTES)
        return fail_damaged(map, "its directory is shorter than its entries");
    if (found->n_entries > M2_ZIP_ENTRIES_MAX)
        return m2_fail(M2_ERR_FORMAT, "%s: a zip file of %llu entries, at most %d are allowed",
                       map->path, (unsigned long long)found->n_entries, M2_ZIP_ENTRIES_MAX);
    return M2_OK;
}

/* Sizes and offset of 2^32 - 1 stand in the zip64 field, in this order, each only if it is so. */
static int take_zip64(m2_zip_entry *entry, const unsigned char *extra, size_t bytes)
{
    uint64_t *const values[] = { &entry->bytes, &entry->stored_bytes, &entry->offset };
    int n_wanted = 0;
    for (int i = 0; i < 3; i++) n_wanted += *values[i] == UINT32_MAX;
    if (n_wanted == 0) return 1;
    while (bytes >= 4) {
        const size_t field = read_le(extra + 2, 2);
        if (field > bytes - 4) return 0;
        if (read_le(extra, 2) == 1) {
            if (field < 8 * (size_t)n_wanted) return 0;
            const unsigned char *at = extra + 4;
            for (int i = 0; i < 3; i++) {
                if (*values[i] != UINT32_MAX) continue;
                *values[i] = read_le(at, 8);
                at += 8;
            }
            return 1;
        }
        extra += 4 + field;
        bytes -= 4 + field;
    }
    return 0;
}

static int compare_names(const char *a, size_t n, const char *b, size_t m)
{
    const int order = memcmp(a, b, n < m ? n : m);
    return order ? order : (n > m) - (n < m);
}

static int compare_entries(const void *a, const void *b)
{
    const m2_zip_entry *const x = a, *const y = b;
    return compare_names(x->name, x->name_bytes, y->name, y->name_bytes);
}

static m2_status read_records(m2_zip *zip, const directory *where)
{
    const m2_map *const map = zip->map;
    const unsigned char *at = map->data + where->offset;
    uint64_t left = where->bytes;
    for (uint64_t i = 0; i < where->n_entries; i++) {
        if (left < RECORD_BYTES || !has_signature(at, 1, 2))
            return fail_damaged(map, "an entry of its directory is not one");
        const size_t name = read_le(at + 28, 2), extra = read_le(at + 30, 2);
        const size_t whole = RECORD_BYTES + name + extra + read_le(at + 32, 2);
        if (whole > left) return fail_damaged(map, "its directory ends within an entry");
        m2_zip_entry *entry = &zip->entries[zip->n_entries++];
        *entry = (m2_zip_entry){
            .name = (const char *)at + RECORD_BYTES,
            .name_bytes = (uint16_t)name,
            .flags = (uint16_t)read_le(at + 8, 2),
            .method = (uint16_t)read_le(at + 10, 2),
            .crc = (uint32_t)read_le(at + 16, 4),
            .stored_bytes = read_le(at + 20, 4),
            .bytes = read_le(at + 24, 4),
            .offset = read_le(at + 42, 4),
        };
        if (!take_zip64(entry, at + RECORD_BYTES + name, extra))
            return fail_damaged(map, "a zip64 field of its directory is missing");
        at += whole;
        left -= whole;
    }
    return M2_OK;
}

m2_status m2_zip_read(const m2_map *map, m2_zip *zip)
{
    *zip = (m2_zip){ .map = map };
    directory where = { 0 };
    M2_TRY(find_directory(map, &where));
    zip->entries = malloc((where.n_entries ? where.n_entries : 1) * sizeof *zip->entries);
    if (!zip->entries) return m2_fail(M2_ERR_MEMORY, "%s: no memory for its directory", map->path);
    M2_TRY(read_records(zip, &where));
    qsort(zip->entries, (size_t)zip->n_entries, sizeof *zip->entries, compare_entries);
    for (int64_t i = 1; i < zip->n_entries; i++)
        if (compare_entries(&zip->entries[i - 1], &zip->entries[i]) == 0)
            return m2_fail(M2_ERR_FORMAT, "%s: two entries are named '%.*s'", map->path,
                           (int)zip->entries[i].name_bytes, zip->entries[i].name);
    return M2_OK;
}

void m2_zip_free(m2_zip *zip)
{
    free(zip->entries);
    *zip = (m2_zip){ 0 };
}

const m2_zip_entry *m2_zip_find(const m2_zip *zip, const char *name, size_t name_bytes)
{
    int64_t low = 0, high = zip->n_entries;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const m2_zip_entry *entry = &zip->entries[middle];
        const int order = compare_names(entry->name, entry->name_bytes, name, name_bytes);
        if (order == 0) return entry;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static m2_status check_sum(const m2_zip *zip, const m2_zip_entry *entry, const unsigned char *data)
{
    if (entry->is_checked || entry->crc == 0) return M2_OK;
    const uint32_t crc = (uint32_t)crc32_z(0, data, (size_t)entry->bytes);
    if (crc != entry->crc)
        return m2_fail(
            M2_ERR_FORMAT,
            "%s: entry '%.*s' is damaged: its %llu bytes have the checksum %08x, %08x was "
            "written; download it again",
            zip->map->path, entry->name_bytes < 200 ? (int)entry->name_bytes : 200, entry->name,
            (unsigned long long)entry->bytes, crc, entry->crc);
    zip->entries[entry - zip->entries].is_checked = 1;
    return M2_OK;
}

m2_status m2_zip_bytes(const m2_zip *zip, const m2_zip_entry *entry, const unsigned char **data_out)
{
    const m2_map *const map = zip->map;
    const int n = entry->name_bytes < 200 ? (int)entry->name_bytes : 200;
    if (entry->flags & 1)
        return m2_fail(M2_ERR_UNSUPPORTED, "%s: entry '%.*s' is encrypted", map->path, n,
                       entry->name);
    if (entry->method != 0)
        return m2_fail(M2_ERR_UNSUPPORTED,
                       "%s: entry '%.*s' is compressed (method %d), torch.save stores entries as "
                       "they are; unzip the file and zip it again with `zip -0`",
                       map->path, n, entry->name, (int)entry->method);
    if (entry->stored_bytes != entry->bytes || entry->offset > map->bytes ||
        map->bytes - entry->offset < LOCAL_BYTES || !has_signature(map->data + entry->offset, 3, 4))
        return m2_fail(M2_ERR_FORMAT, "%s: entry '%.*s' is not where the directory says", map->path,
                       n, entry->name);
    const unsigned char *const local = map->data + entry->offset;
    const uint64_t left = map->bytes - entry->offset - LOCAL_BYTES;
    const uint64_t skipped = read_le(local + 26, 2) + read_le(local + 28, 2);
    if (skipped > left || entry->bytes > left - skipped)
        return m2_fail(M2_ERR_FORMAT, "%s: entry '%.*s' of %llu bytes ends behind the file",
                       map->path, n, entry->name, (unsigned long long)entry->bytes);
    M2_TRY(check_sum(zip, entry, local + LOCAL_BYTES + skipped));
    *data_out = local + LOCAL_BYTES + skipped;
    return M2_OK;
}
