#include "backend/cpu/ref/ref.h"
#include "backend/joined.h"

/* By the table, so that a faster table's own two operators are used. */
void m2_ref_attention_gated(const m2_ops *ops, const m2_attention_gated_args *args)
{
    m2_joined_attention_gated(ops, args);
}
