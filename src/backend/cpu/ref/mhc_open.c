#include "backend/cpu/ref/ref.h"

/* By the table, so that a faster table's own two operators are used. */
void m2_ref_mhc_open(const m2_ops *ops, const m2_mhc_open_args *args)
{
    ops->mhc_coefficients(ops, &args->coefficients);
    ops->mhc_read(ops, &(m2_mhc_read_args){ .s = args->coefficients.s,
                                            .h_pre = args->coefficients.h_pre,
                                            .x = args->x });
}
