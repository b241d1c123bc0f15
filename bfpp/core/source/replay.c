/* Replay of a task graph; the reference is `bfpp/sim/engines/simpy_engine.py`. */
#include "replay.h"

#include <math.h>
#include <stdlib.h>

/* Start each task, in the order of the numbers, as soon as it may; returns whether flows may meet.
 *
 * `start` and `end` are filled as if each flow had its ports to itself: up to the first one that
 * enters a port before those of smaller numbers have left it.
 */
int64_t bfpp_sweep(
    int64_t tasks, int64_t lanes, int64_t dependencies, int64_t width, int64_t n_ports,
    const int32_t *lane, const int32_t *peer_lane, const int64_t *dependency_start,
    const int32_t *dependency, const double *seconds, const double *size, const int32_t *ports,
    const double *bandwidth, double *start, double *end)
{
    double *free_at = calloc((size_t)(lanes + n_ports + 1), sizeof *free_at);
    if (!free_at)
        return OUT_OF_MEMORY;
    double *left = free_at + lanes;
    int64_t result = 0;
    for (int64_t task = 0; task < tasks; task++) {
        int32_t own = lane[task], peer = peer_lane[task];
        int64_t first = dependency_start[task], last = dependency_start[task + 1];
        if (own < 0 || own >= lanes || peer >= lanes || first < 0 || last > dependencies) {
            result = MALFORMED;
            break;
        }
        double time = free_at[own];
        if (peer >= 0)
            time = fmax(time, free_at[peer]);
        for (int64_t at = first; at < last; at++) {
            int32_t before = dependency[at];
            if (before < 0 || before >= task) {
                free(free_at);
                return MALFORMED;
            }
            time = fmax(time, end[before]);
        }
        start[task] = time;
        time += seconds[task];
        if (size[task] > 0.0) {
            const int32_t *passed = ports + task * width;
            double narrowest = INFINITY;
            for (int64_t nth = 0; nth < width; nth++) {
                int32_t port = passed[nth];
                if (port < 0)
                    continue;
                if (port >= n_ports) {
                    free(free_at);
                    return MALFORMED;
                }
                if (time < left[port]) {
                    free(free_at);
                    return 1;
                }
                narrowest = fmin(narrowest, bandwidth[port]);
            }
            time += size[task] / narrowest;
            for (int64_t nth = 0; nth < width; nth++)
                if (passed[nth] >= 0)
                    left[passed[nth]] = time;
        }
        end[task] = time;
        free_at[own] = time;
        if (peer >= 0)
            free_at[peer] = time;
    }
    free(free_at);
    return result;
}
