#include "backend/cpu/ref/ref.h"
#include "backend/joined.h"

/* By the table, so that a faster table's own two operators are used. */
void m2_ref_mhc_open(const m2_ops *ops, const m2_mhc_open_args *args)
{
    m2_joined_mhc_open(ops, args);
}
