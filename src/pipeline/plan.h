/* plan.h - what a model needs on a kind of machine, before anything is loaded. */
#ifndef M2_PIPELINE_PLAN_H
#define M2_PIPELINE_PLAN_H

#include "core/status.h"
#include "magi2.h"

/* Report for people or (as_json) machines; *text_out is the caller's, also given when the status is
 * M2_ERR_MEMORY: it does not fit.
 * Errors  M2_ERR_ARG, M2_ERR_IO, M2_ERR_FORMAT, M2_ERR_MODEL, M2_ERR_UNSUPPORTED */
m2_status m2_plan(const magi2_params *params, const char *tier, int as_json, char **text_out);

#endif
