#include "backend/cpu/ref/ref.h"
#include "backend/joined.h"

/* By the table, so that a faster table's own two operators are used. */
void m2_ref_linear_swiglu7(const m2_ops *ops, const m2_linear_swiglu7_args *args)
{
    m2_joined_linear_swiglu7(ops, args);
}
