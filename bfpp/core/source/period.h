/* The time from step to step, and whether the times within a step repeat. */
#ifndef BFPP_PERIOD_H
#define BFPP_PERIOD_H

#include "core.h"

CORE int64_t bfpp_period(
    int64_t tasks, int64_t lanes, int64_t ranks, int64_t dependencies, const int32_t lane[tasks],
    const int32_t peer_lane[tasks], const int32_t rank[tasks], const int32_t peer[tasks],
    const int64_t dependency_start[tasks + 1], const int32_t dependency[dependencies],
    const double duration[tasks], double seconds[1]);

CORE int64_t bfpp_repeats(
    int64_t tasks, int64_t kinds, int64_t dependencies, const int32_t kind[tasks],
    const int64_t dependency_start[tasks + 1], const int32_t dependency[dependencies],
    const double start[tasks], const double end[tasks], double begin, double until, double period,
    double tolerance);

#endif
