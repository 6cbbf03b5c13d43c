/* bench_roof.h - what this machine reaches at best: a large product, and a large copy.
 *
 * Shares of a roof are only worth what the roof is: both are measured in the run that uses them, with
 * the operators that the networks use, on random values.
 */
#ifndef M2_PIPELINE_BENCH_ROOF_H
#define M2_PIPELINE_BENCH_ROOF_H

#include "backend/device.h"

typedef struct m2_roof {
    int64_t product_size;   /* n of the n x n x n product in bf16 */
    size_t copy_size;       /* bytes of the array that is copied  */
    double flop_s, bytes_s; /* the median of several; bytes read and bytes written both count */
} m2_roof;

/* Bytes of scratch memory that the measuring takes. */
size_t m2_roof_scratch_bytes(const m2_ops *ops);
/* Errors  M2_ERR_MEMORY, M2_ERR_INTERNAL */
m2_status m2_roof_measure(const m2_ops *ops, m2_arena *scratch, m2_roof *roof_out);

/* f32 or bf16 normals on the device, a block of a million repeated.  Errors  M2_ERR_MEMORY */
m2_status m2_fill_normals(const m2_ops *ops, uint64_t seed, m2_tensor *tensor);

double m2_median(double *values, int n); /* sorts them */

#endif
