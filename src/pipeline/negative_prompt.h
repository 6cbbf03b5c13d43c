/* negative_prompt.h - the released negative prompt. */
#ifndef M2_PIPELINE_NEGATIVE_PROMPT_H
#define M2_PIPELINE_NEGATIVE_PROMPT_H

extern const char m2_released_negative_prompt[];

#endif
