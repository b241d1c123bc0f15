/* The lanes of tasks; reference: the object lowering of the benchmarks. */
#include "lanes.h"

#include <stdlib.h>
#include <string.h>

/* Lanes in a list for each rank and stream, in the order of their peers: few have more than two. */
struct lanes {
    int64_t ranks, streams, count, room;
    const bool *by_peer;
    int32_t *head;
    struct lane {
        int32_t peer, next, number;
    } *of;
};

/* The provisional number of a lane, which is added if it is new; negative without memory. */
static int64_t find_lane(struct lanes *lanes, int64_t rank, int64_t stream, int32_t peer)
{
    int32_t *link = &lanes->head[rank * lanes->streams + stream];
    if (!lanes->by_peer[stream])
        peer = -1;
    while (*link >= 0 && lanes->of[*link].peer < peer)
        link = &lanes->of[*link].next;
    if (*link >= 0 && lanes->of[*link].peer == peer)
        return *link;
    if (lanes->count == lanes->room) {
        struct lane *more = realloc(lanes->of, 2 * (size_t)lanes->room * sizeof *more);
        if (!more)
            return OUT_OF_MEMORY;
        bool in_head = link >= lanes->head && link < lanes->head + lanes->ranks * lanes->streams;
        if (!in_head) /* the link moved with the lanes */
            link = (int32_t *)((char *)more + ((char *)link - (char *)lanes->of));
        lanes->of = more;
        lanes->room *= 2;
    }
    lanes->of[lanes->count] = (struct lane){peer, *link, 0};
    *link = (int32_t)lanes->count;
    return lanes->count++;
}

/* Fill each task's lane and, where it has a peer, the lane there; returns how many lanes there are.
 *
 * `lanes` get rank, stream and peer of each, in order of these; a stream of operations is that at
 * their rank, and `arrives_on` that at their peer. */
int64_t bfpp_find_lanes(
    int64_t tasks, int64_t ranks, int64_t streams, int64_t operations, int64_t most,
    const int8_t *operation, const int32_t *rank, const int32_t *peer, const int32_t *stream_of,
    const int32_t *arrives_on, const bool *by_peer, int32_t *lane, int32_t *peer_lane,
    int32_t *lanes)
{
    int64_t result = OUT_OF_MEMORY, number = 0;
    struct lanes all = {ranks, streams, 0, 64, by_peer, NULL, NULL};
    if (ranks < 1 || streams < 1)
        return MALFORMED;
    for (int64_t each = 0; each < operations; each++)
        if (stream_of[each] < 0 || stream_of[each] >= streams || arrives_on[each] < 0 ||
            arrives_on[each] >= streams)
            return MALFORMED;
    all.head = malloc((size_t)(ranks * streams) * sizeof *all.head);
    all.of = malloc((size_t)all.room * sizeof *all.of);
    if (!all.head || !all.of)
        goto done;
    memset(all.head, -1, (size_t)(ranks * streams) * sizeof *all.head);
    for (int64_t task = 0; task < tasks; task++) {
        int32_t own = rank[task], other = peer[task];
        if (operation[task] < 0 || operation[task] >= operations || own < 0 || own >= ranks ||
            other < -1 || other >= ranks) {
            result = MALFORMED;
            goto done;
        }
        int64_t here = find_lane(&all, own, stream_of[operation[task]], other);
        int64_t there =
            other < 0 ? -1 : find_lane(&all, other, arrives_on[operation[task]], own);
        if (here < 0 || (other >= 0 && there < 0))
            goto done;
        lane[task] = (int32_t)here;
        peer_lane[task] = (int32_t)there;
    }
    if (all.count > most) {
        result = MALFORMED;
        goto done;
    }
    for (int64_t list = 0; list < ranks * streams; list++)
        for (int32_t each = all.head[list]; each >= 0; each = all.of[each].next) {
            lanes[3 * number] = (int32_t)(list / streams);
            lanes[3 * number + 1] = (int32_t)(list % streams);
            lanes[3 * number + 2] = all.of[each].peer;
            all.of[each].number = (int32_t)number++;
        }
    for (int64_t task = 0; task < tasks; task++) {
        lane[task] = all.of[lane[task]].number;
        if (peer_lane[task] >= 0)
            peer_lane[task] = all.of[peer_lane[task]].number;
    }
    result = number;
done:
    free(all.head);
    free(all.of);
    return result;
}
