/* When each task of a graph starts and ends. */
#ifndef BFPP_REPLAY_H
#define BFPP_REPLAY_H

#include "core.h"

CORE int64_t bfpp_sweep(
    int64_t tasks, int64_t lanes, int64_t dependencies, int64_t width, int64_t n_ports,
    const int32_t lane[tasks], const int32_t peer_lane[tasks],
    const int64_t dependency_start[tasks + 1], const int32_t dependency[dependencies],
    const double seconds[tasks], const double size[tasks], const int32_t ports[tasks * width],
    const double bandwidth[n_ports], double start[tasks], double end[tasks]);

CORE int64_t bfpp_replay(
    int64_t tasks, int64_t followers, int64_t width, int64_t n_ports, int64_t parameters,
    const int64_t follower_start[tasks + 1], const int32_t follower[followers],
    const double seconds[tasks], const double size[tasks], const int32_t ports[tasks * width],
    const double bandwidth[n_ports], const double OPTIONAL seconds_slope[tasks * parameters],
    const double OPTIONAL size_slope[tasks * parameters],
    const double OPTIONAL bandwidth_slope[n_ports * parameters], double start[tasks],
    double end[tasks], double OPTIONAL end_slope[tasks * parameters]);

#endif
