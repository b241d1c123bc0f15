/* What all headers share. `library.py` reads the headers: one declaration for each function, which
 * ends with a semicolon. The brackets behind an array hold its length, in terms of the arguments
 * before it; whole numbers by themselves are counts, from 0 to 2^31, which Python checks, too.
 * Arrays that are not `const` are written. OPTIONAL ones may be NULL. All functions
 * return a count or a flag, or one of the two errors.
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

#endif
