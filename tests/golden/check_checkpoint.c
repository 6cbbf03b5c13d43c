/* checkpoint/: torch files against the same tensors as safetensors, and files to be refused.
 *
 * NAME.json with "tensors" describes a torch file and NAME.safetensors; a folder's JSON with "files"
 * lists broken files and what a reader must do with each.
 */
#include "golden.h"

#include <stdlib.h>
#include <string.h>

static int json_sizes_equal(const json_t *sizes, const int64_t *values, int n)
{
    if (!json_is_array(sizes) || (int)json_array_size(sizes) != n) return 0;
    for (int i = 0; i < n; i++)
        if (json_integer_value(json_array_get(sizes, (size_t)i)) != values[i]) return 0;
    return 1;
}

/* The same type, shape and bits. */
static void check_equal(golden_run *run, const char *what, const m2_ckpt_tensor *ours,
                        const m2_ckpt_tensor *plain)
{
    if (!ours) {
        golden_result(run, 0, what, "is missing");
        return;
    }
    const size_t bytes = (size_t)plain->count * m2_dtype_bytes(plain->dtype);
    int is_same = ours->dtype == plain->dtype && ours->n_dims == plain->n_dims;
    for (int i = 0; is_same && i < plain->n_dims; i++) is_same = ours->shape[i] == plain->shape[i];
    if (!is_same) {
        golden_result(run, 0, what, "has another type or shape");
        return;
    }
    void *a = golden_alloc(run, bytes), *b = golden_alloc(run, bytes);
    m2_checkpoint_read(ours, ours->dtype, a);
    m2_checkpoint_read(plain, plain->dtype, b);
    golden_exact(run, what, a, b, bytes);
}

static void check_described(golden_run *run, const char *what, const json_t *described,
                            const m2_ckpt_tensor *tensor)
{
    if (!tensor) {
        golden_result(run, 0, what, "is described and missing");
        return;
    }
    const char *dtype = json_string_value(json_object_get(described, "dtype"));
    const int fits =
        dtype && strcmp(dtype, m2_dtype_name(tensor->dtype)) == 0 &&
        json_sizes_equal(json_object_get(described, "shape"), tensor->shape, tensor->n_dims) &&
        json_sizes_equal(json_object_get(described, "stride"), tensor->stride, tensor->n_dims);
    golden_result(run, fits, what, "type, shape and strides as described");
}

/* One torch file: nothing missing, nothing more, every tensor equal to its plain copy. */
static void check_good(golden_run *run, const char *dir, const char *json_name, const json_t *info,
                       json_t *known)
{
    const json_t *described = json_object_get(info, "tensors");
    const char *file = json_string_value(json_object_get(info, "file"));
    const int stem = (int)(strlen(json_name) - strlen(".json"));
    if (!file || !json_is_object(described)) {
        golden_result(run, 0, json_name, "has no file or no tensors");
        return;
    }
    json_object_set_new(known, file, json_true());
    json_object_set_new(known, golden_format(run, "%.*s.safetensors", stem, json_name),
                        json_true());
    m2_checkpoint *torch = NULL;
    const char *path = golden_format(run, "%s/%s", dir, file);
    golden_file *plain =
        golden_open(run, golden_format(run, "%s/%.*s.safetensors", dir, stem, json_name));
    if (plain && m2_checkpoint_open(path, &torch) == M2_OK) {
        const char *name;
        json_t *value;
        json_object_foreach((json_t *)(uintptr_t)described, name, value)
        {
            const m2_ckpt_tensor *ours = m2_checkpoint_find(torch, name);
            const m2_ckpt_tensor *expected = golden_take(plain, name);
            check_described(run, golden_format(run, "%s %s described", file, name), value, ours);
            if (expected) check_equal(run, golden_format(run, "%s %s", file, name), ours, expected);
        }
        golden_result(run, m2_checkpoint_n_tensors(torch) == (int64_t)json_object_size(described),
                      file, "holds %lld tensors, %zu are described",
                      (long long)m2_checkpoint_n_tensors(torch), json_object_size(described));
    } else if (plain) {
        golden_result(run, 0, file, "is refused: %s", m2_last_error());
    }
    m2_checkpoint_close(torch);
    if (plain) golden_close(plain);
}

/* One file of a list: refused with its name, or, if that is allowed, read right. */
static void check_listed(golden_run *run, const char *dir, const json_t *entry)
{
    const char *file = json_string_value(json_object_get(entry, "file"));
    const char *must = json_string_value(json_object_get(entry, "must"));
    if (!file || !must) {
        golden_result(run, 0, dir, "an entry of its list has no file or no rule");
        return;
    }
    const char *path = golden_format(run, "%s/%s", dir, file);
    if (!strstr(must, "refuse the file")) {
        golden_result(run, 0, file, "not understood: \"%s\"", must);
        return;
    }
    const int may_read = strcmp(must, "refuse the file") != 0;
    m2_checkpoint *checkpoint = NULL;
    if (!golden_is_file(path)) {
        golden_result(run, 0, file, "is not there");
    } else if (m2_checkpoint_open(path, &checkpoint) != M2_OK) {
        golden_result(run, strstr(m2_last_error(), file) != NULL, file, "refused: %s",
                      m2_last_error());
    } else if (!may_read) {
        golden_result(run, 0, file, "is read, and must be refused");
    } else {
        golden_file *plain = golden_open(run, golden_format(run, "%s/tensors.safetensors", dir));
        for (int64_t i = 0; plain && i < golden_n_entries(plain); i++) {
            const char *name = golden_entry(plain, i)->name;
            check_equal(run, golden_format(run, "%s %s", file, name),
                        m2_checkpoint_find(checkpoint, name), golden_take(plain, name));
        }
        if (plain) {
            golden_result(run, m2_checkpoint_n_tensors(checkpoint) == golden_n_entries(plain), file,
                          "holds only what it should");
            golden_close(plain);
        }
    }
    m2_checkpoint_close(checkpoint);
}

/* A folder of listed files. */
static void check_list(golden_run *run, const char *dir, const json_t *files, json_t *known)
{
    size_t i;
    json_t *entry;
    json_object_set_new(known, "tensors.safetensors", json_true());
    json_array_foreach((json_t *)(uintptr_t)files, i, entry)
    {
        const char *file = json_string_value(json_object_get(entry, "file"));
        check_listed(run, dir, entry);
        if (file) json_object_set_new(known, file, json_true());
    }
}

/* A file that no description and no list names is not understood. */
static void check_folder(golden_run *run, const char *dir)
{
    char **names = golden_list(run, dir, 0);
    json_t *known = json_object();
    int n_cases = 0;
    /* The report is about the run that made the folder. */
    json_object_set_new(known, "report.json", json_true());
    for (int i = 0; names[i]; i++) {
        const size_t n = strlen(names[i]);
        if (n < 6 || strcmp(names[i] + n - 5, ".json") != 0 || strcmp(names[i], "report.json") == 0)
            continue;
        json_t *info = golden_json(run, golden_format(run, "%s/%s", dir, names[i]));
        json_object_set_new(known, names[i], json_true());
        n_cases++;
        if (!info) continue;
        if (json_is_array(json_object_get(info, "files")))
            check_list(run, dir, json_object_get(info, "files"), known);
        else
            check_good(run, dir, names[i], info, known);
        json_decref(info);
    }
    for (int i = 0; names[i]; i++)
        if (!json_object_get(known, names[i]))
            golden_result(run, 0, golden_format(run, "%s/%s", dir, names[i]),
                          "not understood: no list names it");
    if (n_cases == 0) golden_result(run, 0, dir, "no case in this folder");
    json_decref(known);
}

void golden_check_checkpoint(golden_run *run, const char *dir)
{
    check_folder(run, dir);
    char **folders = golden_list(run, dir, 1);
    for (int i = 0; folders[i]; i++)
        check_folder(run, golden_format(run, "%s/%s", dir, folders[i]));
}
