/* Checkpoints cut into shards: an index says which file each tensor is in, and it alone decides. */
#include "io/checkpoint_parts.h"
#include "core/log.h"
#include "io/fault_list.h"
#include "io/json_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES 4096

/* Shards lie beside the index: a name with a slash could lead anywhere. */
static int is_plain_name(const char *name)
{
    return name[0] != '\0' && name[0] != '.' && !strchr(name, '/');
}

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct file names of the index, sorted. */
static m2_status collect_shards(json_t *weight_map, const char *index_path, const char ***names_out,
                                size_t *n_out)
{
    const char **names = malloc((json_object_size(weight_map) + 1) * sizeof *names);
    if (!names) return m2_fail(M2_ERR_MEMORY, "%s: no memory for its names", index_path);
    size_t n = 0;
    const char *tensor;
    json_t *value;
    json_object_foreach(weight_map, tensor, value)
    {
        const char *file = json_string_value(value);
        if (!file || !is_plain_name(file)) {
            free(names);
            return m2_fail(M2_ERR_FORMAT,
                           "%s: weight_map: '%.200s' must be the name of a file in this folder, "
                           "it is %s%.100s",
                           index_path, tensor, file ? "" : "no text", file ? file : "");
        }
        names[n++] = file;
    }
    if (n) qsort(names, n, sizeof *names, compare_text);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || strcmp(names[kept - 1], names[i]) != 0) names[kept++] = names[i];
    *names_out = names;
    *n_out = kept;
    return M2_OK;
}

/* Of the tensors from `first` on, keep those that the index looks for in `shard`. */
static void keep_listed(m2_checkpoint *checkpoint, int64_t first, json_t *weight_map,
                        const char *shard)
{
    int64_t kept = first;
    for (int64_t i = first; i < checkpoint->n_tensors; i++) {
        const char *name = checkpoint->tensors[i].name;
        const char *file = json_string_value(json_object_get(weight_map, name));
        if (file && strcmp(file, shard) == 0) checkpoint->tensors[kept++] = checkpoint->tensors[i];
    }
    checkpoint->n_tensors = kept;
}

/* Names that the index has for `shard` and the shard has not. */
static m2_status check_complete(const m2_checkpoint *checkpoint, int64_t first, json_t *weight_map,
                                const char *shard, const char *path, m2_fault_list *faults)
{
    int64_t *sorted = NULL;
    M2_TRY(m2_ckpt_sort_names(checkpoint, first, path, &sorted));
    const int64_t n = checkpoint->n_tensors - first;
    const char *name;
    json_t *value;
    json_object_foreach(weight_map, name, value)
    {
        if (strcmp(json_string_value(value), shard) != 0) continue;
        int64_t low = 0, high = n;
        int is_there = 0;
        while (low < high && !is_there) {
            const int64_t middle = low + (high - low) / 2;
            const int order = strcmp(checkpoint->tensors[sorted[middle]].name, name);
            is_there = order == 0;
            if (order < 0)
                low = middle + 1;
            else
                high = middle;
        }
        if (!is_there) m2_fault_add(faults, "%s lacks '%.200s'", shard, name);
    }
    free(sorted);
    return M2_OK;
}

/* A shard's own message as one line of ours, whose head says what to do for all. */
static void add_without_advice(m2_fault_list *faults, const char *message)
{
    static const char advice[] = "; download it again";
    size_t n = strlen(message);
    if (n >= sizeof advice - 1 && strcmp(message + n - (sizeof advice - 1), advice) == 0)
        n -= sizeof advice - 1;
    m2_fault_add(faults, "%.*s", (int)n, message);
}

static m2_status add_shard(m2_checkpoint *checkpoint, json_t *weight_map, const char *index_path,
                           const char *shard, m2_fault_list *faults)
{
    const char *slash = strrchr(index_path, '/');
    char path[PATH_BYTES];
    const int dir_bytes = slash ? (int)(slash - index_path) + 1 : 0;
    if ((size_t)snprintf(path, sizeof path, "%.*s%s", dir_bytes, index_path, shard) >= sizeof path)
        return m2_fail(M2_ERR_ARG, "%.200s...: the path is too long", index_path);
    const m2_map *map = NULL;
    const int64_t first = checkpoint->n_tensors;
    if (access(path, F_OK) != 0) {
        m2_fault_add(faults, "%s is missing", shard);
        return M2_OK;
    }
    /* One bad shard does not hide the next: all are named together at the end, once. */
    const m2_log *log = m2_log_bind(NULL);
    m2_status status = m2_ckpt_map(checkpoint, path, &map);
    if (status == M2_OK) status = m2_safetensors_add(checkpoint, map);
    m2_log_bind(log);
    if (status == M2_ERR_IO || status == M2_ERR_FORMAT) {
        checkpoint->n_tensors = first;
        add_without_advice(faults, m2_last_error());
        return M2_OK;
    }
    M2_TRY(status);
    keep_listed(checkpoint, first, weight_map, shard);
    return check_complete(checkpoint, first, weight_map, shard, path, faults);
}

static m2_status add_all(m2_checkpoint *checkpoint, json_t *weight_map, const char *index_path)
{
    const char **shards = NULL;
    size_t n_shards = 0;
    M2_TRY(collect_shards(weight_map, index_path, &shards, &n_shards));
    m2_status status = M2_OK;
    m2_fault_list faults = { 0 };
    for (size_t i = 0; i < n_shards && status == M2_OK; i++)
        status = add_shard(checkpoint, weight_map, index_path, shards[i], &faults);
    free(shards);
    if (status == M2_OK && faults.n > 0) {
        char text[M2_FAULT_BYTES_MAX];
        status = m2_fail(M2_ERR_FORMAT,
                         "%s: its shards do not hold what it lists, %d fault%s in %zu file%s; "
                         "download again what is named:%s",
                         index_path, faults.n, faults.n == 1 ? "" : "s", n_shards,
                         n_shards == 1 ? "" : "s",
                         m2_fault_text(&faults, M2_FAULT_LINES_MAX, text, sizeof text));
    }
    return status;
}

m2_status m2_sharded_add(m2_checkpoint *checkpoint, const char *index_path)
{
    const m2_map *map = NULL;
    M2_TRY(m2_ckpt_map(checkpoint, index_path, &map));
    if (map->bytes == 0 || map->data[0] != '{') M2_TRY(m2_ckpt_refuse_kinds(map));
    json_t *root = NULL;
    M2_TRY(m2_json_load(index_path, M2_INDEX_BYTES_MAX, &root));
    json_t *weight_map = json_object_get(root, "weight_map");
    m2_status status;
    if (!json_is_object(weight_map) || json_object_size(weight_map) == 0)
        status = m2_fail(M2_ERR_FORMAT,
                         "%s: is no index of shards: it has no weight_map from tensor names to "
                         "files; give a checkpoint, or the folder that it lies in",
                         index_path);
    else
        status = add_all(checkpoint, weight_map, index_path);
    json_decref(root);
    return status;
}
