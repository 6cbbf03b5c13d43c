#include "io/safetensors_write.h"

#include "core/temp_file.h"
#include "io/checkpoint_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The header is padded with spaces so that the data begin at a multiple of this. */
#define DATA_ALIGN 8

typedef struct text_buffer {
    char *text;
    size_t used, room;
    int has_failed; /* no memory: what follows does nothing */
} text_buffer;

static void put(text_buffer *buffer, const char *text, size_t bytes)
{
    if (buffer->has_failed) return;
    if (bytes > buffer->room - buffer->used) {
        const size_t room = 2 * buffer->room + bytes + 256;
        char *larger = realloc(buffer->text, room);
        if (!larger) {
            buffer->has_failed = 1;
            return;
        }
        buffer->text = larger;
        buffer->room = room;
    }
    memcpy(buffer->text + buffer->used, text, bytes);
    buffer->used += bytes;
}

static void put_text(text_buffer *buffer, const char *text)
{
    put(buffer, text, strlen(text));
}

static void put_number(text_buffer *buffer, uint64_t number)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, number);
    put_text(buffer, text);
}

/* A JSON string; bytes of UTF-8 go through as they are. */
static void put_quoted(text_buffer *buffer, const char *text)
{
    put_text(buffer, "\"");
    for (const char *c = text; *c; c++) {
        char escape[8];
        if (*c == '"' || *c == '\\')
            put(buffer, (const char[]){ '\\', *c }, 2);
        else if ((unsigned char)*c < 0x20) {
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)(unsigned char)*c);
            put_text(buffer, escape);
        } else
            put(buffer, c, 1);
    }
    put_text(buffer, "\"");
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp((*(const m2_named_tensor *const *)a)->name,
                  (*(const m2_named_tensor *const *)b)->name);
}

static int compare_metadata(const void *a, const void *b)
{
    return strcmp((*(const m2_metadata_entry *const *)a)->key,
                  (*(const m2_metadata_entry *const *)b)->key);
}

static void put_metadata(text_buffer *header, const m2_metadata_entry *const *sorted, int n)
{
    if (n == 0) return;
    put_text(header, "\"__metadata__\":{");
    for (int i = 0; i < n; i++) {
        if (i) put_text(header, ",");
        put_quoted(header, sorted[i]->key);
        put_text(header, ":");
        put_quoted(header, sorted[i]->value);
    }
    put_text(header, "}");
}

static void put_tensor(text_buffer *header, const m2_named_tensor *named, uint64_t *offset)
{
    const m2_tensor *const tensor = &named->tensor;
    put_quoted(header, named->name);
    put_text(header, ":{\"dtype\":\"");
    put_text(header, m2_dtype_name(tensor->dtype));
    put_text(header, "\",\"shape\":[");
    for (int i = 0; i < tensor->n_dims; i++) {
        if (i) put_text(header, ",");
        put_number(header, (uint64_t)tensor->shape[i]);
    }
    put_text(header, "],\"data_offsets\":[");
    put_number(header, *offset);
    *offset += m2_tensor_bytes(tensor);
    put_text(header, ",");
    put_number(header, *offset);
    put_text(header, "]}");
}

static void put_header(text_buffer *header, const m2_named_tensor *const *tensors, int n_tensors,
                       const m2_metadata_entry *const *metadata, int n_metadata)
{
    uint64_t offset = 0;
    put_text(header, "{");
    put_metadata(header, metadata, n_metadata);
    for (int i = 0; i < n_tensors; i++) {
        if (i || n_metadata) put_text(header, ",");
        put_tensor(header, tensors[i], &offset);
    }
    put_text(header, "}");
    while (header->used % DATA_ALIGN != 0 && !header->has_failed) put_text(header, " ");
}

static m2_status write_whole(const m2_temp_file *target, const text_buffer *header,
                             const m2_named_tensor *const *tensors, int n_tensors)
{
    FILE *file = fopen(target->path, "wb");
    if (!file) return m2_fail(M2_ERR_IO, "%s: cannot write: %s", target->target, strerror(errno));
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)((uint64_t)header->used >> (8 * i));
    int is_written = fwrite(length, 1, 8, file) == 8 &&
                     fwrite(header->text, 1, header->used, file) == header->used;
    for (int i = 0; i < n_tensors && is_written; i++) {
        const size_t bytes = m2_tensor_bytes(&tensors[i]->tensor);
        if (bytes) is_written = fwrite(tensors[i]->tensor.data, 1, bytes, file) == bytes;
    }
    const int reason = errno;
    const int is_closed = fclose(file) == 0;
    if (is_written && is_closed) return M2_OK;
    return m2_fail(M2_ERR_IO, "%s: cannot write: %s", target->target,
                   strerror(is_written ? errno : reason));
}

static int is_utf8(const char *text)
{
    const size_t bytes = strlen(text);
    for (size_t i = 0; i < bytes;) {
        const int n = m2_ckpt_utf8_bytes((const unsigned char *)text + i, bytes - i);
        if (n == 0) return 0;
        i += (size_t)n;
    }
    return 1;
}

static int has_control(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) return 1;
    return 0;
}

/* What would be a file that no reader takes: two entries of one name, text that is not UTF-8. */
static m2_status check_names(const char *path, const m2_named_tensor *const *tensors, int n_tensors,
                             const m2_metadata_entry *const *metadata, int n_metadata)
{
    for (int i = 0; i < n_tensors; i++) {
        const char *name = tensors[i]->name;
        const char *fault = i > 0 && strcmp(tensors[i - 1]->name, name) == 0 ? "is given twice"
                            : strcmp(name, "__metadata__") == 0   ? "has the format's own name"
                            : !is_utf8(name) || has_control(name) ? "is no printable UTF-8"
                                                                  : NULL;
        if (fault) return m2_fail(M2_ERR_ARG, "%s: tensor '%.200s' %s", path, name, fault);
    }
    for (int i = 0; i < n_metadata; i++) {
        const char *key = metadata[i]->key;
        const char *fault = i > 0 && strcmp(metadata[i - 1]->key, key) == 0 ? "is given twice"
                            : !is_utf8(key) || !is_utf8(metadata[i]->value) ? "is not UTF-8"
                                                                            : NULL;
        if (fault) return m2_fail(M2_ERR_ARG, "%s: metadata '%.200s' %s", path, key, fault);
    }
    return M2_OK;
}

m2_status m2_safetensors_write_id(const char *path, const m2_named_tensor *tensors, int n_tensors,
                                  const m2_metadata_entry *metadata, int n_metadata,
                                  m2_file_id *id_out)
{
    text_buffer header = { 0 };
    m2_temp_file target;
    m2_status status;
    const m2_named_tensor **by_name = malloc(((size_t)n_tensors + 1) * sizeof *by_name);
    const m2_metadata_entry **by_key = malloc(((size_t)n_metadata + 1) * sizeof *by_key);
    if (!by_name || !by_key) {
        status = m2_fail(M2_ERR_MEMORY, "%s: no memory to write it", path);
        goto done;
    }
    for (int i = 0; i < n_tensors; i++) by_name[i] = &tensors[i];
    for (int i = 0; i < n_metadata; i++) by_key[i] = &metadata[i];
    qsort(by_name, (size_t)n_tensors, sizeof *by_name, compare_tensors);
    qsort(by_key, (size_t)n_metadata, sizeof *by_key, compare_metadata);
    status = check_names(path, by_name, n_tensors, by_key, n_metadata);
    if (status != M2_OK) goto done;
    put_header(&header, by_name, n_tensors, by_key, n_metadata);
    if (header.has_failed) {
        status = m2_fail(M2_ERR_MEMORY, "%s: no memory to write it", path);
        goto done;
    }
    status = m2_temp_create(&target, path);
    if (status != M2_OK) goto done;
    status = write_whole(&target, &header, by_name, n_tensors);
    if (status == M2_OK)
        status = m2_temp_commit(&target);
    else
        m2_temp_discard(&target);
    if (status == M2_OK) *id_out = target.id;
done:
    free(header.text);
    free(by_name);
    free(by_key);
    return status;
}

m2_status m2_safetensors_write(const char *path, const m2_named_tensor *tensors, int n_tensors,
                               const m2_metadata_entry *metadata, int n_metadata)
{
    m2_file_id id;
    return m2_safetensors_write_id(path, tensors, n_tensors, metadata, n_metadata, &id);
}
