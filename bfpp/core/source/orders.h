/* Compute orders of ranks: filled by rule, checked, and joined to one table of steps. */
#ifndef BFPP_ORDERS_H
#define BFPP_ORDERS_H

#include "core.h"

/* The codes of passes, which orders hold. */
enum { FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, PASSES };

/* Why orders cannot run, and what says where (in `where`):
 * a step outside the layout (its place); a stage that is on another rank (its place); a cell that
 * two ranks run (the place of one, and the other rank); a copy of a stage that runs nothing (its
 * rank, the stage); a cell that is not run once (the cell, and how often it runs, by operation);
 * a block that is none (its place, its rank); slices in a wrong order (the stage, the micro-batch). */
enum {
    RUNS, OUTSIDE, MISPLACED, RUN_TWICE, IDLE_COPY, INCOMPLETE, WRONG_BLOCK, WRONG_SLICES
};

CORE int64_t bfpp_in_sequences(
    int64_t ranks, int64_t held, int64_t steps, int64_t microbatches, int64_t sequence,
    const int32_t stages[held], const int64_t stage_start[ranks + 1], const int64_t ahead[ranks],
    const int64_t OPTIONAL late[ranks],
    int8_t operation[steps], int32_t stage[steps], int32_t microbatch[steps]);

CORE int64_t bfpp_repeat_block(
    int64_t ranks, int64_t microbatches, const int32_t first[ranks * 4],
    int8_t operation[ranks * microbatches * 6], int32_t stage[ranks * microbatches * 6],
    int32_t microbatch[ranks * microbatches * 6]);

CORE int64_t bfpp_find_fault(
    int64_t ranks, int64_t steps, int64_t stages, int64_t copies, int64_t microbatches,
    int64_t slices, const int8_t operation[steps], const int32_t stage[steps],
    const int32_t microbatch[steps], const bool fused[steps], const int64_t bounds[ranks + 1],
    const int32_t placements[copies * stages], int64_t where[5]);

CORE int64_t bfpp_join_orders(
    int64_t ranks, int64_t steps, int64_t stages, int64_t joined, int64_t microbatches,
    const int8_t operation[steps], const int32_t stage[steps], const int32_t microbatch[steps],
    const bool fused[steps], const int64_t bounds[ranks + 1],
    const int32_t units_of_stage[stages],
    int32_t operation_of[joined], int32_t rank_of[joined], int32_t unit_of[joined],
    int32_t microbatch_of[joined], int32_t before[joined], int32_t block_of[joined],
    int32_t rounds[joined], int64_t joined_bounds[ranks + 1], int64_t reached[ranks]);

CORE int64_t bfpp_time_orders(
    int64_t ranks, int64_t units, int64_t steps, int64_t costs, const int32_t operation[steps],
    const int32_t rank[steps], const int32_t unit[steps], const int32_t before_step[steps],
    const int32_t round_of[steps], const double seconds[costs * 4 * units],
    double last_end[costs]);

#endif
