#include "io/checkpoint.h"

#include "io/checkpoint_parts.h"
#include "io/no_file.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEXT_BLOCK_MIN ((size_t)4096)
#define TEXT_BLOCK_MAX ((size_t)1 << 20)

m2_status m2_ckpt_grow(void **array, int64_t *room, int64_t wanted, size_t size, const char *path)
{
    if (wanted <= *room) return M2_OK;
    int64_t larger = *room ? *room + *room / 2 : 16;
    if (larger < wanted) larger = wanted;
    void *grown = realloc(*array, (size_t)larger * size);
    if (!grown)
        return m2_fail(M2_ERR_MEMORY, "%s: no memory for %lld entries", path, (long long)larger);
    *array = grown;
    *room = larger;
    return M2_OK;
}

char *m2_ckpt_text(m2_checkpoint *checkpoint, size_t bytes)
{
    m2_text_block *block = checkpoint->texts;
    if (!block || bytes > block->room - block->used) {
        size_t room = block ? block->room * 2 : TEXT_BLOCK_MIN;
        if (room > TEXT_BLOCK_MAX) room = TEXT_BLOCK_MAX;
        if (room < bytes) room = bytes;
        block = malloc(sizeof *block + room);
        if (!block) return NULL;
        block->used = 0;
        block->room = room;
        block->next = checkpoint->texts;
        checkpoint->texts = block;
    }
    char *text = block->text + block->used;
    block->used += bytes;
    return text;
}

m2_status m2_ckpt_map(m2_checkpoint *checkpoint, const char *path, const m2_map **map_out)
{
    int64_t room = checkpoint->room_maps;
    void *maps = checkpoint->maps;
    M2_TRY(m2_ckpt_grow(&maps, &room, checkpoint->n_maps + 1, sizeof *checkpoint->maps, path));
    checkpoint->maps = maps;
    checkpoint->room_maps = (int)room;
    m2_map *map = NULL;
    M2_TRY(m2_map_open(path, &map));
    checkpoint->maps[checkpoint->n_maps++] = map;
    *map_out = map;
    return M2_OK;
}

m2_status m2_ckpt_append(m2_checkpoint *checkpoint, const m2_ckpt_tensor *tensor)
{
    void *tensors = checkpoint->tensors;
    M2_TRY(m2_ckpt_grow(&tensors, &checkpoint->room_tensors, checkpoint->n_tensors + 1,
                        sizeof *checkpoint->tensors, tensor->file));
    checkpoint->tensors = tensors;
    checkpoint->tensors[checkpoint->n_tensors++] = *tensor;
    return M2_OK;
}

int m2_ckpt_shape_bytes(const int64_t *shape, int n_dims, m2_dtype dtype, int64_t *count_out,
                        size_t *bytes_out)
{
    int64_t product = 1, bytes;
    int is_empty = 0;
    for (int i = 0; i < n_dims; i++) {
        if (shape[i] == 0)
            is_empty = 1;
        else if (__builtin_mul_overflow(product, shape[i], &product))
            return 0;
    }
    if (__builtin_mul_overflow(product, (int64_t)m2_dtype_bytes(dtype), &bytes)) return 0;
    *count_out = is_empty ? 0 : product;
    *bytes_out = is_empty ? 0 : (size_t)bytes;
    return 1;
}

int m2_ckpt_utf8_bytes(const unsigned char *s, size_t left)
{
    if (s[0] < 0x80) return 1;
    const int n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || left < (size_t)n) return 0;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f)) return 0;
    if ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f)) return 0;
    return n;
}

void m2_ckpt_set_data(m2_ckpt_tensor *tensor)
{
    int64_t row = 1;
    tensor->data = NULL;
    if (tensor->count > 0) {
        for (int i = tensor->n_dims - 1; i >= 0; i--) {
            if (tensor->shape[i] != 1 && tensor->stride[i] != row) return;
            row *= tensor->shape[i];
        }
    }
    if ((uintptr_t)tensor->source % m2_dtype_bytes(tensor->dtype) != 0) return;
    tensor->data = tensor->source;
}

/* ---- names ---------------------------------------------------------------------------------- */

/* Names come from hostile files: a sorted index answers in log2(n) steps whatever they are, where a
 * hash table could be made to degenerate. */
static int compare_names(const void *a, const void *b, void *tensors)
{
    const m2_ckpt_tensor *const all = tensors;
    return strcmp(all[*(const int64_t *)a].name, all[*(const int64_t *)b].name);
}

m2_status m2_ckpt_sort_names(const m2_checkpoint *checkpoint, int64_t first, const char *path,
                             int64_t **sorted_out)
{
    const int64_t n = checkpoint->n_tensors - first;
    int64_t *sorted = malloc((size_t)(n > 0 ? n : 1) * sizeof *sorted);
    if (!sorted) return m2_fail(M2_ERR_MEMORY, "%s: no memory for its names", path);
    for (int64_t i = 0; i < n; i++) sorted[i] = first + i;
    qsort_r(sorted, (size_t)n, sizeof *sorted, compare_names, checkpoint->tensors);
    for (int64_t i = 1; i < n; i++) {
        const char *name = checkpoint->tensors[sorted[i]].name;
        if (strcmp(checkpoint->tensors[sorted[i - 1]].name, name) != 0) continue;
        free(sorted);
        return m2_fail(M2_ERR_FORMAT, "%s: two tensors are named '%.200s'", path, name);
    }
    *sorted_out = sorted;
    return M2_OK;
}

const m2_ckpt_tensor *m2_checkpoint_find(const m2_checkpoint *checkpoint, const char *name)
{
    int64_t low = 0, high = checkpoint->n_tensors;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const m2_ckpt_tensor *tensor = &checkpoint->tensors[checkpoint->by_name[middle]];
        const int order = strcmp(tensor->name, name);
        if (order == 0) return tensor;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

int m2_checkpoint_has_prefix(const m2_checkpoint *checkpoint, const char *prefix)
{
    int64_t low = 0, high = checkpoint->n_tensors;
    const size_t bytes = strlen(prefix);
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const m2_ckpt_tensor *tensor = &checkpoint->tensors[checkpoint->by_name[middle]];
        const int order = strncmp(tensor->name, prefix, bytes);
        if (order == 0) return 1;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

/* ---- opening -------------------------------------------------------------------------------- */

static int ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static m2_status add_file(m2_checkpoint *checkpoint, const char *path)
{
    if (ends_with(path, ".json")) return m2_sharded_add(checkpoint, path);
    const m2_map *map = NULL;
    M2_TRY(m2_ckpt_map(checkpoint, path, &map));
    /* A safetensors file could begin with these bytes only if its header were 67 MB. */
    if (map->bytes > 8 && memcmp(map->data, "PK\3\4", 4) == 0 && map->data[8] != '{')
        return m2_torch_zip_add(checkpoint, map);
    return m2_safetensors_add(checkpoint, map);
}

static int is_checkpoint_name(const char *name)
{
    static const char *const endings[] = { ".safetensors", ".pth", ".ckpt", ".pt" };
    const size_t n = strlen(name);
    for (int i = 0; i < 4; i++) {
        const size_t m = strlen(endings[i]);
        if (name[0] != '.' && n > m && strcmp(name + n - m, endings[i]) == 0) return 1;
    }
    return 0;
}

/* The one file of a folder that can be a checkpoint by its name; 0 if there is none or a choice. */
static int find_only_file(const char *dir, char *file, size_t bytes)
{
    int n = 0;
    DIR *entries = opendir(dir);
    for (const struct dirent *entry; entries && (entry = readdir(entries));) {
        if (!is_checkpoint_name(entry->d_name)) continue;
        n++;
        if ((size_t)snprintf(file, bytes, "%s/%s", dir, entry->d_name) >= bytes) n++;
    }
    if (entries) closedir(entries);
    return n == 1;
}

static m2_status add_directory(m2_checkpoint *checkpoint, const char *dir)
{
    static const char *const names[] = { "model.safetensors.index.json", "model.safetensors" };
    char file[4096];
    for (int i = 0; i < 2; i++) {
        if ((size_t)snprintf(file, sizeof file, "%s/%s", dir, names[i]) >= sizeof file)
            return m2_fail(M2_ERR_ARG, "%.200s...: the path is too long", dir);
        struct stat info;
        /* lstat: a link to a blob that is gone must be named as such, not passed over. */
        if (lstat(file, &info) == 0) return add_file(checkpoint, file);
    }
    if (find_only_file(dir, file, sizeof file)) return add_file(checkpoint, file);
    char found[600];
    m2_folder_names(dir, found, sizeof found);
    return m2_fail(M2_ERR_IO,
                   "%s: holds neither model.safetensors.index.json nor one checkpoint alone, but "
                   "%s; pass the directory of one network, or a file",
                   dir, found);
}

m2_status m2_checkpoint_open(const char *path, m2_checkpoint **checkpoint_out)
{
    m2_status status;
    m2_checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    if (checkpoint) checkpoint->path = strdup(path);
    if (!checkpoint || !checkpoint->path) {
        status = m2_fail(M2_ERR_MEMORY, "%s: no memory to open it", path);
        goto fail;
    }
    char *const kept = checkpoint->path;
    for (size_t n = strlen(kept); n > 1 && kept[n - 1] == '/'; n--) kept[n - 1] = '\0';
    struct stat info;
    if (stat(kept, &info) != 0) {
        status = m2_fail_open(kept);
        goto fail;
    }
    status = S_ISDIR(info.st_mode) ? add_directory(checkpoint, kept) : add_file(checkpoint, kept);
    if (status != M2_OK) goto fail;
    status = m2_ckpt_sort_names(checkpoint, 0, kept, &checkpoint->by_name);
    if (status != M2_OK) goto fail;
    *checkpoint_out = checkpoint;
    return M2_OK;
fail:
    m2_checkpoint_close(checkpoint);
    return status;
}

void m2_checkpoint_close(m2_checkpoint *checkpoint)
{
    if (!checkpoint) return;
    for (int i = 0; i < checkpoint->n_maps; i++) m2_map_close(checkpoint->maps[i]);
    for (m2_text_block *block = checkpoint->texts, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    for (int t = 0; t < M2_MADE_UP_TYPES; t++) free(checkpoint->made_up[t]);
    free(checkpoint->maps);
    free(checkpoint->tensors);
    free(checkpoint->by_name);
    free(checkpoint->metadata);
    free(checkpoint->path);
    free(checkpoint);
}

const char *m2_checkpoint_path(const m2_checkpoint *checkpoint)
{
    return checkpoint->path;
}

int64_t m2_checkpoint_n_tensors(const m2_checkpoint *checkpoint)
{
    return checkpoint->n_tensors;
}

const m2_ckpt_tensor *m2_checkpoint_at(const m2_checkpoint *checkpoint, int64_t idx)
{
    return &checkpoint->tensors[idx];
}

const char *m2_checkpoint_metadata(const m2_checkpoint *checkpoint, const char *key)
{
    for (int64_t i = 0; i < checkpoint->n_metadata; i++)
        if (strcmp(checkpoint->metadata[i].key, key) == 0) return checkpoint->metadata[i].value;
    return NULL;
}
