/* Prices of tasks; in Python, `bfpp/sim/costs/step_costs.py` and `communication/` say what they
 * mean, and tests/core/test_prices.py has them in a few lines of numpy.
 */
#include "prices.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a task of a kind costs, and adds to the tasks after it and before it. */
struct kind {
    double seconds, size, received, sent;
    const int32_t *ports;
};

/* Price each task, whose communication adds to the tasks around it; false for tasks or kinds that
 * there are not.
 */
static bool price_tasks(
    int64_t tasks, int64_t dependencies, int64_t kinds, int64_t width, const int32_t *kind,
    const int64_t *dependency_start, const int32_t *dependency, const struct kind *all,
    const double *own, double *seconds, double *size, int32_t *ports)
{
    for (int64_t task = 0; task < tasks; task++) {
        int64_t first = dependency_start[task], last = dependency_start[task + 1];
        if (kind[task] < 0 || kind[task] >= kinds || first < 0 || last > dependencies)
            return false;
        const struct kind *its = &all[kind[task]];
        double total = own ? own[task] : its->seconds;
        size[task] = its->size;
        for (int64_t nth = 0; nth < width; nth++)
            ports[task * width + nth] = its->ports[nth];
        for (int64_t at = first; at < last; at++) {
            int32_t before = dependency[at];
            if (before < 0 || before >= task)
                return false;
            total += all[kind[before]].received;
            seconds[before] += its->sent;
        }
        seconds[task] = total;
    }
    return true;
}

/* Fill the columns of `Costs` by the kind of each task, and by the communication around it.
 *
 * `cells` and then `others` are kinds. `own` are seconds of tasks in place of their kinds'.
 */
int64_t bfpp_price(
    int64_t tasks, int64_t dependencies, int64_t cells, int64_t others, int64_t width,
    const int32_t *kind, const int64_t *dependency_start, const int32_t *dependency,
    KINDS_PARAMETERS, const double *own, double *seconds, double *size, int32_t *ports)
{
    int64_t kinds = cells + others;
    struct kind *all = malloc((size_t)(kinds + 1) * sizeof *all);
    if (!all)
        return OUT_OF_MEMORY;
    for (int64_t each = 0; each < cells; each++)
        all[each] = (struct kind){
            cell_seconds[each], cell_size[each], cell_received[each], cell_sent[each],
            cell_ports + each * width};
    for (int64_t each = 0; each < others; each++)
        all[cells + each] = (struct kind){
            other_seconds[each], other_size[each], other_received[each], other_sent[each],
            other_ports + each * width};
    bool priced = price_tasks(
        tasks, dependencies, kinds, width, kind, dependency_start, dependency, all, own, seconds,
        size, ports);
    free(all);
    return priced ? 0 : MALFORMED;
}

/* Turn shares of the time of each kind of communication into what they cost other steps.
 *
 * `received` and `sent` come as shares and become seconds. The step that receives a transfer also
 * takes `collecting` seconds, of its tensor-parallel all-gather. If it `blocks` for transfers, they
 * take no time on their own lane: their `seconds` and `size` become zero.
 */
int64_t bfpp_hand_over(
    int64_t kinds, int64_t width, int64_t n_ports, bool blocks, double collecting,
    const bool *is_transfer, double *seconds, double *size, const int32_t *ports,
    const double *bandwidth, double *received, double *sent)
{
    for (int64_t kind = 0; kind < kinds; kind++) {
        double rate = INFINITY;
        for (int64_t nth = 0; nth < width; nth++) {
            int32_t port = ports[kind * width + nth];
            if (port >= n_ports)
                return MALFORMED;
            if (port >= 0)
                rate = fmin(rate, bandwidth[port]);
        }
        double taken = seconds[kind] + size[kind] / rate;
        received[kind] *= taken;
        sent[kind] *= taken;
        if (is_transfer[kind]) {
            received[kind] += collecting;
            if (blocks)
                seconds[kind] = size[kind] = 0.0;
        }
    }
    return 0;
}

/* Fill in the seconds of the `chosen` tasks of the rank that has most of them. */
int64_t bfpp_busiest(
    int64_t tasks, int64_t ranks, const int32_t *rank, const bool *chosen, const double *seconds,
    double most[1])
{
    double *total = calloc((size_t)ranks + 1, sizeof *total);
    if (!total)
        return OUT_OF_MEMORY;
    int64_t result = 0;
    most[0] = 0.0;
    for (int64_t task = 0; task < tasks; task++) {
        if (!chosen[task])
            continue;
        if (rank[task] < 0 || rank[task] >= ranks) {
            result = MALFORMED;
            break;
        }
        double sum = total[rank[task]] += seconds[task];
        most[0] = sum > most[0] ? sum : most[0];
    }
    free(total);
    return result;
}

/* The one of the options from `first` to before `end` that takes least for these bytes. */
static int64_t quickest(
    int64_t first, int64_t end, const double *latency, const double *per_byte, double bytes)
{
    int64_t best = first;
    for (int64_t option = first + 1; option < end; option++)
        if (latency[option] + per_byte[option] * bytes < latency[best] + per_byte[best] * bytes)
            best = option;
    return best;
}

/* Fill the columns of `Load`, of tasks with collectives of `sizes` bytes at these places.
 *
 * `sizes` and `place` have a row for each of a task's collectives, which follow each other. Each
 * takes the algorithm and protocol of the least time, of the options at its place, which are from
 * its `begin` to the next one's; without options or bytes, no time. The bytes of a task pass the
 * ports of the outermost level that limits one of its collectives, `out` of its rank and `into` its
 * peer, at the level's rate.
 */
int64_t bfpp_find_loads(
    int64_t tasks, int64_t collectives, int64_t places, int64_t options, int64_t levels,
    int64_t ranks, int64_t width, const double *sizes, const int32_t *place, const int32_t *begin,
    const double *option_latency, const double *per_byte, const int32_t *level,
    const double *rates, const int32_t *rank, const int32_t *peer, const int32_t *out,
    const int32_t *into, double *latency, double *size, int32_t *ports)
{
    for (int64_t task = 0; task < tasks; task++) {
        double seconds = 0.0;
        int64_t outermost = -1;
        latency[task] = size[task] = 0.0;
        for (int64_t nth = 0; nth < collectives; nth++) {
            double bytes = sizes[nth * tasks + task];
            int32_t where = place[nth * tasks + task];
            if (where < 0 || where >= places)
                return MALFORMED;
            int64_t first = begin[where], end = begin[where + 1];
            if (first < 0 || end > options)
                return MALFORMED;
            if (bytes <= 0.0 || first >= end)
                continue;
            int64_t best = quickest(first, end, option_latency, per_byte, bytes);
            latency[task] += option_latency[best];
            seconds += per_byte[best] * bytes;
            if (level[best] > outermost)
                outermost = level[best];
        }
        int32_t *passed = ports + task * 2 * width;
        if (outermost < 0) {
            memset(passed, -1, (size_t)(2 * width) * sizeof *passed);
            continue;
        }
        if (outermost >= levels || rank[task] < 0 || rank[task] >= ranks || peer[task] < 0 ||
            peer[task] >= ranks)
            return MALFORMED;
        size[task] = rates[outermost] * seconds;
        const int32_t *from = out + ((1 + outermost) * ranks + rank[task]) * width;
        const int32_t *to = into + ((1 + outermost) * ranks + peer[task]) * width;
        memcpy(passed, from, (size_t)width * sizeof *passed);
        memcpy(passed + width, to, (size_t)width * sizeof *passed);
    }
    return 0;
}
