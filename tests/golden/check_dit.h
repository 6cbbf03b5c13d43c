/* check_dit.h - one case of the preview transformer, set up for its checks. */
#ifndef M2_TESTS_GOLDEN_CHECK_DIT_H
#define M2_TESTS_GOLDEN_CHECK_DIT_H

#include "golden.h"

#include "model/dit/preview.h"

#define DIT_GAP_MIN 0.002 /* nearer scores may be chosen otherwise by rounding */

/* What the network showed, by name, copied to the host. */
typedef struct dit_seen {
    golden_run *run;
    int n, room;
    struct {
        char *name;
        m2_tensor tensor;
    } * values;
} dit_seen;

typedef struct dit_case {
    golden_run *run;
    golden_file *file;
    const char *name;     /* "a/t2va_small"                                */
    const json_t *report; /* errors that the generator recorded, or NULL   */
    const m2_preview *net;
    const m2_arch_config *arch;
    int n_time_channels;
    m2_arena request_arena, step_arena;
    m2_preview_request request;
    m2_preview_step step; /* inputs and room for the outputs               */
    m2_tensor video, audio, video_out, audio_out;
    m2_tensor placed[4]; /* the same, where the network runs              */
    int timestep;
    int32_t *seq_of_row; /* [n]                                           */
    int64_t n;           /* tokens                                        */
    dit_seen prepared;   /* of the request                                */
} dit_case;

m2_trace dit_trace(dit_seen *seen);
/* NULL after a recorded failure. */
const m2_tensor *dit_find(const dit_seen *seen, const char *name_format, ...)
    __attribute__((format(printf, 2, 3)));

/* [n, width] between modality and sequence order, for any element type. */
void *dit_to_sequence(const dit_case *c, const void *rows, size_t row_bytes);
void *dit_to_modality(const dit_case *c, const void *rows, size_t row_bytes);
/* The same for [heads, n, width]. */
void *dit_heads_reordered(const dit_case *c, const void *values, int64_t n_heads, size_t row_bytes,
                          int to_sequence);

/* Our `ours` against entry `truth` with entry `reference`; the recorded error of `reference` must be
 * the one that the report names as `report_name`. */
void dit_judge(dit_case *c, const char *what, const m2_tensor *ours, const char *reference,
               const char *truth, const char *report_name);

void dit_check_tokens(dit_case *c, const dit_seen *forward);
void dit_check_layers(dit_case *c);
/* Choices of a run against entry moeN.<which>: rows with other sets, with gap_min on moeN.gap.truth. */
int64_t dit_count_other_sets(dit_case *c, int layer, const m2_tensor *ours, const char *which,
                             double gap_min);
void dit_check_forward(dit_case *c);

#endif
