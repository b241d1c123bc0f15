/* The time of a step, by the prices of its kinds of tasks: all from these to its sums. */
#ifndef BFPP_STEP_H
#define BFPP_STEP_H

#include "prices.h"

/* Results of timing a step: done, or fewer micro-batches do not determine it (no period). */
enum { TIMED, NOT_PERIODIC };

CORE int64_t bfpp_step_time(
    int64_t tasks, int64_t lanes, int64_t ranks, int64_t dependencies, int64_t followers,
    int64_t cells, int64_t others, int64_t width, int64_t n_ports,
    const int32_t kind[tasks], const int32_t rank[tasks], const int32_t lane[tasks],
    const int32_t peer_lane[tasks], const bool is_compute[tasks], const bool is_pass[tasks],
    const int64_t dependency_start[tasks + 1], const int32_t dependency[dependencies],
    const int64_t follower_start[tasks + 1], const int32_t follower[followers],
    KINDS_PARAMETERS,
    const double bandwidth[n_ports], const double OPTIONAL own[tasks],
    double least, double tolerance,
    int64_t begins, int64_t periods, int64_t between, int64_t left_out, double rounding,
    const int32_t begin[begins], double sums[2]);

#endif
