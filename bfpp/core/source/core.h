/* The functions of the core, as `library.py` reads them: one declaration each, which ends with a
 * semicolon. The brackets behind an array hold its length, in terms of the arguments before it.
 * Arrays that are not `const` are written. OPTIONAL ones may be NULL. All return a count or a flag,
 * or one of the two errors.
 */
#ifndef BFPP_CORE_H
#define BFPP_CORE_H

#include <stdbool.h>
#include <stdint.h>

#define OPTIONAL
#define OUT_OF_MEMORY (-1)
#define MALFORMED (-2)

#if defined(_WIN32)
#define CORE __declspec(dllexport)
#else
#define CORE __attribute__((visibility("default")))
#endif

/* version.c */
CORE const char *bfpp_source_hash(void);

/* replay.c */
CORE int64_t bfpp_sweep(
    int64_t tasks, int64_t lanes, int64_t dependencies, int64_t width, int64_t n_ports,
    const int32_t lane[tasks], const int32_t peer_lane[tasks],
    const int64_t dependency_start[tasks + 1], const int32_t dependency[dependencies],
    const double seconds[tasks], const double size[tasks], const int32_t ports[tasks * width],
    const double bandwidth[n_ports], double start[tasks], double end[tasks]);

#endif
