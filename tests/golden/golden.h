/* golden.h - how golden_check finds cases, judges them, and knows that it understood a file whole.
 *
 * A component is a folder name ("dit", "ops", "demo-e2e" ...) with one function that checks every
 * case below it.  A safetensors file is opened by golden_open; each entry must be taken (as input,
 * reference or truth) before golden_close, else it is a failure named "not understood".
 *
 * The error rule: relative RMS error against the float64 truth <= max(factor * the reference's own
 * error, floor), factor 2 unless the design says 3, floor 3e-7 for f32 and 2^-10 for bf16 results.
 */
#ifndef M2_TESTS_GOLDEN_GOLDEN_H
#define M2_TESTS_GOLDEN_GOLDEN_H

#include "backend/ops.h"
#include "core/tensor.h"
#include "io/checkpoint.h"

#include <jansson.h>

#define GOLDEN_FLOOR_F32  3e-7
#define GOLDEN_FLOOR_BF16 0x1p-10

typedef struct golden_run golden_run;
typedef struct golden_file golden_file;

/* ---- the backend under test (--backend, --isa, --threads) ---- */
/* The table that networks run on; its tensors may stand on a device. */
const m2_ops *golden_ops(const golden_run *run);
/* The same operators for tensors of the host. */
const m2_ops *golden_host_ops(const golden_run *run);
/* Workers of the host. */
m2_pool *golden_pool(const golden_run *run);
/* "cpu", "cuda" ... as an engine takes it; NULL if an engine cannot be opened on it. */
const char *golden_engine_backend(const golden_run *run);
/* A table to plan with for golden_ops. */
void golden_init_measure(const golden_run *run, m2_ops *measure);
m2_status golden_arena(golden_run *run, m2_arena *arena, const char *name, size_t bytes);
void golden_arena_free(golden_run *run, m2_arena *arena);
/* A copy on the device until golden_free_copies; the tensor itself where that is the host. */
m2_tensor golden_to_device(golden_run *run, const m2_tensor *host);
void golden_free_copies(golden_run *run);
/* A copy on the host until the run ends; the tensor itself where it stands there. A device that
 * failed is a recorded failure. */
m2_tensor golden_to_host(golden_run *run, const m2_tensor *device);
/* A failure if the device, or an operator's mirror, found a fault. */
void golden_check_device(golden_run *run);

/* ---- files ---- */
/* NULL after a recorded failure. `path` is copied. */
golden_file *golden_open(golden_run *run, const char *path);
/* Unread entries become failures. */
void golden_close(golden_file *file);
/* The entry, marked as understood; NULL if there is none (no failure). */
const m2_ckpt_tensor *golden_take(golden_file *file, const char *name);
int golden_has(golden_file *file, const char *name);
/* The entry's values converted to `dtype` in memory that lives until golden_close; marks it.
 * A missing entry is a recorded failure and gives a tensor with data NULL. */
m2_tensor golden_tensor(golden_file *file, const char *name, m2_dtype dtype);
/* __metadata__ of the file; NULL without the key. */
const char *golden_metadata(golden_file *file, const char *key);
int64_t golden_n_entries(golden_file *file);
const m2_ckpt_tensor *golden_entry(golden_file *file, int64_t idx); /* does not mark */
/* Mark an entry that is understood and deliberately not compared (say why at the call). */
void golden_ignore(golden_file *file, const char *name);

/* Memory that lives until the run ends. */
void *golden_alloc(golden_run *run, size_t bytes);
char *golden_format(golden_run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* JSON and JSON Lines ('\n' alone ends a line): NULL after a recorded failure; caller decref()s. */
json_t *golden_json(golden_run *run, const char *path);
json_t *golden_json_lines(golden_run *run, const char *path); /* an array */

/* Names of the entries of a directory, sorted, in an array ended by NULL; files or folders. */
char **golden_list(golden_run *run, const char *dir, int want_dirs);
int golden_is_file(const char *path);

/* ---- verdicts: one line each ---- */
/* Judge `ours` (host) against the entries `reference` (may be NULL: then `reference_error` counts)
 * and `truth` of `file`.  Both are marked. */
void golden_judge(golden_file *file, const char *what, const m2_tensor *ours, const char *reference,
                  const char *truth, double factor);
/* The same with values at hand. */
void golden_judge_values(golden_run *run, const char *name, const void *ours, m2_dtype ours_dtype,
                         double reference_error, const void *truth, m2_dtype truth_dtype, int64_t n,
                         double factor, double floor);
double golden_relative_error(const void *x, m2_dtype x_dtype, const void *truth,
                             m2_dtype truth_dtype, int64_t n);
/* Bytes that must be equal. */
void golden_exact(golden_run *run, const char *name, const void *ours, const void *expected,
                  size_t bytes);
/* A verdict of any other kind. */
void golden_result(golden_run *run, int has_passed, const char *name, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void golden_skip(golden_run *run, const char *name, const char *reason);

/* ---- components (check_<name>.c) ---- */
typedef void golden_component(golden_run *run, const char *dir);
golden_component golden_check_dit, golden_check_ops, golden_check_sampler, golden_check_text,
    golden_check_tokenizer, golden_check_prompt, golden_check_turbo, golden_check_audio,
    golden_check_rng, golden_check_checkpoint, golden_check_e2e, golden_check_demo_e2e,
    golden_check_video;

#endif
