/* From the table of steps to the tasks of a graph: what each is, and what it waits for.
 *
 * Tasks are made with a key instead of a number (lower.c), and then numbered (numbering.c). With
 * them comes all that is asked of every graph: kinds, lanes, followers.
 */
#ifndef BFPP_LOWERING_H
#define BFPP_LOWERING_H

#include "../core.h"

/* When the lowering makes the tasks of an operation: as `Made` of bfpp.schedules.operations.row. */
enum {
    MADE_IN_ORDER, MADE_SENDING_OUTPUT, MADE_SENDING_GRADIENT, MADE_OFFLOADING, MADE_RELOADING,
    MADE_BEFORE_RUNS, MADE_AFTER_RUNS, MADE_AFTER_PASSES, MADE_AFTER_DATA, MADE_INSIDE
};

/* The extent of a task: as `Scope`, in its order. */
enum { SCOPE_CELL, SCOPE_UNIT, SCOPE_ENDS, SCOPE_RANK };

/* Columns of a drafted task. */
enum {
    DRAFT_OPERATION, DRAFT_RANK, DRAFT_PEER, DRAFT_UNIT, DRAFT_MICROBATCH, DRAFT_WEIGHT_BUFFER,
    DRAFT_GRADIENT_BUFFER, DRAFT_BLOCK, DRAFT_COLUMNS
};

/* Columns of tasks by number, besides their operations. */
enum {
    RANK_COLUMN, PEER_COLUMN, UNIT_COLUMN, MICROBATCH_COLUMN, WEIGHT_BUFFER_COLUMN,
    GRADIENT_BUFFER_COLUMN, PIECE_COLUMN, BLOCK_COLUMN, LANE_COLUMN, PEER_LANE_COLUMN, KIND_COLUMN,
    TASK_COLUMNS
};

/* Settings of `Communication` that decide tasks and their order. */
enum {
    RULE_GATHERS, RULE_GATHERS_RUNS, RULE_REDUCES_RUNS, RULE_RUN_LENGTH, RULE_WEIGHT_BUFFERS,
    RULE_RUNS_AHEAD, RULE_PREFETCH, RULE_REDUCES_LAST, RULE_OFFLOAD, RULE_OFFLOAD_AHEAD, RULES
};

/* Why copies of a unit cannot be gathered or reduced run by run: `counts` has the unit. */
enum { DRAFTED, PREFETCH_TOO_LATE, WEIGHTS_TOO_LATE, GRADIENTS_TOO_LATE };

/* What `counts` has: the unit is that of a fault, and the last says whether a pass is backward. */
enum {
    OF_TASKS, OF_WAITS, OF_BEGINS, OF_UNIT, OF_KINDS, OF_LANES, OF_FOLLOWERS, OF_TRAINS, COUNTS
};

/* Tables of operations:
 *
 * - `made_by` has the operation that is made so, or -1 (of those that only one can be);
 * - `made` lists operations made after passes, and then after data, in the order of their phases;
 *   for each its `scope`; the `after` and `before` passes, by bits of their codes; and within
 *   `wait_bounds` the operations that it `waits` for, and whether for those of `all` ranks.
 */
CORE int64_t bfpp_lower(
    int64_t ranks, int64_t units, int64_t microbatches, int64_t steps, int64_t copies,
    int64_t most_tasks, int64_t most_edges, int64_t operations, int64_t phases, int64_t n_made,
    int64_t n_waits, int64_t streams,
    const int32_t operation[steps], const int32_t rank[steps], const int32_t unit[steps],
    const int32_t microbatch[steps], const int32_t before_step[steps],
    const int32_t block[steps], const int32_t round_of[steps], const int64_t bounds[ranks + 1],
    const int32_t rank_of_unit[units], const int32_t unit_on_rank[units],
    const int32_t peer_of_rank[ranks], const int32_t ends[2],
    const int64_t rules[10], const int32_t made_by[10], const int32_t phase[operations],
    const int32_t made[n_made], const int32_t scope[n_made], const int32_t after[n_made],
    const int32_t before[n_made], const int64_t wait_bounds[n_made + 1],
    const int32_t waits[n_waits], const bool all[n_waits],
    const int32_t place[operations], const int32_t stream_of[operations],
    const int32_t arrives_on[operations], const bool by_peer[streams],
    const bool computes[operations], const bool backward[operations],
    int8_t operation_of[most_tasks], int32_t columns[most_tasks * 11],
    int64_t dependency_start[most_tasks + 1], int32_t dependency[most_edges],
    int64_t follower_start[most_tasks + 1], int32_t follower[most_edges + 2 * most_tasks],
    bool is_compute[most_tasks], bool is_pass[most_tasks],
    int64_t code[most_tasks], int32_t first[most_tasks], int32_t lanes[most_tasks * 6],
    int32_t begins[steps * 2], int64_t counts[8]);

/* How often a step gathers and reduces each unit, by the same rules. */
CORE int64_t bfpp_count_exchanges(
    int64_t ranks, int64_t units, int64_t microbatches, int64_t steps, int64_t copies,
    const int32_t operation[steps], const int32_t rank[steps], const int32_t unit[steps],
    const int32_t microbatch[steps], const int32_t before_step[steps],
    const int32_t block[steps], const int32_t round_of[steps], const int64_t bounds[ranks + 1],
    const int32_t rank_of_unit[units], const int32_t unit_on_rank[units],
    const int32_t peer_of_rank[ranks], const int32_t ends[2], const int64_t rules[10],
    int64_t gathers[units], int64_t reductions[units]);

#endif
