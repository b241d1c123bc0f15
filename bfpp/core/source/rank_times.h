/* When each rank computes, how long it only communicates, and how long a step takes. */
#ifndef BFPP_RANK_TIMES_H
#define BFPP_RANK_TIMES_H

#include "core.h"

CORE int64_t bfpp_rank_times(
    int64_t tasks, int64_t operations, int64_t lanes, int64_t ranks, int64_t kinds,
    const int8_t operation[tasks], const int32_t lane[tasks], const int32_t peer_lane[tasks],
    const int32_t kind[operations], const int32_t rank_of_lane[lanes], const double start[tasks],
    const double end[tasks], double first_start[ranks], double last_end[ranks],
    double busy[ranks], double exposed[(kinds - 1) * ranks]);

CORE int64_t bfpp_step_sums(
    int64_t tasks, const double start[tasks], const double end[tasks], const bool is_pass[tasks],
    double sums[3]);

#endif
