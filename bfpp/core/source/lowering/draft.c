/* The lowering: its theory is at the head of `bfpp/schedules/lowering/__init__.py`, and the
 * reference is the object lowering of the benchmarks.
 *
 * Nothing here knows an operation but the four passes: tables say which one is made when, after
 * what, and before what. */
#include "draft.h"

#include <stdlib.h>
#include <string.h>

int64_t add_task(
    struct draft *draft, int64_t operation, int64_t rank, int64_t peer, int64_t unit, int64_t round)
{
    if (draft->tasks == draft->most_tasks) {
        draft->full = true;
        return 0;
    }
    int32_t *row = draft->rows + draft->tasks * DRAFT_COLUMNS;
    row[DRAFT_OPERATION] = (int32_t)operation;
    row[DRAFT_RANK] = (int32_t)rank;
    row[DRAFT_PEER] = (int32_t)peer;
    row[DRAFT_UNIT] = (int32_t)unit;
    row[DRAFT_MICROBATCH] = NONE;
    row[DRAFT_WEIGHT_BUFFER] = row[DRAFT_GRADIENT_BUFFER] = row[DRAFT_BLOCK] = NONE;
    draft->key[draft->tasks] = round;
    return draft->tasks++;
}

/* A task of a compute step's cell, in the round of a step. */
int64_t add_of_cell(struct draft *draft, int64_t operation, int64_t step, int64_t when)
{
    int64_t task = add_task(
        draft, operation, draft->rank[step], NONE, draft->unit[step], draft->round_of[when]);
    row_of(draft, task)[DRAFT_MICROBATCH] = draft->microbatch[step];
    return task;
}

/* Let a task start only after another one has ended. */
void depend(struct draft *draft, int64_t task, int64_t on)
{
    if (draft->waits == draft->most_edges) {
        draft->full = true;
        return;
    }
    draft->edges[2 * draft->waits] = (uint32_t)task;
    draft->edges[2 * draft->waits + 1] = (uint32_t)on;
    draft->waits++;
}

/* The compute steps; provisional numbers are their places in the table. */
static void add_compute(struct draft *draft, const struct runs *runs)
{
    for (int64_t step = 0; step < draft->steps; step++) {
        int64_t task = add_of_cell(draft, draft->operation[step], step, step);
        int32_t *row = row_of(draft, task), run = runs->of_step[step];
        row[DRAFT_WEIGHT_BUFFER] = runs->weight_buffer[run];
        if (adds_gradients(draft, step))
            row[DRAFT_GRADIENT_BUFFER] = runs->gradient_buffer[run];
        row[DRAFT_BLOCK] = draft->block[step];
        if (draft->full)
            return;
    }
}

/* Transfers of inputs from other ranks; inputs of the same rank are dependencies. */
bool add_transfers(struct draft *draft)
{
    int32_t *consumer = malloc((size_t)(draft->steps + 1) * sizeof *consumer);
    if (!consumer)
        return false;
    memset(consumer, -1, (size_t)draft->steps * sizeof *consumer);
    for (int64_t step = 0; step < draft->steps; step++) {
        int32_t before = draft->before_step[step];
        if (before < 0)
            continue;
        if (draft->rank[before] == draft->rank[step])
            depend(draft, step, before);
        else
            consumer[before] = (int32_t)step;
    }
    for (int64_t step = 0; step < draft->steps; step++) {
        if (consumer[step] < 0)
            continue;
        int made = is_forward(draft, step) ? MADE_SENDING_OUTPUT : MADE_SENDING_GRADIENT;
        int64_t transfer = add_of_cell(draft, draft->made_by[made], step, step);
        row_of(draft, transfer)[DRAFT_PEER] = draft->rank[consumer[step]];
        depend(draft, transfer, step);
        depend(draft, consumer[step], transfer);
    }
    free(consumer);
    return true;
}

/* What is given */

static bool is_in(int64_t value, int64_t least, int64_t end) { return value >= least && value < end; }

static bool has_wrong_steps(const struct draft *draft)
{
    for (int64_t rank = 0; rank < draft->ranks; rank++) {
        if (draft->bounds[rank] >= draft->bounds[rank + 1] || draft->bounds[rank] < 0 ||
            draft->bounds[rank + 1] > draft->steps)
            return true;
        for (int64_t step = draft->bounds[rank]; step < draft->bounds[rank + 1]; step++)
            if (draft->rank[step] != rank)
                return true;
    }
    if (draft->bounds[0] != 0 || draft->bounds[draft->ranks] != draft->steps)
        return true;
    for (int64_t step = 0; step < draft->steps; step++) {
        int64_t block = draft->block[step];
        if (!is_in(draft->operation[step], 0, PASSES) ||
            !is_in(draft->unit[step], 0, draft->units) ||
            !is_in(draft->microbatch[step], 0, draft->microbatches) ||
            !is_in(draft->before_step[step], NONE, draft->steps) ||
            !is_in(draft->round_of[step], 0, INT32_MAX - 2))
            return true;
        if (block != NONE &&
            (!is_in(step - block, 0, 2) || block < 0 || block + 1 >= draft->steps ||
             draft->block[block] != block || draft->block[block + 1] != block))
            return true;
    }
    return false;
}

static bool has_wrong_layout(const struct draft *draft)
{
    for (int64_t unit = 0; unit < draft->units; unit++)
        if (!is_in(draft->rank_of_unit[unit], 0, draft->ranks))
            return true;
    for (int64_t rank = 0; rank < draft->ranks; rank++)
        if (!is_in(draft->peer_of_rank[rank], NONE, draft->ranks))
            return true;
    return !is_in(draft->ends[0], NONE, draft->ranks) || !is_in(draft->ends[1], NONE, draft->ranks);
}

static bool has_wrong_tables(const struct draft *draft, const struct made *made, int64_t n_waits)
{
    for (int64_t kind = MADE_SENDING_OUTPUT; kind <= MADE_AFTER_RUNS; kind++)
        if (!is_in(draft->made_by[kind], PASSES, draft->operations))
            return true;
    if (made->wait_bounds[0] != 0 || made->wait_bounds[made->count] != n_waits)
        return true;
    for (int64_t each = 0; each < made->count; each++) {
        int64_t begin = made->wait_bounds[each], end = made->wait_bounds[each + 1];
        if (!is_in(made->operation[each], PASSES, draft->operations) || begin > end ||
            (made->scope[each] == SCOPE_UNIT && !made->after[each] && begin == end))
            return true;
    }
    for (int64_t at = 0; at < n_waits; at++)
        if (!is_in(made->waits[at], 0, draft->operations))
            return true;
    return draft->rules[RULE_WEIGHT_BUFFERS] < 1 || draft->rules[RULE_RUNS_AHEAD] < 0 ||
           (draft->rules[RULE_GATHERS_RUNS] && !draft->rules[RULE_GATHERS]) ||
           (draft->rules[RULE_OFFLOAD] && draft->rules[RULE_OFFLOAD_AHEAD] < 1);
}

int64_t draft_tasks(
    struct draft *draft, const struct made *made, int64_t n_waits, int64_t *late_unit)
{
    struct runs runs = {0};
    int64_t result = OUT_OF_MEMORY;
    if (draft->ranks < 1 || draft->units < 1 || draft->microbatches < 1 ||
        draft->steps > draft->most_tasks || draft->steps > INT32_MAX / 8 ||
        has_wrong_steps(draft) || has_wrong_layout(draft) ||
        has_wrong_tables(draft, made, n_waits))
        return MALFORMED;
    draft->first_task = calloc(2 * (size_t)draft->operations, sizeof *draft->first_task);
    draft->end_task = draft->first_task ? draft->first_task + draft->operations : NULL;
    if (!draft->first_task || !find_runs(draft, &runs))
        goto done;
    add_compute(draft, &runs);
    if (!add_transfers(draft) || (draft->rules[RULE_OFFLOAD] && !add_offloads(draft)))
        goto done;
    result = add_gathers(draft, &runs, late_unit);
    if (result == DRAFTED)
        result = add_reductions(draft, &runs, late_unit);
    if (result == DRAFTED && !draft->full && !add_made(draft, made))
        result = OUT_OF_MEMORY;
    if (draft->full || draft->is_malformed)
        result = MALFORMED;
done:
    free(draft->first_task);
    free(runs.memory);
    return result;
}
