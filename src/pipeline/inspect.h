/* inspect.h - what a model directory, a part of one, or a checkpoint file holds. */
#ifndef M2_PIPELINE_INSPECT_H
#define M2_PIPELINE_INSPECT_H

#include "core/status.h"

/* A model's root: every part with its sizes, checked strictly against the networks' tables.  Anything
 * else that m2_checkpoint_open takes: its tensors.  *text_out is malloc'd and is given whenever there
 * is something to say, also with an error.
 * Errors  M2_ERR_IO, M2_ERR_FORMAT, M2_ERR_MODEL (a part does not fit), M2_ERR_MEMORY */
m2_status m2_inspect(const char *path, int as_json, char **text_out);

#endif
