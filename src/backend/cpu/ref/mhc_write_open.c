#include "backend/cpu/ref/ref.h"
#include "backend/joined.h"

/* By the table, so that a faster table's own two operators are used. */
void m2_ref_mhc_write_open(const m2_ops *ops, const m2_mhc_write_open_args *args)
{
    m2_joined_mhc_write_open(ops, args);
}
