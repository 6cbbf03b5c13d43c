/* tensor_list.h - lists of tensor names and shapes: what tables ask for against committed lists,
 * and small random checkpoints made from a table. */
#ifndef M2_TESTS_SUPPORT_TENSOR_LIST_H
#define M2_TESTS_SUPPORT_TENSOR_LIST_H

#include "model/weights.h"

#define TENSOR_LIST_MAX 2048

typedef struct tensor_list {
    int n;
    struct {
        char name[160];
        m2_dtype dtype;
        int n_dims;
        int64_t shape[M2_MAX_DIMS];
    } rows[TENSOR_LIST_MAX];
} tensor_list;

/* A m2_weight_visit; `list` is the user pointer. */
void tensor_list_add(void *list, const char *name, m2_dtype dtype, int n_dims, const int64_t *shape,
                     unsigned flags);
/* Fails unless `list` and the lines "name <tab> dtype <tab> AxBxC" of the file hold the same. */
void tensor_list_check(const tensor_list *list, const char *path);
/* A safetensors file of random values around 0, of deviation 1 / sqrt(values a row), except that
 * ".weight_g" is about 1 and the logarithms ".alpha" and ".beta" are small; each name is `prefix` + name from `skip` on. */
void tensor_list_write(const tensor_list *list, const char *path, const char *prefix, size_t skip,
                       uint64_t seed);

#endif
