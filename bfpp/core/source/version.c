/* Which sources this library was built from: `library.py` compares it with those beside it. */
#include "core.h"

#ifndef SOURCE_HASH
#define SOURCE_HASH "unknown"
#endif

CORE const char *bfpp_source_hash(void);

const char *bfpp_source_hash(void) { return SOURCE_HASH; }
