/* check_rng.c - golden/rng: PyTorch's normals on the device and on the CPU.
 *
 * Values agree to 2e-6, not bit for bit: the device's sine and cosine are fast intrinsics, and the
 * CPU's are those of a vector library.  So the digests of randn.json, which hash those exact bits,
 * are checked for their form alone; the moments beside them are compared. */
#include "golden.h"

#include "core/rng.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VALUE_TOLERANCE 2e-6
#define DRAWS_MAX       1000

typedef struct rng_case {
    golden_run *run;
    golden_file *file;
    json_t *json;
    json_t *seen; /* keys of json that were checked */
    char *prefix; /* "cuda.seed42."                 */
    int is_cpu;
    uint64_t seed;
    m2_rng_grid grid;
    m2_rng device;
    m2_cpu_rng cpu;
} rng_case;

static void reseed(rng_case *c)
{
    if (m2_rng_init(&c->device, c->seed, c->grid) != M2_OK)
        golden_result(c->run, 0, c->prefix, "%s", m2_last_error());
    m2_cpu_rng_init(&c->cpu, c->seed);
}

/* The next draw of n values; caller frees. */
static float *draw(rng_case *c, int64_t n)
{
    float *values = malloc((size_t)(n ? n : 1) * sizeof *values);
    if (!values) abort();
    if (c->is_cpu)
        m2_cpu_rng_normal(&c->cpu, values, n);
    else
        m2_rng_normal(&c->device, golden_pool(c->run), values, n);
    return values;
}

/* Entry [i] against values[i * stride]. */
static void compare(rng_case *c, const char *name, const float *values, int64_t n, int64_t stride)
{
    const m2_tensor expected = golden_tensor(c->file, name, M2_F64);
    if (!expected.data) return;
    const int64_t count = m2_tensor_count(&expected);
    if (count < 1 || (count - 1) * stride >= n) {
        golden_result(c->run, 0, name, "%lld values at a stride of %lld, of %lld drawn",
                      (long long)count, (long long)stride, (long long)n);
        return;
    }
    double worst = 0;
    for (int64_t i = 0; i < count; i++) {
        const double difference = fabs(values[i * stride] - ((const double *)expected.data)[i]);
        if (!(difference <= worst)) worst = isfinite(difference) ? difference : INFINITY;
    }
    golden_result(c->run, worst <= VALUE_TOLERANCE, name, "largest difference %.2e, limit %.0e",
                  worst, VALUE_TOLERANCE);
}

static char *name_of(rng_case *c, const char *draw_name, const char *part)
{
    return golden_format(c->run, "%s%s%s", c->prefix, draw_name, part);
}

static void check_moments(rng_case *c, const char *name, json_t *entry, const float *values,
                          int64_t n)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) sum += values[i];
    const double mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++) squares += (values[i] - mean) * (values[i] - mean);
    /* Neither moment can move further than the values do. */
    const double deviation = sqrt(squares / (double)n);
    const double mean_error = fabs(mean - json_number_value(json_object_get(entry, "mean")));
    const double deviation_error =
        fabs(deviation - json_number_value(json_object_get(entry, "std")));
    golden_result(c->run, mean_error <= VALUE_TOLERANCE && deviation_error <= VALUE_TOLERANCE,
                  golden_format(c->run, "%s moments", name), "mean off by %.2e, deviation by %.2e",
                  mean_error, deviation_error);
}

/* The entry of randn.json for a draw: its count, after a look at its fields; -1 if it is wrong. */
static int64_t count_of(rng_case *c, const char *name, json_t **entry_out)
{
    json_t *entry = json_object_get(c->json, name);
    const int64_t count = json_integer_value(json_object_get(entry, "count"));
    json_t *shape = json_object_get(entry, "shape");
    const char *digest = json_string_value(json_object_get(entry, "sha256_of_float32_bytes"));
    json_object_set_new(c->seen, name, json_true());
    int64_t product = 1;
    size_t i;
    json_t *size;
    json_array_foreach(shape, i, size)
    {
        product *= json_integer_value(size);
    }
    const int is_good = json_is_array(shape) && count == product && count > 0 && digest &&
                        strlen(digest) == 64 && strspn(digest, "0123456789abcdef") == 64 &&
                        json_is_number(json_object_get(entry, "mean")) &&
                        json_is_number(json_object_get(entry, "std")) &&
                        json_object_size(entry) == 5;
    if (!is_good) golden_result(c->run, 0, name, "its entry of randn.json is not understood");
    *entry_out = entry;
    return is_good ? count : -1;
}

static void check_ends(rng_case *c, const char *draw_name, const float *values, int64_t n)
{
    const char *first = name_of(c, draw_name, ".first"), *last = name_of(c, draw_name, ".last");
    if (golden_has(c->file, first)) compare(c, first, values, n, 1);
    if (golden_has(c->file, last)) {
        const int64_t count = golden_take(c->file, last)->count;
        compare(c, last, values + (count <= n ? n - count : 0), count <= n ? count : n, 1);
    }
}

/* The pipeline's draws from one seed, one after the other. */
static void check_sequence(rng_case *c)
{
    reseed(c);
    for (int i = 0; i < DRAWS_MAX; i++) {
        const char *draw_name = golden_format(c->run, "seq%d", i);
        const char *name = name_of(c, draw_name, "");
        if (!json_object_get(c->json, name)) return;
        json_t *entry;
        const int64_t n = count_of(c, name, &entry);
        if (n < 0) return;
        float *values = draw(c, n);
        check_ends(c, draw_name, values, n);
        check_moments(c, name, entry, values, n);
        free(values);
    }
}

static void check_small(rng_case *c)
{
    reseed(c);
    for (int i = 0; i < DRAWS_MAX; i++) {
        const char *name = golden_format(c->run, "%ssmall%d", c->prefix, i);
        const m2_ckpt_tensor *entry = golden_take(c->file, name);
        if (!entry) return;
        float *values = draw(c, entry->count);
        compare(c, name, values, entry->count, 1);
        free(values);
    }
}

/* The number that ends an entry's name below the prefix, after `word`; -1 for another entry. */
static int64_t number_after(const rng_case *c, const char *name, const char *word)
{
    const size_t n_prefix = strlen(c->prefix), n_word = strlen(word);
    if (strncmp(name, c->prefix, n_prefix) != 0) return -1;
    if (strncmp(name + n_prefix, word, n_word) != 0) return -1;
    const char *digits = name + n_prefix + n_word;
    char *end;
    if (!isdigit((unsigned char)*digits)) return -1;
    const int64_t number = strtoll(digits, &end, 10);
    return *end == '\0' ? number : -1;
}

static void check_fresh(rng_case *c)
{
    for (int64_t i = 0; i < golden_n_entries(c->file); i++) {
        const m2_ckpt_tensor *entry = golden_entry(c->file, i);
        const int64_t n = number_after(c, entry->name, "fresh");
        if (n < 0) continue;
        if (n != entry->count) {
            golden_result(c->run, 0, entry->name, "holds %lld values", (long long)entry->count);
            continue;
        }
        reseed(c);
        float *values = draw(c, n);
        compare(c, entry->name, values, n, 1);
        free(values);
    }
}

static void check_long(rng_case *c)
{
    const char *name = name_of(c, "long", "");
    if (!json_object_get(c->json, name)) return;
    json_t *entry;
    const int64_t n = count_of(c, name, &entry);
    if (n < 0) return;
    reseed(c);
    float *values = draw(c, n);
    check_ends(c, "long", values, n);
    check_moments(c, name, entry, values, n);
    for (int64_t i = 0; i < golden_n_entries(c->file); i++) {
        const m2_ckpt_tensor *sample = golden_entry(c->file, i);
        const int64_t stride = number_after(c, sample->name, "long.every");
        if (stride > 0) compare(c, sample->name, values, n, stride);
        const int64_t n_next = number_after(c, sample->name, "long.next");
        if (n_next > 0) {
            float *next = draw(c, n_next);
            compare(c, sample->name, next, n_next, 1);
            free(next);
        }
    }
    free(values);
}

static int parse_prefix(golden_run *run, const char *name, rng_case *c)
{
    const char *digits = NULL;
    c->is_cpu = strncmp(name, "cpu.seed", 8) == 0;
    if (c->is_cpu) digits = name + 8;
    if (strncmp(name, "cuda.seed", 9) == 0) digits = name + 9;
    if (!digits || !isdigit((unsigned char)*digits)) return 0;
    char *end;
    c->seed = strtoull(digits, &end, 10);
    if (*end != '.') return 0;
    c->prefix = golden_format(run, "%.*s", (int)(end + 1 - name), name);
    return 1;
}

static int read_grid(golden_run *run, json_t *json, m2_rng_grid *grid_out)
{
    json_t *gpu = json_object_get(json, "gpu");
    grid_out->n_multiprocessors = (int)json_integer_value(json_object_get(gpu, "multiprocessors"));
    grid_out->threads_max_per_multiprocessor =
        (int)json_integer_value(json_object_get(gpu, "max_threads_per_multiprocessor"));
    m2_rng rng;
    if (m2_rng_init(&rng, 0, *grid_out) == M2_OK) return 1;
    golden_result(run, 0, "randn.json gpu", "%s", m2_last_error());
    return 0;
}

static void check_draws(golden_run *run, golden_file *file, json_t *json)
{
    rng_case c = { .run = run, .file = file, .json = json, .seen = json_object() };
    json_object_set_new(c.seen, "gpu", json_true());
    json_t *prefixes = json_object();
    if (read_grid(run, json, &c.grid)) {
        for (int64_t i = 0; i < golden_n_entries(file); i++) {
            if (!parse_prefix(run, golden_entry(file, i)->name, &c)) continue;
            if (json_object_get(prefixes, c.prefix)) continue;
            json_object_set_new(prefixes, c.prefix, json_true());
            check_sequence(&c);
            check_small(&c);
            check_fresh(&c);
            check_long(&c);
        }
        const char *key;
        json_t *value;
        json_object_foreach(json, key, value)
        {
            if (!json_object_get(c.seen, key))
                golden_result(run, 0, key, "randn.json: not understood");
        }
    }
    json_decref(prefixes);
    json_decref(c.seen);
}

/* The run's own note counts the tensors. */
static void check_report(golden_run *run, const char *path, int64_t n_entries)
{
    json_t *report = golden_json(run, path);
    if (!report) return;
    json_t *notes = json_object_get(report, "notes");
    const char *expected = golden_format(run, "%lld tensors", (long long)n_entries);
    const char *note = json_string_value(json_array_get(notes, 0));
    const char *component = json_string_value(json_object_get(report, "component"));
    golden_result(
        run, note && strcmp(note, expected) == 0 && component && strcmp(component, "rng") == 0,
        "report.json", "notes say \"%s\", the file holds %s", note ? note : "nothing", expected);
    json_decref(report);
}

void golden_check_rng(golden_run *run, const char *dir)
{
    int64_t n_entries = -1;
    json_t *json = golden_json(run, golden_format(run, "%s/randn.json", dir));
    golden_file *file = golden_open(run, golden_format(run, "%s/randn.safetensors", dir));
    if (json && file) {
        n_entries = golden_n_entries(file);
        check_draws(run, file, json);
    }
    golden_close(file);
    json_decref(json);
    for (char **name = golden_list(run, dir, 0); *name; name++) {
        const char *path = golden_format(run, "%s/%s", dir, *name);
        if (strcmp(*name, "randn.json") == 0 || strcmp(*name, "randn.safetensors") == 0) continue;
        if (strcmp(*name, "report.json") == 0)
            check_report(run, path, n_entries);
        else
            golden_result(run, 0, path, "not understood");
    }
    for (char **name = golden_list(run, dir, 1); *name; name++)
        golden_result(run, 0, golden_format(run, "%s/%s", dir, *name), "not understood");
}
