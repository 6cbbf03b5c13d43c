#include "pipeline/synthetic_fit.h"

#include "model/dit/preview_synthetic.h"
#include "pipeline/bench_roof.h"

/* What a device needs beside what is planned: its matrix library, its recordings. */
#define RESERVE_BYTES ((size_t)1 << 30)

static m2_status measure(const m2_model_config *config, int n_resident,
                         m2_preview_synthetic_size *size_out)
{
    return m2_preview_synthetic_measure(&config->arch, config->eval.time_channel_dim, n_resident,
                                        size_out);
}

size_t m2_bench_step_bytes(const m2_ops *ops, const m2_step_need *need)
{
    const size_t roofs = m2_roof_scratch_bytes(ops);
    return roofs > need->step_bytes ? roofs : need->step_bytes;
}

m2_status m2_synthetic_fit_make(const m2_model_config *config, const m2_ops *ops,
                                const m2_step_need *need, int n_asked, size_t room,
                                m2_synthetic_fit *fit_out)
{
    m2_synthetic_fit fit = { .n_moe_layers = m2_preview_n_moe_layers(&config->arch),
                             .step_bytes = m2_bench_step_bytes(ops, need) };
    m2_preview_synthetic_size one, two, size;
    M2_TRY(measure(config, 1, &one));
    M2_TRY(measure(config, 2, &two));
    if (one.scratch > fit.step_bytes) fit.step_bytes = one.scratch;

    const size_t taken = need->request_bytes + fit.step_bytes + RESERVE_BYTES;
    const size_t left = room > taken ? room - taken : 0, layer = two.weights - one.weights;
    size_t n = (size_t)fit.n_moe_layers;
    if (n_asked > 0 && (size_t)n_asked < n) n = (size_t)n_asked;
    if (n_asked <= 0 && layer > 0) {
        const size_t held = left > one.weights ? 1 + (left - one.weights) / layer : 1;
        if (held < n) n = held;
    }
    fit.n_resident = (int)n;
    M2_TRY(measure(config, fit.n_resident, &size));
    fit.weights_bytes = size.weights;
    *fit_out = fit;
    return M2_OK;
}
