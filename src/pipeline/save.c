#include "pipeline/save.h"

#include "core/hash.h"
#include "core/temp_file.h"
#include "io/safetensors_write.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct m2_save {
    char *dir;
    json_t *arrays;
};

static m2_status make_dir(const char *dir, int *is_new_out)
{
    *is_new_out = mkdir(dir, 0777) == 0;
    if (!*is_new_out && errno != EEXIST)
        return m2_fail(M2_ERR_IO, "%s: cannot make the directory: %s", dir, strerror(errno));
    struct stat info;
    if (stat(dir, &info) != 0 || !S_ISDIR(info.st_mode))
        return m2_fail(M2_ERR_IO, "%s: is not a directory", dir);
    return M2_OK;
}

m2_status m2_save_probe(const char *dir, int *is_new_out)
{
    M2_TRY(make_dir(dir, is_new_out));
    if (*is_new_out) rmdir(dir);
    return M2_OK;
}

m2_status m2_save_open(const char *dir, m2_save **save_out)
{
    int is_new;
    M2_TRY(make_dir(dir, &is_new));
    m2_save *save = calloc(1, sizeof *save);
    if (save) {
        save->dir = strdup(dir);
        save->arrays = json_array();
    }
    if (!save || !save->dir || !save->arrays) {
        m2_save_close(save);
        return m2_fail(M2_ERR_MEMORY, "%s: no memory to save arrays", dir);
    }
    *save_out = save;
    return M2_OK;
}

m2_status m2_save_array(m2_save *save, const char *name, const m2_tensor *tensor)
{
    char path[4096], digest[M2_SHA256_HEX_BYTES];
    if (snprintf(path, sizeof path, "%s/%s.safetensors", save->dir, name) >= (int)sizeof path)
        return m2_fail(M2_ERR_ARG, "%s: the path is too long", save->dir);
    M2_TRY(m2_sha256_of(tensor->data, m2_tensor_bytes(tensor), digest));
    M2_TRY(m2_safetensors_write(path, &(m2_named_tensor){ .name = name, .tensor = *tensor }, 1,
                                NULL, 0));
    json_t *shape = json_array();
    for (int i = 0; i < tensor->n_dims; i++)
        json_array_append_new(shape, json_integer(tensor->shape[i]));
    json_t *entry = json_pack("{s:s, s:s, s:o, s:s}", "name", name, "dtype",
                              m2_dtype_name(tensor->dtype), "shape", shape, "sha256", digest);
    if (!entry || json_array_append_new(save->arrays, entry) != 0)
        return m2_fail(M2_ERR_MEMORY, "%s: no memory for the manifest", save->dir);
    return M2_OK;
}

/* 0, or the errno of the call that failed: a short text meets the full disk when it is closed. */
static int write_text(const char *path, const char *text)
{
    FILE *stream = fopen(path, "wb");
    if (!stream) return errno;
    int error = 0;
    if (fputs(text, stream) < 0 || fputc('\n', stream) == EOF) error = errno;
    if (fclose(stream) != 0 && !error) error = errno;
    return error;
}

m2_status m2_save_finish(m2_save *save, const char *isa, const char *settings)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/manifest.json", save->dir);
    json_t *root = json_pack("{s:s, s:s, s:s, s:O}", "build", MAGI2_VERSION, "isa", isa, "settings",
                             settings, "arrays", save->arrays);
    char *text = root ? json_dumps(root, JSON_SORT_KEYS | JSON_INDENT(1)) : NULL;
    json_decref(root);
    if (!text) return m2_fail(M2_ERR_MEMORY, "%s: no memory for the manifest", save->dir);
    m2_temp_file file;
    m2_status status = m2_temp_create(&file, path);
    if (status == M2_OK) {
        const int error = write_text(file.path, text);
        if (error) {
            m2_temp_discard(&file);
            status = m2_fail(M2_ERR_IO, "%s: cannot be written: %s", path, strerror(error));
        } else {
            status = m2_temp_commit(&file);
        }
    }
    free(text);
    return status;
}

void m2_save_close(m2_save *save)
{
    if (!save) return;
    json_decref(save->arrays);
    free(save->dir);
    free(save);
}
