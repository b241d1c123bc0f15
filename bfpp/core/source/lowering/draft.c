/* The tasks of a draft, and what they wait for. */
#include "draft.h"

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
