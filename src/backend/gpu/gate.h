/* gate.h - who may call the vendor's runtime: many threads at a time, or one that records.
 *
 * A step is recorded in global capture mode, where a call that allocates, waits or loads code breaks
 * the recording, whichever thread makes it.  That is wanted of strangers, but engines of one process
 * must not break each other: every call of theirs stands between enter and leave, and a recording
 * begins when all other threads have left and keeps them out until it ends.
 *
 * Waiting  nobody waits for a device inside, or a recording would wait as long (m2_gpu_finish); but
 *          freeing memory, and copying where pinned memory was refused, may wait in the driver.
 * Nested   a thread that is inside, or records, may enter again: an operator calls others.
 */
#ifndef M2_BACKEND_GPU_GATE_H
#define M2_BACKEND_GPU_GATE_H

void m2_gpu_enter(void);
/* Alone, and not from inside. */
void m2_gpu_enter_alone(void);
void m2_gpu_leave(void);

#endif
