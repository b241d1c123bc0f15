/* A step in the making, which the files of this folder share: what is given, and the tasks so far.
 *
 * A drafted task has a provisional number and a key (round, phase); tasks are numbered by their
 * keys, those of one key as they were drafted. */
#ifndef BFPP_DRAFT_H
#define BFPP_DRAFT_H

#include "../orders.h"
#include "lowering.h"

#define NONE (-1)
#define BEFORE (-1) /* the round before the first compute step */
#define GRADIENT_BUFFERS 2

/* Tasks of one operation that have one copy each: gathers, or reductions.
 * `of_run` is the task of each run, `lead` the run of the first copy (or the second's, where that
 * one has more runs), `following` the task that used the buffer before. */
struct turns {
    int64_t tasks;
    int32_t *of_run, *lead, *following, *buffer;
};

/* Runs of all ranks, in the order of their first steps: maximal segments of one unit among a rank's
 * forward steps, or its backward steps, or as many steps of it as a run may have. */
struct runs {
    int64_t count;
    int32_t *of_step, *first, *last, *length, *weight_buffer, *gradient_buffer;
    bool *overlaps; /* of each rank: a run begins before another has ended, or in a block with it */
    struct turns gathers, reductions;
    void *memory;
};

struct draft {
    int64_t ranks, units, microbatches, steps, copies, operations, phases;
    const int32_t *operation, *rank, *unit, *microbatch, *before_step, *block, *round_of;
    const int64_t *bounds;
    const int32_t *rank_of_unit, *unit_on_rank, *peer_of_rank, *ends;
    const int64_t *rules;
    const int32_t *made_by;
    int64_t most_tasks, most_edges, tasks, waits, bounded;
    int32_t *rows, *begins;
    int64_t *key;
    uint32_t *edges;
    int32_t *first_task, *end_task; /* of each operation that is made at one time */
    bool full, is_malformed;
};

/* Operations that tables declare, as `bfpp_lower` takes them. */
struct made {
    int64_t count;
    const int32_t *operation, *scope, *after, *before;
    const int64_t *wait_bounds;
    const int32_t *waits;
    const bool *all;
};

/* Columns of tasks by number, up to the block, and what each waits for. */
struct numbered {
    int8_t *operation;
    int32_t *columns, *dependency;
    int64_t *dependency_start;
};

int64_t number_tasks(struct draft *draft, const int32_t *phase, struct numbered *numbered);

int64_t add_task(
    struct draft *draft, int64_t operation, int64_t rank, int64_t peer, int64_t unit,
    int64_t round);
int64_t add_of_cell(struct draft *draft, int64_t operation, int64_t step, int64_t when);
void depend(struct draft *draft, int64_t task, int64_t on);

static inline int32_t *row_of(const struct draft *draft, int64_t task)
{
    return draft->rows + task * DRAFT_COLUMNS;
}

static inline bool is_forward(const struct draft *draft, int64_t step)
{
    return draft->operation[step] == FORWARD;
}

static inline bool adds_gradients(const struct draft *draft, int64_t step)
{
    return draft->operation[step] == BACKWARD || draft->operation[step] == BACKWARD_WEIGHT;
}

static inline int64_t cell_of(const struct draft *draft, int64_t step)
{
    return draft->unit[step] * draft->microbatches + draft->microbatch[step];
}

/* The last step of the block that a step is in, or the step. */
static inline int64_t end_of(const struct draft *draft, int64_t step)
{
    return draft->block[step] < 0 ? step : draft->block[step] + 1;
}

/* These return false, or OUT_OF_MEMORY, where memory is short; gathers and reductions return
 * DRAFTED, or why copies of a unit cannot meet, with the unit. */
bool find_runs(struct draft *draft, struct runs *runs);
void add_compute(struct draft *draft, const struct runs *runs);
bool add_transfers(struct draft *draft);
bool add_offloads(struct draft *draft);
int64_t add_gathers(struct draft *draft, const struct runs *runs, int64_t *late_unit);
int64_t add_reductions(struct draft *draft, const struct runs *runs, int64_t *late_unit);
bool add_made(struct draft *draft, const struct made *made);

#endif
