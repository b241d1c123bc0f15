/* Compute steps, and the transfers between them. */
#include "draft.h"

#include <stdlib.h>
#include <string.h>

/* The compute steps; provisional numbers are their places in the table. */
void add_compute(struct draft *draft, const struct runs *runs)
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
