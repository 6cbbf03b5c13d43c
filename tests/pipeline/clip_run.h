/* clip_run.h - clips through the public interface, for tests: small, saved, read back. */
#ifndef M2_TESTS_PIPELINE_CLIP_RUN_H
#define M2_TESTS_PIPELINE_CLIP_RUN_H

#include "core/tensor.h"
#include "magi2.h"

/* The demo model with a tier "tiny" of 32x32 pixels as its default, by links, in `dir`/model. */
void clip_make_tiny_model(const char *dir, char model_dir[4096]);

/* An array that a run saved below `dir`; the values are malloc'd. */
m2_tensor clip_read_array(const char *dir, const char *name);

/* The manifest's text, malloc'd. */
char *clip_read_manifest(const char *dir);

#endif
