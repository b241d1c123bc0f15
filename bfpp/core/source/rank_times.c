/* When each rank computes; the reference is `benchmarks/traces/rank_times_by_numpy.py`.
 *
 * Tasks are sorted into groups, one for each rank and kind: kinds of communication, and compute as
 * the last one. Compute is joined into stretches apart from each other. What a kind exposes is what
 * it covers together with these, less what they cover.
 */
#include "rank_times.h"

#include <stdlib.h>

/* Intervals by group: those of a group begin at `first[group]`. */
struct intervals {
    int64_t *first;
    double *begin, *until;
};

/* The graph and its times, and the kind of each operation, or -1. */
struct timed {
    int64_t tasks, operations, lanes, ranks, kinds;
    const int8_t *operation;
    const int32_t *lane, *peer_lane, *kind, *rank_of_lane;
    const double *start, *end;
};

static bool is_well_formed(const struct timed *t)
{
    if (t->kinds < 1 || t->ranks < 0)
        return false;
    for (int64_t each = 0; each < t->operations; each++)
        if (t->kind[each] >= t->kinds)
            return false;
    for (int64_t lane = 0; lane < t->lanes; lane++)
        if (t->rank_of_lane[lane] < 0 || t->rank_of_lane[lane] >= t->ranks)
            return false;
    for (int64_t task = 0; task < t->tasks; task++)
        if (t->operation[task] < 0 || t->operation[task] >= t->operations || t->lane[task] < 0 ||
            t->lane[task] >= t->lanes || t->peer_lane[task] >= t->lanes)
            return false;
    return true;
}

/* Count the tasks of each kind on each lane; returns how many there are. */
static int64_t count_tasks(const struct timed *t, int64_t *count)
{
    int64_t all = 0;
    for (int64_t task = 0; task < t->tasks; task++) {
        int32_t kind = t->kind[t->operation[task]];
        if (kind < 0)
            continue;
        count[t->lane[task] * t->kinds + kind]++;
        all++;
        if (t->peer_lane[task] >= 0) {
            count[t->peer_lane[task] * t->kinds + kind]++;
            all++;
        }
    }
    return all;
}

/* Turn the counts of lanes into the places of their first tasks, and say where groups begin.
 *
 * The tasks of a lane follow one another, so that few of these runs are to be merged. `free_at` has
 * an entry for each group.
 */
static void place_lanes(const struct timed *t, int64_t *count, int64_t *free_at, int64_t *first)
{
    int64_t groups = t->ranks * t->kinds;
    for (int64_t group = 0; group <= groups; group++)
        first[group] = 0;
    for (int64_t lane = 0; lane < t->lanes; lane++)
        for (int64_t kind = 0; kind < t->kinds; kind++)
            first[t->rank_of_lane[lane] * t->kinds + kind + 1] += count[lane * t->kinds + kind];
    for (int64_t group = 0; group < groups; group++) {
        first[group + 1] += first[group];
        free_at[group] = first[group];
    }
    for (int64_t lane = 0; lane < t->lanes; lane++)
        for (int64_t kind = 0; kind < t->kinds; kind++) {
            int64_t group = t->rank_of_lane[lane] * t->kinds + kind;
            int64_t tasks = count[lane * t->kinds + kind];
            count[lane * t->kinds + kind] = free_at[group];
            free_at[group] += tasks;
        }
}

/* Fill the intervals, given the place of the next task of each lane and kind. */
static void fill_intervals(const struct timed *t, int64_t *place, struct intervals *found)
{
    for (int64_t task = 0; task < t->tasks; task++) {
        int32_t kind = t->kind[t->operation[task]];
        if (kind < 0)
            continue;
        int64_t at = place[t->lane[task] * t->kinds + kind]++;
        found->begin[at] = t->start[task];
        found->until[at] = t->end[task];
        if (t->peer_lane[task] >= 0) {
            at = place[t->peer_lane[task] * t->kinds + kind]++;
            found->begin[at] = t->start[task];
            found->until[at] = t->end[task];
        }
    }
}

/* Where the run of intervals in order that begins at `first` ends.
 *
 * It goes on unless the next one begins earlier, so that NaN, which is not earlier than anything,
 * ends none: each merge makes one run of two, whatever the times are.
 */
static int64_t run_end(const struct intervals *all, int64_t first, int64_t high)
{
    int64_t last = first + 1;
    while (last < high && !(all->begin[last] < all->begin[last - 1]))
        last++;
    return last;
}

/* Merge two runs that follow one another, from `first` to `middle` and from there to `last`. */
static void merge(
    struct intervals *all, int64_t first, int64_t middle, int64_t last, struct intervals *spare)
{
    int64_t ahead = middle - first, other = middle, to = first;
    for (int64_t at = 0; at < ahead; at++) {
        spare->begin[at] = all->begin[first + at];
        spare->until[at] = all->until[first + at];
    }
    for (int64_t at = 0; at < ahead; to++)
        if (other < last && all->begin[other] < spare->begin[at]) {
            all->begin[to] = all->begin[other];
            all->until[to] = all->until[other++];
        } else {
            all->begin[to] = spare->begin[at];
            all->until[to] = spare->until[at++];
        }
}

/* Put intervals in the order of their begin: merges the runs that are in order, in pairs. */
static void sort(struct intervals *all, int64_t low, int64_t high, struct intervals *spare)
{
    for (bool merges = true; merges;) {
        merges = false;
        for (int64_t first = low, last; first < high; first = last) {
            int64_t middle = run_end(all, first, high);
            last = middle < high ? run_end(all, middle, high) : middle;
            if (middle < last) {
                merges = true;
                merge(all, first, middle, last, spare);
            }
        }
    }
}

/* Make stretches of intervals in order, those that meet one; returns where their list ends. */
static int64_t join(struct intervals *all, int64_t low, int64_t high)
{
    int64_t last = low;
    for (int64_t at = low + 1; at < high; at++)
        if (all->begin[at] > all->until[last]) {
            last++;
            all->begin[last] = all->begin[at];
            all->until[last] = all->until[at];
        } else if (all->until[at] > all->until[last]) {
            all->until[last] = all->until[at];
        }
    return last + 1;
}

/* Seconds covered by sorted intervals, but not by the stretches from `low` to `high`.
 *
 * That is what both cover together, less the `busy` seconds of the stretches, in the order in which
 * numpy sums: the result is the same to the last bit.
 */
static double exposed_seconds(
    const struct intervals *all, int64_t first, int64_t last, int64_t low, int64_t high,
    double busy)
{
    if (first == last)
        return 0.0;
    double seconds = 0.0, since = 0.0, reached = 0.0;
    bool covers = false;
    while (first < last || low < high) {
        bool computes = first == last || (low < high && all->begin[low] <= all->begin[first]);
        int64_t at = computes ? low++ : first++;
        if (covers && !(all->begin[at] > reached)) {
            if (all->until[at] > reached)
                reached = all->until[at];
            continue;
        }
        if (covers)
            seconds += reached - since;
        since = all->begin[at];
        reached = all->until[at];
        covers = true;
    }
    return seconds + (reached - since) - busy;
}

/* For each rank, the start and end of its compute, and the seconds in which it computes.
 *
 * `exposed` has the seconds in which it only communicates, a row for each kind of communication. A
 * rank that computes nothing has zeros. Returns 0. `bfpp/traces/timeline/rank_times.py`.
 */
int64_t bfpp_rank_times(
    int64_t tasks, int64_t operations, int64_t lanes, int64_t ranks, int64_t kinds,
    const int8_t *operation, const int32_t *lane, const int32_t *peer_lane, const int32_t *kind,
    const int32_t *rank_of_lane, const double *start, const double *end, double *first_start,
    double *last_end, double *busy, double *exposed)
{
    const struct timed t = {tasks, operations, lanes, ranks, kinds, operation, lane, peer_lane,
                            kind, rank_of_lane, start, end};
    if (!is_well_formed(&t))
        return MALFORMED;
    int64_t groups = ranks * kinds, result = OUT_OF_MEMORY;
    int64_t *place = calloc((size_t)(lanes * kinds + 2 * groups + 1), sizeof *place);
    if (!place)
        return OUT_OF_MEMORY;
    int64_t count = count_tasks(&t, place);
    double *times = malloc((size_t)(4 * count + 1) * sizeof *times);
    if (!times)
        goto done;
    int64_t *first = place + lanes * kinds;
    struct intervals all = {first, times, times + count};
    struct intervals spare = {NULL, times + 2 * count, times + 3 * count};
    place_lanes(&t, place, first + groups + 1, first);
    fill_intervals(&t, place, &all);
    for (int64_t group = 0; group < groups; group++)
        sort(&all, first[group], first[group + 1], &spare);
    for (int64_t rank = 0; rank < ranks; rank++) {
        int64_t compute = rank * kinds + kinds - 1, low = first[compute], high = first[compute + 1];
        first_start[rank] = last_end[rank] = busy[rank] = 0.0;
        if (low < high) {
            high = join(&all, low, high);
            first_start[rank] = all.begin[low];
            last_end[rank] = all.until[high - 1];
        }
        for (int64_t at = low; at < high; at++)
            busy[rank] += all.until[at] - all.begin[at];
        for (int64_t each = 0; each < kinds - 1; each++) {
            int64_t group = rank * kinds + each;
            exposed[each * ranks + rank] =
                exposed_seconds(&all, first[group], first[group + 1], low, high, busy[rank]);
        }
    }
    result = 0;
done:
    free(times);
    free(place);
    return result;
}

/* The first start, the seconds from there to the last end, and those of all passes; returns 0. */
int64_t bfpp_step_sums(
    int64_t tasks, const double *start, const double *end, const bool *is_pass, double sums[3])
{
    if (tasks < 1)
        return MALFORMED;
    double first = start[0], last = end[0], passes = 0.0;
    for (int64_t task = 0; task < tasks; task++) {
        first = start[task] < first ? start[task] : first;
        last = end[task] > last ? end[task] : last;
        if (is_pass[task])
            passes += end[task] - start[task];
    }
    sums[0] = first;
    sums[1] = last - first;
    sums[2] = passes;
    return 0;
}
