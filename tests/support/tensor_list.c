#include "support/tensor_list.h"

#include "support/check.h"
#include "support/files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tensor_list_add(void *user, const char *name, m2_dtype dtype, int n_dims, const int64_t *shape,
                     unsigned flags)
{
    tensor_list *list = user;
    (void)flags;
    assert_true(list->n < TENSOR_LIST_MAX && strlen(name) < sizeof list->rows[0].name);
    strcpy(list->rows[list->n].name, name);
    list->rows[list->n].dtype = dtype;
    list->rows[list->n].n_dims = n_dims;
    for (int i = 0; i < n_dims; i++) list->rows[list->n].shape[i] = shape[i];
    list->n++;
}

static void as_line(const tensor_list *list, int row, char *line, size_t bytes)
{
    size_t used = (size_t)snprintf(line, bytes, "%s\t%s\t", list->rows[row].name,
                                   m2_dtype_name(list->rows[row].dtype));
    for (int i = 0; i < list->rows[row].n_dims; i++)
        used += (size_t)snprintf(line + used, bytes - used, i ? "x%lld" : "%lld",
                                 (long long)list->rows[row].shape[i]);
}

void tensor_list_check(const tensor_list *list, const char *path)
{
    size_t bytes;
    char *text = m2_test_read_file(path, &bytes), *rest = text, *line;
    int n = 0;
    while ((line = strsep(&rest, "\n"))) {
        if (line[0] == '\0' || line[0] == '#') continue;
        int found = 0;
        for (int i = 0; i < list->n && !found; i++) {
            char ours[400];
            as_line(list, i, ours, sizeof ours);
            found = strcmp(ours, line) == 0;
        }
        if (!found) fail_msg("%s: no table row is '%s'", path, line);
        n++;
    }
    if (n != list->n) fail_msg("%s: %d tensors, the tables have %d", path, n, list->n);
    free(text);
}

static float value_of(m2_test_random *random, const char *name, double deviation)
{
    const char *dot = strrchr(name, '.');
    const float normal = m2_test_random_normal(random);
    if (dot && strcmp(dot, ".weight_g") == 0) return 1 + 0.1f * normal;
    if (dot && (strcmp(dot, ".alpha") == 0 || strcmp(dot, ".beta") == 0)) return 0.2f * normal;
    return (float)(normal * deviation);
}

void tensor_list_write(const tensor_list *list, const char *path, const char *prefix, size_t skip,
                       uint64_t seed)
{
    m2_test_random random = { seed };
    int64_t n_values = 0;
    for (int i = 0; i < list->n; i++) {
        const m2_tensor row =
            m2_tensor_wrap(NULL, M2_F32, list->rows[i].n_dims, list->rows[i].shape);
        n_values += m2_tensor_count(&row);
    }
    const size_t header_max = 16 + (size_t)list->n * 400;
    char *file = calloc(1, 8 + header_max + (size_t)n_values * 4);
    assert_non_null(file);
    char *header = file + 8;
    size_t used = 0;
    int64_t begin = 0;
    for (int i = 0; i < list->n; i++) {
        char shape[100];
        const m2_tensor row =
            m2_tensor_wrap(NULL, M2_F32, list->rows[i].n_dims, list->rows[i].shape);
        const int64_t end = begin + 4 * m2_tensor_count(&row);
        used += (size_t)snprintf(
            header + used, header_max - used,
            "%s\"%s%s\":{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":[%lld,%lld]}",
            i ? "," : "{", prefix, list->rows[i].name + skip,
            m2_tensor_shape_text(&row, shape, sizeof shape), (long long)begin, (long long)end);
        begin = end;
    }
    used += (size_t)snprintf(header + used, header_max - used, "}");
    while (used % 8 != 0) header[used++] = ' ';
    const uint64_t header_bytes = used;
    memcpy(file, &header_bytes, sizeof header_bytes);
    float *values = (float *)(header + used);
    for (int i = 0; i < list->n; i++) {
        const m2_tensor row =
            m2_tensor_wrap(NULL, M2_F32, list->rows[i].n_dims, list->rows[i].shape);
        const int64_t n = m2_tensor_count(&row), rows = list->rows[i].shape[0];
        for (int64_t v = 0; v < n; v++)
            *values++ = value_of(&random, list->rows[i].name, 1 / sqrt((double)n / (double)rows));
    }
    m2_test_write_file(path, file, 8 + used + (size_t)n_values * 4);
    free(file);
}
