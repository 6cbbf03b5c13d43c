/* safetensors_write.h - write named arrays to a .safetensors file.
 *
 * Written beside the target and renamed when whole, so that the file under its name is always
 * complete.  The same tensors give the same bytes.
 */
#ifndef M2_IO_SAFETENSORS_WRITE_H
#define M2_IO_SAFETENSORS_WRITE_H

#include "core/status.h"
#include "core/temp_file.h"
#include "core/tensor.h"

typedef struct m2_named_tensor {
    const char *name;
    m2_tensor tensor; /* host memory */
} m2_named_tensor;

typedef struct m2_metadata_entry {
    const char *key, *value; /* UTF-8 */
} m2_metadata_entry;

/* Errors  M2_ERR_IO (cannot create, write or rename; nothing is left behind), M2_ERR_ARG (a name twice) */
m2_status m2_safetensors_write(const char *path, const m2_named_tensor *tensors, int n_tensors,
                               const m2_metadata_entry *metadata, int n_metadata);
/* The same; *id_out is the file that now has the name. */
m2_status m2_safetensors_write_id(const char *path, const m2_named_tensor *tensors, int n_tensors,
                                  const m2_metadata_entry *metadata, int n_metadata,
                                  m2_file_id *id_out);

#endif
