/* When each rank computes; the reference is `benchmarks/traces/rank_times_by_numpy.py`.
 *
 * Tasks are sorted into groups, one for each rank and kind: kinds of communication, and compute as
 * the last one. Compute is joined into stretches apart from each other. What a kind exposes is what
 * it covers together with these, less what they cover.
 */
#include "rank_times.h"

#include <stdlib.h>
#include <string.h>

/* A time in which something runs. */
struct interval {
    double begin, until;
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

/* Count the tasks of each kind on each lane. */
static void count_tasks(const struct timed *t, int64_t *count)
{
    for (int64_t task = 0; task < t->tasks; task++) {
        int32_t kind = t->kind[t->operation[task]];
        if (kind < 0)
            continue;
        count[t->lane[task] * t->kinds + kind]++;
        if (t->peer_lane[task] >= 0)
            count[t->peer_lane[task] * t->kinds + kind]++;
    }
}

/* Turn the counts of lanes into the places of their first tasks, and say where groups begin.
 *
 * The tasks of a lane follow one another, so that few of these runs are to be merged. `free_at` has
 * an entry for each group. Returns the size of the largest group.
 */
static int64_t place_lanes(
    const struct timed *t, int64_t *count, int64_t *free_at, int64_t *first)
{
    int64_t groups = t->ranks * t->kinds, largest = 0;
    for (int64_t group = 0; group <= groups; group++)
        first[group] = 0;
    for (int64_t lane = 0; lane < t->lanes; lane++)
        for (int64_t kind = 0; kind < t->kinds; kind++)
            first[t->rank_of_lane[lane] * t->kinds + kind + 1] += count[lane * t->kinds + kind];
    for (int64_t group = 0; group < groups; group++) {
        largest = first[group + 1] > largest ? first[group + 1] : largest;
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
    return largest;
}

/* Fill the intervals, given the place of the next task of each lane and kind. */
static void fill_intervals(const struct timed *t, int64_t *place, struct interval *all)
{
    for (int64_t task = 0; task < t->tasks; task++) {
        int32_t kind = t->kind[t->operation[task]];
        if (kind < 0)
            continue;
        const struct interval own = {t->start[task], t->end[task]};
        all[place[t->lane[task] * t->kinds + kind]++] = own;
        if (t->peer_lane[task] >= 0)
            all[place[t->peer_lane[task] * t->kinds + kind]++] = own;
    }
}

/* Where the run of intervals in order that begins at `first` ends.
 *
 * It goes on unless the next one begins earlier, so that NaN, which is not earlier than anything,
 * ends none: each merge makes one run of two, whatever the times are.
 */
static int64_t run_end(const struct interval *all, int64_t first, int64_t high)
{
    int64_t last = first + 1;
    while (last < high && !(all[last].begin < all[last - 1].begin))
        last++;
    return last;
}

/* Merge two runs that follow one another, from `first` to `middle` and from there to `last`. */
static void merge(
    struct interval *all, int64_t first, int64_t middle, int64_t last, struct interval *spare)
{
    int64_t ahead = middle - first, other = middle, to = first;
    memcpy(spare, all + first, (size_t)ahead * sizeof *spare);
    for (int64_t at = 0; at < ahead; to++)
        if (other < last && all[other].begin < spare[at].begin)
            all[to] = all[other++];
        else
            all[to] = spare[at++];
}

/* Put intervals in the order of their begin: merges the runs that are in order, in pairs. */
static void sort(struct interval *all, int64_t low, int64_t high, struct interval *spare)
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
static int64_t join(struct interval *all, int64_t low, int64_t high)
{
    int64_t last = low;
    for (int64_t at = low + 1; at < high; at++)
        if (all[at].begin > all[last].until)
            all[++last] = all[at];
        else if (all[at].until > all[last].until)
            all[last].until = all[at].until;
    return last + 1;
}

/* Seconds covered by sorted intervals, but not by the stretches from `low` to `high`.
 *
 * That is what both cover together, less the `busy` seconds of the stretches, in the order in which
 * numpy sums: the result is the same to the last bit.
 */
static double exposed_seconds(
    const struct interval *all, int64_t first, int64_t last, int64_t low, int64_t high,
    double busy)
{
    if (first == last)
        return 0.0;
    double seconds = 0.0, since = 0.0, reached = 0.0;
    bool covers = false;
    while (first < last || low < high) {
        bool computes = first == last || (low < high && all[low].begin <= all[first].begin);
        struct interval next = all[computes ? low++ : first++];
        if (covers && !(next.begin > reached)) {
            reached = next.until > reached ? next.until : reached;
            continue;
        }
        if (covers)
            seconds += reached - since;
        since = next.begin;
        reached = next.until;
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
    count_tasks(&t, place);
    int64_t *first = place + lanes * kinds;
    int64_t largest = place_lanes(&t, place, first + groups + 1, first), count = first[groups];
    struct interval *all = malloc((size_t)(count + largest + 1) * sizeof *all);
    if (!all)
        goto done;
    fill_intervals(&t, place, all);
    for (int64_t group = 0; group < groups; group++)
        sort(all, first[group], first[group + 1], all + count);
    for (int64_t rank = 0; rank < ranks; rank++) {
        int64_t compute = rank * kinds + kinds - 1, low = first[compute], high = first[compute + 1];
        first_start[rank] = last_end[rank] = busy[rank] = 0.0;
        if (low < high) {
            high = join(all, low, high);
            first_start[rank] = all[low].begin;
            last_end[rank] = all[high - 1].until;
        }
        for (int64_t at = low; at < high; at++)
            busy[rank] += all[at].until - all[at].begin;
        for (int64_t each = 0; each < kinds - 1; each++) {
            int64_t group = rank * kinds + each;
            exposed[each * ranks + rank] =
                exposed_seconds(all, first[group], first[group + 1], low, high, busy[rank]);
        }
    }
    result = 0;
done:
    free(all);
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
