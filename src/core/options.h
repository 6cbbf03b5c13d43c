/* options.h - every switch and environment variable of the program, in one table.
 *
 * The table drives parsing, `--help` and the refusal of what is not built.  Values are kept as the
 * text that was given; the typed getters check them and name the option in their errors.
 */
#ifndef M2_CORE_OPTIONS_H
#define M2_CORE_OPTIONS_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
    M2_CMD_GENERATE = 1 << 0,
    M2_CMD_DECODE = 1 << 1,
    M2_CMD_INSPECT = 1 << 2,
    M2_CMD_TOKENIZE = 1 << 3,
    M2_CMD_DOCTOR = 1 << 4,
    M2_CMD_PLAN = 1 << 5,
    M2_CMD_BENCH_STEP = 1 << 6
};

typedef enum m2_option_id {
    M2_OPT_MODEL = 0,
    M2_OPT_PROMPT,
    M2_OPT_PROMPT_FILE,
    M2_OPT_SAMPLES,
    M2_OPT_IMAGE,
    M2_OPT_NEGATIVE,
    M2_OPT_NEGATIVE_FILE,
    M2_OPT_NO_NEGATIVE,
    M2_OPT_OUTPUT,
    M2_OPT_TIER,
    M2_OPT_STEPS,
    M2_OPT_REFINER_STEPS,
    M2_OPT_SHIFT,
    M2_OPT_SEED,
    M2_OPT_NOISE,
    M2_OPT_NOISE_GRID,
    M2_OPT_GUIDANCE_VIDEO,
    M2_OPT_GUIDANCE_AUDIO,
    M2_OPT_GUIDANCE_RESCALE,
    M2_OPT_GUIDANCE_TRICK,
    M2_OPT_GUIDANCE_DYNAMIC,
    M2_OPT_GUIDANCE_SKIM,
    M2_OPT_OUTPUT_SIZE,
    M2_OPT_VIDEO_ENCODER,
    M2_OPT_BACKEND,
    M2_OPT_THREADS,
    M2_OPT_DEVICE,
    M2_OPT_ISA,
    M2_OPT_RAM_LIMIT,
    M2_OPT_VRAM_LIMIT,
    M2_OPT_LAYERS,
    M2_OPT_STAGE,
    M2_OPT_TOKENS,
    M2_OPT_LAYOUT,
    M2_OPT_OFFLOAD,
    M2_OPT_DTYPE,
    M2_OPT_CACHE,
    M2_OPT_SAVE,
    M2_OPT_METRICS,
    M2_OPT_SAVE_LATENT,
    M2_OPT_CHECKPOINT_EVERY,
    M2_OPT_RESUME,
    M2_OPT_QUIET,
    M2_OPT_VERBOSE,
    M2_OPT_JSON,
    M2_OPT_HELP,
    M2_OPT_COUNT
} m2_option_id;

#define M2_OPERANDS_MAX 16

typedef struct m2_options {
    unsigned command;
    const char *values[M2_OPT_COUNT]; /* NULL: not given; "" for a switch; borrowed from argv */
    int n_operands;
    const char *operands[M2_OPERANDS_MAX];
} m2_options;

/* Parse argv[first ...] for one command.
 * Errors  M2_ERR_ARG: unknown option (with the nearest name), a missing or surplus value, one given
 *         twice, an option of another command, or one whose part is not built yet */
m2_status m2_options_parse(m2_options *options, unsigned command, int argc, char **argv, int first);
void m2_options_print_help(FILE *stream, unsigned command);

/* Edits between two words, for "did you mean". */
int m2_options_distance(const char *a, const char *b);

static inline int m2_options_has(const m2_options *options, m2_option_id id)
{
    return options->values[id] != NULL;
}

/* Typed values; absent gives `fallback`.  Errors  M2_ERR_ARG naming the option and the range. */
m2_status m2_options_int(const m2_options *options, m2_option_id id, int64_t low, int64_t high,
                         int64_t fallback, int64_t *value_out);
m2_status m2_options_real(const m2_options *options, m2_option_id id, double low, double high,
                          double fallback, double *value_out);
/* "WIDTHxHEIGHT", both in [low, high]; absent gives 0, 0. */
m2_status m2_options_pair(const m2_options *options, m2_option_id id, int64_t low, int64_t high,
                          int *first_out, int *second_out);
/* "12G", "512M", "1048576"; absent gives 0. */
m2_status m2_options_bytes(const m2_options *options, m2_option_id id, size_t *bytes_out);

#endif
