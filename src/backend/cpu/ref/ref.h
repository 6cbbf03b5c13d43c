/* ref.h - the scalar definition of every operator, one file each; backend/ops.h says what they do. */
#ifndef M2_BACKEND_CPU_REF_REF_H
#define M2_BACKEND_CPU_REF_REF_H

#include "backend/ops.h"

#define M2_REF_DECLARE(name) void m2_ref_##name(const m2_ops *ops, const m2_##name##_args *args);
M2_OPS(M2_REF_DECLARE)
#undef M2_REF_DECLARE

#endif
