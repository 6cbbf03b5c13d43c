/* doctor.h - this machine on one page. */
#ifndef M2_PIPELINE_DOCTOR_H
#define M2_PIPELINE_DOCTOR_H

#include "core/status.h"

/* *text_out is malloc'd.  Errors  M2_ERR_MEMORY */
m2_status m2_doctor(int as_json, char **text_out);

#endif
