#include "backend/random_case.h"

#define TOKENS  23
#define HEADS   2
#define EXPERTS 5
#define TOP_K   3
#define DIM     40
#define WIDTH   48

static double swiglu7_exact(double gate, double linear)
{
    const double g = fmin(gate, 7), l = fmax(fmin(linear, 7), -7);
    return g / (1 + exp(-1.702 * g)) * (l + 1);
}

/* One expert on one token: the hidden row is rounded to bf16, as the contract has it. */
static double expert_output(const m2_moe_ffn_args *a, int64_t token, int64_t row, int64_t d)
{
    double sum = 0;
    for (int64_t i = 0; i < WIDTH; i++) {
        double gate = 0, up = 0;
        for (int64_t j = 0; j < DIM; j++) {
            const double x = value_at(a->x, (token * HEADS + row / EXPERTS) * DIM + j);
            gate += x * value_at(a->w_gate, (row * DIM + j) * WIDTH + i);
            up += x * value_at(a->w_up, (row * DIM + j) * WIDTH + i);
        }
        sum += (double)m2_round_bf16((float)swiglu7_exact(gate, up)) *
               value_at(a->w_down, (row * WIDTH + i) * DIM + d);
    }
    return sum;
}

/* Catches transposed weights, a wrong expert or head, probabilities of another route, and sums
 * taken in another order than by ascending expert (bf16 additions do not commute). */
static void experts_follow_the_formula(void **state)
{
    (void)state;
    random_case c;
    random_case_open(&c, 5);
    const m2_ops ops = reference_ops();
    m2_tensor x = random_tensor(&c, M2_BF16, 1, TOKENS, HEADS, DIM);
    m2_tensor gate = random_tensor(&c, M2_BF16, 0.3f, HEADS * EXPERTS, DIM, WIDTH);
    m2_tensor up = random_tensor(&c, M2_BF16, 0.3f, HEADS * EXPERTS, DIM, WIDTH);
    m2_tensor down = random_tensor(&c, M2_BF16, 0.3f, HEADS * EXPERTS, WIDTH, DIM);
    m2_tensor logits = random_tensor(&c, M2_F32, 1, HEADS, TOKENS, EXPERTS);
    for (int64_t t = 0; t < TOKENS; t++) ((float *)logits.data)[t * EXPERTS + 2] = -50; /* idle */
    m2_tensor idx = m2_tensor_make(&c.arena, M2_I32, HEADS, TOKENS, TOP_K);
    m2_tensor prob = m2_tensor_make(&c.arena, M2_F32, HEADS, TOKENS, TOP_K);
    m2_tensor gather = m2_tensor_make(&c.arena, M2_I32, HEADS * TOKENS * TOP_K);
    m2_tensor sorted = m2_tensor_make(&c.arena, M2_F32, HEADS * TOKENS * TOP_K);
    m2_tensor offsets = m2_tensor_make(&c.arena, M2_I32, HEADS * EXPERTS + 1);
    m2_tensor pos = m2_tensor_make(&c.arena, M2_I32, HEADS, TOKENS, TOP_K);
    m2_tensor routes = m2_tensor_make(&c.arena, M2_BF16, HEADS * TOKENS * TOP_K, DIM);
    m2_tensor y = m2_tensor_make(&c.arena, M2_BF16, TOKENS, HEADS, DIM);
    ops.moe_select(&ops,
                   &(m2_moe_select_args){
                       .logits = &logits, .route_scale = 2, .topk_idx = &idx, .topk_prob = &prob });
    ops.moe_dispatch(&ops, &(m2_moe_dispatch_args){ .topk_idx = &idx,
                                                    .topk_prob = &prob,
                                                    .n_experts = EXPERTS,
                                                    .gather_ids = &gather,
                                                    .probs_sorted = &sorted,
                                                    .expert_offsets = &offsets,
                                                    .route_pos = &pos });
    const m2_moe_ffn_args args = { .x = &x,
                                   .gather_ids = &gather,
                                   .probs_sorted = &sorted,
                                   .expert_offsets = &offsets,
                                   .route_pos = &pos,
                                   .w_gate = &gate,
                                   .w_up = &up,
                                   .w_down = &down,
                                   .routes = &routes,
                                   .y = &y };
    ops.moe_ffn(&ops, &args);

    int n_differ = 0;
    for (int64_t t = 0; t < TOKENS; t++) {
        for (int64_t h = 0; h < HEADS; h++) {
            for (int64_t d = 0; d < DIM; d++) {
                float sum = 0;
                for (int e = 0; e < EXPERTS; e++) {
                    for (int k = 0; k < TOP_K; k++) {
                        const int64_t at = (h * TOKENS + t) * TOP_K + k;
                        if (((int32_t *)idx.data)[at] != e) continue;
                        const double r = expert_output(&args, t, h * EXPERTS + e, d);
                        const float p = ((float *)prob.data)[at];
                        sum = m2_round_bf16(sum + m2_round_bf16((float)r * p));
                    }
                }
                /* A product in f32 can fall on the other side of a tie than one in f64. */
                n_differ += (double)sum != value_at(&y, (t * HEADS + h) * DIM + d);
            }
        }
    }
    check_near(n_differ, 0, TOKENS * HEADS * DIM / 100, "values that differ"); /* measured: 0 */
    random_case_close(&c);
}

/* Catches the wrong type taken for x, experts of another head, a layout other than by head. */
static void logits_follow_the_formula(void **state)
{
    (void)state;
    random_case c;
    random_case_open(&c, 6);
    const m2_ops ops = reference_ops();
    m2_tensor x = random_tensor(&c, M2_BF16, 1, TOKENS, HEADS, DIM);
    m2_tensor gate = random_tensor(&c, M2_F32, 1, HEADS * EXPERTS, DIM);
    m2_tensor logits = m2_tensor_make(&c.arena, M2_F32, HEADS, TOKENS, EXPERTS);
    ops.moe_logits(&ops, &(m2_moe_logits_args){ .x = &x, .gate = &gate, .logits = &logits });
    double *truth = m2_new(&c.arena, double, HEADS *TOKENS *EXPERTS);
    for (int64_t i = 0; i < HEADS * TOKENS * EXPERTS; i++) {
        const int64_t e = i % EXPERTS, t = i / EXPERTS % TOKENS, h = i / EXPERTS / TOKENS;
        truth[i] = 0;
        for (int64_t d = 0; d < DIM; d++)
            truth[i] += value_at(&x, (t * HEADS + h) * DIM + d) *
                        value_at(&gate, (h * EXPERTS + e) * DIM + d);
    }
    const double error =
        m2_test_relative_error(logits.data, M2_F32, truth, M2_F64, HEADS * TOKENS * EXPERTS);
    check_near(error, 0, 3e-7, "logits");
    random_case_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_follow_the_formula),
        cmocka_unit_test(logits_follow_the_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
