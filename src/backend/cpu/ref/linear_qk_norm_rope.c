#include "backend/cpu/ref/ref.h"
#include "backend/joined.h"

/* By the table, so that a faster table's own two operators are used. */
void m2_ref_linear_qk_norm_rope(const m2_ops *ops, const m2_linear_qk_norm_rope_args *args)
{
    m2_joined_linear_qk_norm_rope(ops, args);
}
