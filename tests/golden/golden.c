#include "golden_run.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct golden_file {
    golden_run *run;
    char *path;
    m2_checkpoint *checkpoint;
    unsigned char *is_taken;
};

/* A reference this far from its truth is no reference: the file was damaged. */
#define REFERENCE_ERROR_MAX 0.7

void *golden_alloc(golden_run *run, size_t bytes)
{
    if (run->n_blocks == run->room) {
        run->room = run->room ? run->room * 2 : 256;
        run->blocks = realloc(run->blocks, (size_t)run->room * sizeof *run->blocks);
    }
    void *block = calloc(1, bytes ? bytes : 1);
    if (!block || !run->blocks) {
        fprintf(stderr, "golden_check: out of memory\n");
        abort();
    }
    run->blocks[run->n_blocks++] = block;
    return block;
}

void golden_run_free(golden_run *run)
{
    for (int i = 0; i < run->n_blocks; i++) free(run->blocks[i]);
    free(run->blocks);
    golden_close_backend(run);
    m2_pool_destroy(run->pool);
}

char *golden_format(golden_run *run, const char *format, ...)
{
    char text[4096];
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    char *copy = golden_alloc(run, (size_t)n + 1);
    memcpy(copy, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
    return copy;
}

/* ---- verdicts ---- */

static void print_verdict(golden_run *run, const char *verdict, const char *name, const char *text,
                          json_t *numbers)
{
    if (!run->is_json) {
        printf("%-7s %s/%s  %s\n", verdict, run->component, name, text);
        fflush(stdout);
        json_decref(numbers);
        return;
    }
    json_t *line = numbers ? numbers : json_object();
    json_object_set_new(line, "component", json_string(run->component));
    json_object_set_new(line, "case", json_string(name));
    json_object_set_new(line, "verdict", json_string(verdict));
    json_object_set_new(line, "text", json_string(text));
    char *dumped = json_dumps(line, JSON_COMPACT | JSON_SORT_KEYS);
    printf("%s\n", dumped ? dumped : "{}");
    fflush(stdout);
    free(dumped);
    json_decref(line);
}

static void record(golden_run *run, int has_passed)
{
    if (has_passed)
        run->n_passed++;
    else
        run->n_failed++;
}

void golden_result(golden_run *run, int has_passed, const char *name, const char *format, ...)
{
    char text[3000];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    record(run, has_passed);
    print_verdict(run, has_passed ? "passed" : "FAILED", name, text, NULL);
}

void golden_skip(golden_run *run, const char *name, const char *reason)
{
    run->n_skipped++;
    print_verdict(run, "skipped", name, reason, NULL);
}

void golden_exact(golden_run *run, const char *name, const void *ours, const void *expected,
                  size_t bytes)
{
    const unsigned char *a = ours, *b = expected;
    for (size_t i = 0; i < bytes; i++) {
        if (a[i] == b[i]) continue;
        golden_result(run, 0, name, "differs from byte %zu of %zu on", i, bytes);
        return;
    }
    golden_result(run, 1, name, "%zu bytes equal", bytes);
}

double golden_relative_error(const void *x, m2_dtype x_dtype, const void *truth,
                             m2_dtype truth_dtype, int64_t n)
{
    double difference = 0, norm = 0;
    const size_t x_bytes = m2_dtype_bytes(x_dtype), truth_bytes = m2_dtype_bytes(truth_dtype);
    for (int64_t i = 0; i < n; i++) {
        double a, b;
        m2_convert((const char *)x + (size_t)i * x_bytes, x_dtype, &a, M2_F64, 1);
        m2_convert((const char *)truth + (size_t)i * truth_bytes, truth_dtype, &b, M2_F64, 1);
        if (!isfinite(a) || !isfinite(b)) return INFINITY;
        difference += (a - b) * (a - b);
        norm += b * b;
    }
    if (difference == 0) return 0;
    return norm == 0 ? INFINITY : sqrt(difference / norm);
}

void golden_judge_values(golden_run *run, const char *name, const void *ours, m2_dtype ours_dtype,
                         double reference_error, const void *truth, m2_dtype truth_dtype, int64_t n,
                         double factor, double floor)
{
    const double error = golden_relative_error(ours, ours_dtype, truth, truth_dtype, n);
    const double limit = fmax(factor * reference_error, floor);
    const int is_sane = reference_error <= REFERENCE_ERROR_MAX;
    const int has_passed = is_sane && error <= limit;
    char text[256];
    snprintf(text, sizeof text, "error %.3e  reference %.3e  ratio %.2f  limit %.3e%s", error,
             reference_error, reference_error > 0 ? error / reference_error : 0.0, limit,
             is_sane ? "" : "  the recorded reference is not near its truth");
    record(run, has_passed);
    json_t *numbers = json_object();
    if (isfinite(error)) json_object_set_new(numbers, "error", json_real(error));
    if (isfinite(reference_error))
        json_object_set_new(numbers, "reference", json_real(reference_error));
    json_object_set_new(numbers, "limit", json_real(isfinite(limit) ? limit : 0));
    print_verdict(run, has_passed ? "passed" : "FAILED", name, text, numbers);
}

void golden_judge(golden_file *file, const char *what, const m2_tensor *ours, const char *reference,
                  const char *truth, double factor)
{
    golden_run *run = file->run;
    const char *base = strrchr(file->path, '/');
    const char *name = golden_format(run, "%s %s", base ? base + 1 : file->path, what);
    const m2_tensor truth_values = golden_tensor(file, truth, M2_F64);
    if (!truth_values.data) return;
    const int64_t n = m2_tensor_count(&truth_values);
    if (n != m2_tensor_count(ours)) {
        golden_result(run, 0, name, "%lld values, %lld expected", (long long)m2_tensor_count(ours),
                      (long long)n);
        return;
    }
    double reference_error = 0;
    if (reference) {
        const m2_tensor values = golden_tensor(file, reference, M2_F64);
        if (!values.data) return;
        if (m2_tensor_count(&values) != n) {
            golden_result(run, 0, name, "%s and %s differ in size", reference, truth);
            return;
        }
        reference_error = golden_relative_error(values.data, M2_F64, truth_values.data, M2_F64, n);
    }
    golden_judge_values(run, name, ours->data, ours->dtype, reference_error, truth_values.data,
                        M2_F64, n, factor,
                        ours->dtype == M2_BF16 ? GOLDEN_FLOOR_BF16 : GOLDEN_FLOOR_F32);
}

/* ---- files ---- */

golden_file *golden_open(golden_run *run, const char *path)
{
    m2_checkpoint *checkpoint = NULL;
    if (m2_checkpoint_open(path, &checkpoint) != M2_OK) {
        golden_result(run, 0, path, "%s", m2_last_error());
        return NULL;
    }
    golden_file *file = golden_alloc(run, sizeof *file);
    file->run = run;
    file->path = golden_format(run, "%s", path);
    file->checkpoint = checkpoint;
    file->is_taken = golden_alloc(run, (size_t)m2_checkpoint_n_tensors(checkpoint));
    return file;
}

void golden_close(golden_file *file)
{
    if (!file) return;
    const int64_t n = m2_checkpoint_n_tensors(file->checkpoint);
    for (int64_t i = 0; i < n; i++) {
        if (file->is_taken[i]) continue;
        golden_result(file->run, 0, file->path, "%s: not understood",
                      m2_checkpoint_at(file->checkpoint, i)->name);
    }
    m2_checkpoint_close(file->checkpoint);
    file->checkpoint = NULL;
}

const m2_ckpt_tensor *golden_take(golden_file *file, const char *name)
{
    const m2_ckpt_tensor *tensor = m2_checkpoint_find(file->checkpoint, name);
    if (tensor) file->is_taken[tensor - m2_checkpoint_at(file->checkpoint, 0)] = 1;
    return tensor;
}

int golden_has(golden_file *file, const char *name)
{
    return m2_checkpoint_find(file->checkpoint, name) != NULL;
}

void golden_ignore(golden_file *file, const char *name)
{
    golden_take(file, name);
}

m2_tensor golden_tensor(golden_file *file, const char *name, m2_dtype dtype)
{
    const m2_ckpt_tensor *tensor = golden_take(file, name);
    if (!tensor) {
        golden_result(file->run, 0, file->path, "%s: missing", name);
        return (m2_tensor){ 0 };
    }
    void *values = golden_alloc(file->run, (size_t)tensor->count * m2_dtype_bytes(dtype));
    m2_checkpoint_read(tensor, dtype, values);
    return m2_tensor_wrap(values, dtype, tensor->n_dims, tensor->shape);
}

const char *golden_metadata(golden_file *file, const char *key)
{
    return m2_checkpoint_metadata(file->checkpoint, key);
}

int64_t golden_n_entries(golden_file *file)
{
    return m2_checkpoint_n_tensors(file->checkpoint);
}

const m2_ckpt_tensor *golden_entry(golden_file *file, int64_t idx)
{
    return m2_checkpoint_at(file->checkpoint, idx);
}

static char *read_text(golden_run *run, const char *path, size_t *bytes_out)
{
    FILE *file = fopen(path, "rb");
    struct stat info;
    if (!file || fstat(fileno(file), &info) != 0) {
        golden_result(run, 0, path, "cannot be read: %s", strerror(errno));
        if (file) fclose(file);
        return NULL;
    }
    char *text = golden_alloc(run, (size_t)info.st_size + 1);
    *bytes_out = fread(text, 1, (size_t)info.st_size, file);
    fclose(file);
    return text;
}

json_t *golden_json(golden_run *run, const char *path)
{
    size_t bytes;
    const char *text = read_text(run, path, &bytes);
    if (!text) return NULL;
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_ALLOW_NUL, &error);
    if (!root) golden_result(run, 0, path, "line %d: %s", error.line, error.text);
    return root;
}

json_t *golden_json_lines(golden_run *run, const char *path)
{
    size_t bytes;
    const char *text = read_text(run, path, &bytes);
    if (!text) return NULL;
    json_t *lines = json_array();
    size_t begin = 0;
    for (int line = 1; begin < bytes; line++) {
        const char *end = memchr(text + begin, '\n', bytes - begin);
        const size_t stop = end ? (size_t)(end - text) : bytes;
        json_error_t error;
        json_t *value = json_loadb(text + begin, stop - begin, JSON_ALLOW_NUL, &error);
        if (!value) {
            golden_result(run, 0, path, "line %d: %s", line, error.text);
            json_decref(lines);
            return NULL;
        }
        json_array_append_new(lines, value);
        begin = stop + 1;
    }
    return lines;
}

int golden_is_file(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

char **golden_list(golden_run *run, const char *dir, int want_dirs)
{
    int n = 0, room = 16;
    char **names = malloc((size_t)room * sizeof *names);
    DIR *handle = opendir(dir);
    for (struct dirent *entry; handle && (entry = readdir(handle));) {
        if (entry->d_name[0] == '.') continue;
        struct stat info;
        const char *path = golden_format(run, "%s/%s", dir, entry->d_name);
        if (stat(path, &info) != 0 || (S_ISDIR(info.st_mode) != 0) != want_dirs) continue;
        if (n + 1 == room) names = realloc(names, (size_t)(room *= 2) * sizeof *names);
        names[n++] = golden_format(run, "%s", entry->d_name);
    }
    if (handle) closedir(handle);
    qsort(names, (size_t)n, sizeof *names, compare_names);
    char **list = golden_alloc(run, ((size_t)n + 1) * sizeof *list);
    memcpy(list, names, (size_t)n * sizeof *list);
    free(names);
    return list;
}
