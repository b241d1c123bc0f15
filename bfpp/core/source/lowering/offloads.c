/* Copies of activations to the host, and back; the theory is at the head of
 * `bfpp/schedules/lowering/__init__.py`.
 *
 * What is offloaded is decided by the order of passes alone, and so are the waits that bound what a
 * device holds: links of any speed have the same graph.
 */
#include "draft.h"

#include <stdlib.h>
#include <string.h>

/* What offloading works out: for each forward step that is offloaded, its backward pass, the step
 * with which its reload may begin, and its copy to the host; the backward passes, rank by rank; and
 * for each step the copy that it waits for. */
struct offloads {
    int64_t passes;
    int32_t *backward, *reload, *copy, *waits_for, *pass, *forward_of;
};

/* With `ahead` of n, a reload begins with the backward pass n before the one that needs it. For the
 * first ones of a rank, the passes before the first backward pass count instead. */
static void choose_offloaded(const struct draft *draft, struct offloads *offloads)
{
    int64_t least = draft->rules[RULE_OFFLOAD], ahead = draft->rules[RULE_OFFLOAD_AHEAD];
    int64_t first = 0;
    for (int64_t step = 0; step < draft->steps; step++)
        if (is_forward(draft, step))
            offloads->forward_of[cell_of(draft, step)] = (int32_t)step;
    for (int64_t step = 0; step < draft->steps; step++) {
        if (is_forward(draft, step) || draft->operation[step] == BACKWARD_WEIGHT)
            continue;
        int64_t number = offloads->passes++;
        if (number > 0 && draft->rank[offloads->pass[number - 1]] != draft->rank[step])
            first = number;
        offloads->pass[number] = (int32_t)step;
        int64_t turn = number - first, back = ahead < turn ? ahead : turn;
        int64_t begin = offloads->pass[number - back] - (ahead - back);
        if (begin >= 0 && draft->block[begin] >= 0)
            begin = draft->block[begin];
        int32_t forward = offloads->forward_of[cell_of(draft, step)];
        if (forward >= 0 && step - forward > least && begin > end_of(draft, forward) + 1) {
            offloads->backward[forward] = (int32_t)step;
            offloads->reload[forward] = (int32_t)begin;
        }
    }
}

/* A pass waits until no more than `ahead` offloads before it are unfinished, and so does a reload
 * that begins with it. `left` lists the steps that are offloaded. */
static void add_copies_to_host(struct draft *draft, struct offloads *offloads, int32_t *left)
{
    int64_t ahead = draft->rules[RULE_OFFLOAD_AHEAD], count = 0;
    for (int64_t step = 0; step < draft->steps; step++) {
        if (offloads->backward[step] < 0)
            continue;
        int64_t copy = add_of_cell(draft, draft->made_by[MADE_OFFLOADING], step, step);
        depend(draft, copy, step);
        offloads->copy[step] = (int32_t)copy;
        left[count++] = (int32_t)step;
    }
    for (int64_t at = ahead; at < count; at++) {
        int32_t before = left[at - ahead], step = left[at];
        if (draft->rank[before] != draft->rank[step])
            continue;
        int64_t after = end_of(draft, step) + 1;
        if (after >= draft->steps) {
            draft->is_malformed = true;
            return;
        }
        depend(draft, after, offloads->copy[before]);
        offloads->waits_for[after] = offloads->copy[before];
    }
}

static void add_copies_from_host(struct draft *draft, const struct offloads *offloads)
{
    for (int64_t at = 0; at < offloads->passes; at++) {
        int32_t step = offloads->pass[at], forward = offloads->forward_of[cell_of(draft, step)];
        if (forward < 0 || offloads->backward[forward] < 0)
            continue;
        int32_t begin = offloads->reload[forward], own = offloads->copy[forward];
        int64_t reload = add_of_cell(draft, draft->made_by[MADE_RELOADING], step, begin - 1);
        depend(draft, reload, own);
        depend(draft, reload, begin - 1);
        int32_t other = offloads->waits_for[begin];
        if (other >= 0 && other != own)
            depend(draft, reload, other);
        depend(draft, step, reload);
    }
}

/* Copies of activations to the host after a forward pass, back before its backward pass; for passes
 * with enough others in between, one of them while the activations are not resident. */
bool add_offloads(struct draft *draft)
{
    size_t steps = (size_t)draft->steps + 1, cells = (size_t)(draft->units * draft->microbatches);
    int32_t *memory = malloc((6 * steps + cells) * sizeof *memory);
    if (!memory)
        return false;
    memset(memory, -1, (6 * steps + cells) * sizeof *memory);
    struct offloads offloads = {
        0, memory, memory + steps, memory + 2 * steps, memory + 3 * steps, memory + 4 * steps,
        memory + 6 * steps,
    };
    choose_offloaded(draft, &offloads);
    add_copies_to_host(draft, &offloads, memory + 5 * steps);
    if (!draft->is_malformed)
        add_copies_from_host(draft, &offloads);
    free(memory);
    return true;
}
