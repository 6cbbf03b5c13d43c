/* The pickle machine alone: the zip file around it would hide it from the fuzzer. */
#include "fuzz.h"

#include "io/pickle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    m2_pickle *pickle = NULL;
    char name[64];
    if (m2_pickle_load("fuzz", data, bytes, 1 << 20, &pickle) != M2_OK) return 0;
    (void)m2_pickle_top(pickle);
    (void)m2_pickle_n_opaque(pickle, name, sizeof name);
    m2_pickle_free(pickle);
    return 0;
}
