/* save.h - the arrays of a run in a directory, with a manifest that names their SHA-256.
 *
 * DIR/<name>.safetensors holds one tensor <name>; DIR/manifest.json lists them with the build, the
 * instruction set and the settings; keys are sorted and nothing depends on the time, so that equal
 * runs give equal manifests.
 */
#ifndef M2_PIPELINE_SAVE_H
#define M2_PIPELINE_SAVE_H

#include "core/status.h"
#include "core/tensor.h"

typedef struct m2_save m2_save;

/* Whether there is or could be such a directory; a new one is not left behind.
 * Errors  M2_ERR_IO */
m2_status m2_save_probe(const char *dir, int *is_new_out);

/* Makes the directory if it is not there (its parent must be).
 * Errors  M2_ERR_IO, M2_ERR_MEMORY */
m2_status m2_save_open(const char *dir, m2_save **save_out);
/* Write one array and keep its digest. */
m2_status m2_save_array(m2_save *save, const char *name, const m2_tensor *tensor);
/* Write manifest.json. */
m2_status m2_save_finish(m2_save *save, const char *isa, const char *settings);
void m2_save_close(m2_save *save);

#endif
